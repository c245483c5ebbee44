"""The private step: seven stages in one order, for every method.

    sampling -> norms -> clipping -> weighted sum -> noise -> optimizer -> accounting

`absorb` takes one physical batch as far as its weighted sums; `release` charges the ledger, adds the noise of the
whole logical batch, once, and moves the method's state on. `private_step` is the two in a row around a forward and
backward pass; the drop-in API calls them from the user's own loop. Private values (norms, weights, sizes) live inside
`absorb` and nowhere else; a `Partial` holds private sums and dies in `release`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clipwise.accounting.ledger import Ledger
from clipwise.noise import GaussianNoise
from clipwise.norms import Bookkeeping, Tape
from clipwise.optim import hand_over
from clipwise.plan import Plan
from clipwise.sampling import PhysicalBatch
from clipwise.types import Decision, Released

_GRADIENT = "the gradient itself"  # beside the names of side queries


class State(NamedTuple):
    """Where a run stands: public, because it depends on the data only through released values."""

    step: int
    method: Any


def initial_state(plan: Plan) -> State:
    return State(0, plan.method.init(plan.context))


@dataclass
class Partial:
    """Sums over the physical batches of one logical batch so far, before noise."""

    gradient: list[Tensor] = field(default_factory=list)
    sides: dict[str, Tensor] = field(default_factory=dict)
    side_gradients: dict[str, list[Tensor]] = field(default_factory=dict)


def absorb(
    plan: Plan, state: State, partial: Partial, tape: Tape, *, masked: bool = False, groups: Tensor | None = None
) -> None:
    """Stages 3 and 4 for one physical batch: norms to weights, weights to sums. Exact however the logical batch was
    split."""
    shrink = 1 - tape.slack

    def weigh(norms: Tensor, rows: slice) -> dict[str, Tensor]:
        decision = plan.method.decide(state.method, norms, None if groups is None else groups[rows])
        if masked:  # the row that stands for an empty batch
            decision = Decision(
                torch.zeros_like(decision.weights),
                {name: torch.zeros_like(values) for name, values in decision.rows.items()},
                {name: torch.zeros_like(weights) for name, weights in decision.gradient_rows.items()},
            )
        for name, values in decision.rows.items():
            partial.sides[name] = partial.sides.get(name, 0) + values.sum(0)
        return {
            name: shrink * weights for name, weights in {**decision.gradient_rows, _GRADIENT: decision.weights}.items()
        }

    for name, sums in tape.weighted_sums(weigh).items():
        if name == _GRADIENT:
            partial.gradient = _plus(partial.gradient, sums)
        else:
            partial.side_gradients[name] = _plus(partial.side_gradients.get(name, []), sums)


def release(plan: Plan, state: State, partial: Partial, noise: GaussianNoise, ledger: Ledger) -> tuple[Released, State]:
    """Stages 7 and 5: charge first, then noise; then the method's next state, from released values only."""
    shares = plan.shares(state.step)
    upcoming = plan.steps_per_epoch if plan.steps is None else max(1, plan.steps - state.step)
    ledger.charge(state.step, plan.event(state.step), upcoming=upcoming, later=plan.event)
    sides: dict[str, Tensor] = {}
    side_gradients: dict[str, tuple[Tensor, ...]] = {}
    for query in shares.sides:
        std = query.noise_multiplier * query.l2_bound if query.noise_multiplier else 0.0
        if query.name in partial.side_gradients:
            side_gradients[query.name] = noise.add(partial.side_gradients[query.name], std, step=state.step)
        else:
            sides[query.name] = noise.add([partial.sides[query.name]], std, step=state.step)[0]
    scale = plan.method.noise_scale(state.method, sides, plan.context)
    std = shares.gradient * scale
    released = Released(noise.add(partial.gradient, std, step=state.step), sides, side_gradients, shares.gradient, std)
    return released, State(state.step + 1, plan.method.update(state.method, released, plan.context, state.step))


def private_step(
    plan: Plan,
    state: State,
    batches: Iterable[tuple[PhysicalBatch, Any]],
    *,
    loss: Callable[[Any], Tensor],
    engine: Bookkeeping,
    noise: GaussianNoise,
    ledger: Ledger,
    optimizer: torch.optim.Optimizer,
    groups: Callable[[Any], Tensor] | None = None,
) -> State:
    """One logical step over its physical batches. `loss(batch)` is one loss a row, or a loss reduced as the engine was told;
    `groups(batch)` the group of each record, for a method that wants it."""
    partial = Partial()
    for info, batch in batches:
        engine.open(info.rows, batch)
        backward_pass(engine, loss(batch))
        own = None if groups is None else groups(batch)
        absorb(plan, state, partial, engine.close(), masked=info.masked, groups=own)
    released, following = release(plan, state, partial, noise, ledger)
    hand_over(
        optimizer,
        engine.parameters,
        released,
        expected_batch_size=plan.expected_batch_size,
        learning_rate=plan.method.learning_rate(state.method),
    )
    optimizer.step()
    return following


def backward_pass(engine: Bookkeeping, loss: Tensor) -> None:
    """From one loss a row, or from a loss that was reduced as the engine was told."""
    if loss.dim():
        engine.backward(loss)
    else:
        loss.backward()


def _plus(total: list[Tensor], more: list[Tensor]) -> list[Tensor]:
    return [a + b for a, b in zip(total, more, strict=True)] if total else more
