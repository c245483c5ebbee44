"""The private step: the stages in the order in which they run. This is the only copy of that order.

    sampling -> norms -> clipping -> weighted sum -> charge -> noise -> optimizer

`Stepper` is the step of one run. For each physical batch `begin` lets the engine record, the caller runs forward and
backward, and `absorb` turns what was recorded into weights and weighted sums; `complete` charges the ledger, adds the
noise of the whole logical batch, once, moves the method's state on, and hands the released gradient to the optimizer.
`fit` and `private_step` call these in a row; the drop-in calls them from the user's own loop.

Guarantee: private values (norms, weights, sizes) live inside `absorb` and nowhere else; a `Partial` holds private sums and
dies in `complete`. The charge is on record before any noise of its step exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clipwise import guards
from clipwise.accounting import AnyLedger
from clipwise.noise import Noise
from clipwise.norms import Bookkeeping, Deferred, PlainEngine, PlainTape, Tape
from clipwise.optim import hand_over
from clipwise.plans import Plan
from clipwise.ranks import World
from clipwise.sampling import PhysicalBatch
from clipwise.shards import Shards
from clipwise.types import ClipwiseError, Cut, Decision, LoopMisuse, Released

_GRADIENT = "the gradient itself"  # beside the names of side queries

Engine = Bookkeeping | PlainEngine


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
    cut: Cut | None = None  # where the gradient is this process's part of it

    def all(self) -> list[Tensor]:
        more = [t for sums in self.side_gradients.values() for t in sums]
        return [*self.gradient, *self.sides.values(), *more]


class Stepper:
    """The step of one run. `state` is where the run stands."""

    def __init__(
        self,
        plan: Plan,
        state: State,
        *,
        engine: Engine,
        noise: Noise,
        ledger: AnyLedger,
        optimizer: torch.optim.Optimizer,
        groups: Callable[[Any], Tensor] | None = None,
        world: World | None = None,
        shards: Shards | None = None,
    ):
        self.plan, self.state = plan, state
        self.engine, self.noise, self.ledger, self.optimizer = engine, noise, ledger, optimizer
        self._groups = groups
        self.world = world or World()
        self.shards = shards if shards and shards.any else None
        self._batch: PhysicalBatch | None = None
        self._records: Any = None
        self._partial = Partial()
        self._deferred = Deferred()
        self.whereabouts = guards.Whereabouts(self.world.size)

    @property
    def waits(self) -> bool:
        """Whether a batch has begun that was not absorbed."""
        return self._batch is not None

    @property
    def unfinished(self) -> bool:
        """Whether a part of a logical batch was taken."""
        return bool(self._partial.gradient or self._deferred)

    @property
    def rows(self) -> int:
        """Of the batch that has begun: private, for whoever must begin it anew in smaller ones."""
        return 0 if self._batch is None else self._batch.rows

    def begin(self, batch: PhysicalBatch, records: Any) -> None:
        """A physical batch begins: the engine records what the next forward and backward pass do."""
        self.whereabouts.begin()
        if batch.step != self.state.step:
            raise LoopMisuse(
                f"a batch that was drawn for step {batch.step} came at step {self.state.step}; nothing was changed. Go through the batches of "
                "one loop, in order"
            )
        self.engine.open(batch.rows, batch.padding, records, batch.lengths)  # which compares the model as it is at rest
        if self.shards:
            self.shards.gather()
        self._batch, self._records = batch, records

    def rest(self) -> None:
        """The passes of the batch are over: weights that are cut over processes need not be whole any more."""
        if self.shards:
            self.shards.rest()

    def absorb(self) -> bool:
        """The batch's norms to weights, weights to sums. True when it was the last one of its logical batch."""
        self.whereabouts.refuse_elsewhere()
        self.rest()
        batch, records = self._batch, self._records
        tape = self.engine.close()  # raises where there was no backward
        if batch is None:
            raise LoopMisuse("optimizer.step() came for a batch that is not from private.loader; nothing was changed")
        groups = None if self._groups is None else self._groups(records)
        self._batch, self._records = None, None
        if (
            batch.masked
        ):  # no record: the one part of an empty batch, or what a process has left that has fewer parts than others
            self._sum_up(self._deferred.rest())
            clip_and_sum(self.plan, self.state, self._partial, tape, masked=True, groups=groups)
        elif batch.last or not self._deferred.keep(tape, groups):
            self._sum_up(self._deferred.take(tape, groups))
        return batch.last

    def _sum_up(self, tapes: Sequence[tuple[Tape | PlainTape, Tensor | None]]) -> None:
        for tape, groups in tapes:
            clip_and_sum(self.plan, self.state, self._partial, tape, groups=groups)

    def complete(self, take_step: Callable[[], Any]) -> Any:
        """Charge, noise, the method's next state, the optimizer: once a logical batch."""
        self._release()
        with guards.own_step():
            return take_step()

    def _release(self) -> None:
        plan, state = self.plan, self.state
        if self._deferred:  # it would count in the next step, beside a record's own part there
            raise ClipwiseError(
                "a part of this logical batch was not summed; nothing was changed, and this is a fault of Clipwise"
            )
        partial, self._partial = self._partial, Partial()
        self._agree()
        charge(plan, state, self.ledger)
        self._add_up(partial)
        released = add_noise(plan, state, partial, self.noise)
        rate, unit = plan.method.learning_rate(state.method), plan.method.unit(state.method)
        self.state = State(state.step + 1, plan.method.update(state.method, released, plan.context, state.step))
        hand_over(
            self.optimizer,
            self.engine.parameters,
            released,
            divide_by=plan.expected_batch_size * unit,
            learning_rate=rate,
        )
        if plan.private:  # without privacy, backward() itself has called them
            guards.through_hooks(self.engine.parameters)

    def _add_up(self, partial: Partial) -> None:
        """The sums of all processes in the place of this one's; for weights that are cut over them, its part of the sums."""
        if self.shards is None:
            self.world.add_up(partial.all())
        else:
            self.world.add_up(list(partial.sides.values()))
            partial.gradient, partial.cut = self.shards.scatter(partial.gradient), self.shards.cut

    def _agree(self) -> None:
        """Processes that train together stand at the same step, with the same state, rate and weights (but for those that are
        cut over them, of which there is one)."""
        if self.world.size > 1:
            rates = [group["lr"] for group in self.optimizer.param_groups]
            copies = self.engine.parameters if self.shards is None else self.shards.copies
            weights = [size.item() for size in torch._foreach_norm(list(copies), 1)] if copies else []
            known = (
                self.state.step,
                [_exact(v) for v in self.state.method],
                rates,
                weights,
                self.plan.total(self.state.step),
            )
            self.world.agree("step, thresholds, learning rate and weights", repr(known).encode())

    def drop(self) -> None:
        """Forget what was summed of an unfinished logical batch."""
        self._batch, self._records, self._partial = None, None, Partial()
        self._deferred.drop()
        self.rest()


def private_step(
    stepper: Stepper, batches: Iterable[tuple[PhysicalBatch, Any]], *, loss: Callable[[Any], Tensor]
) -> State:
    """One logical step over its physical batches. `loss(records)` is one loss a row, or a loss reduced as the engine was
    told.

    `clipwise.Run(...)` makes a stepper and the batches that belong to it; see docs/architecture.md.
    """
    for batch, records in batches:
        stepper.begin(batch, records)
        backward_pass(stepper.engine, loss(records))
        stepper.absorb()
    stepper.complete(stepper.optimizer.step)
    stepper.whereabouts.end()
    return stepper.state


def backward_pass(engine: Engine, loss: Tensor) -> None:
    """From one loss a row, or from a loss that was reduced as the engine was told."""
    if loss.dim():
        engine.backward(loss)
    else:
        loss.backward()


def clip_and_sum(
    plan: Plan,
    state: State,
    partial: Partial,
    tape: Tape | PlainTape,
    *,
    masked: bool = False,
    groups: Tensor | None = None,
) -> None:
    """Norms to weights, weights to sums, for one physical batch. Exact however the logical batch was split."""
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


def charge(plan: Plan, state: State, ledger: AnyLedger) -> None:
    """The step on record, before its noise exists."""
    upcoming = plan.steps_per_epoch if plan.steps is None else max(1, plan.steps - state.step)
    later = None if plan.constant else plan.event
    ledger.charge(state.step, plan.event(state.step), upcoming=upcoming, later=later)


def add_noise(plan: Plan, state: State, partial: Partial, noise: Noise) -> Released:
    """Noise on every sum of the step, and nothing else is released of it."""
    shares = plan.shares(state.step)
    sides: dict[str, Tensor] = {}
    side_gradients: dict[str, tuple[Tensor, ...]] = {}
    for query in shares.sides:
        std = query.noise_multiplier * query.l2_bound if query.noise_multiplier else 0.0
        if query.name in partial.side_gradients:
            side_gradients[query.name] = noise.add(partial.side_gradients[query.name], std, step=state.step)
        else:
            sides[query.name] = noise.add([partial.sides[query.name]], std, step=state.step)[0]
    std = shares.gradient * plan.method.noise_scale(state.method, sides, plan.context)
    part = {} if partial.cut is None else {"cut": partial.cut}
    gradient = noise.add(partial.gradient, std, step=state.step, **part)
    return Released(gradient, sides, side_gradients, shares.gradient, std)


def _exact(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def _plus(total: list[Tensor], more: list[Tensor]) -> list[Tensor]:
    """In the memory of the first part's sums, which nobody else holds."""
    if not total:
        return more
    torch._foreach_add_(total, more)
    return total
