"""One attack: a model, a loader and a step of a loop, tried on neighbours.

The loop takes one step at q = 1, with the same seed and no noise, on N records and on one more. What the released sum moves
by, over the bound (s/C), must be at most 1; or the loop is refused by name. An attack that is neither has got through.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from clipwise.dropin import Private, attach
from clipwise.types import ClipwiseError

RECORDS, WIDTH, CLASSES = 16, 4, 3
BOUND = 1.0
SLACK = 1e-4  # of s/C: float32 sums of 17 records

Loop = Callable[[Private, nn.Module, Any], None]


def records(extra: bool) -> list[tuple[Tensor, Tensor]]:
    """Rows of (features, class); the one more is far out, and the only one of its class."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS + 1, WIDTH, generator=generator)
    y = torch.randint(0, CLASSES - 1, (RECORDS + 1,), generator=generator)
    x[-1], y[-1] = 5 * x[-1], CLASSES - 1
    count = RECORDS + extra
    return list(zip(x[:count], y[:count], strict=True))


def plain_loader(data: list) -> DataLoader:
    features, targets = zip(*data, strict=True)
    return DataLoader(TensorDataset(torch.stack(features), torch.stack(targets)), batch_size=RECORDS)


def linear() -> nn.Module:
    return nn.Linear(WIDTH, CLASSES)


@dataclass(frozen=True)
class Attack:
    """`loop` runs forward and backward for one batch; Clipwise's step follows. `steps` of them, where one is not enough."""

    edge: str
    name: str
    loop: Loop
    model: Callable[[], nn.Module] = linear
    data: Callable[[bool], list] = records
    loader: Callable[[list], DataLoader] = plain_loader
    reduction: str = "mean"
    steps: int = 1
    bound: float = BOUND  # larger than most gradients, where it is their scale that moves
    sound: bool = False  # a control: it must be accepted
    leaves: Callable[[nn.Module], Tensor] | None = None  # what the run leaves in the model beside released values


class Outcome(NamedTuple):
    attack: Attack
    held: bool
    how: str  # refused by which error, or s/C


ATTACKS: list[Attack] = []


def attack(edge: str, name: str, **options: Any) -> Callable[[Loop], Loop]:
    """Puts a loop on the list."""

    def join(loop: Loop) -> Loop:
        ATTACKS.append(Attack(edge, name, loop, **options))
        return loop

    return join


def control(name: str, **options: Any) -> Callable[[Loop], Loop]:
    """Puts a sound loop on the list, which must be accepted."""
    return attack("control: sound, to be accepted", name, sound=True, **options)


def try_attack(one: Attack) -> Outcome:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (before, left), (after, now) = _released(one, False), _released(one, True)
    except ClipwiseError as refusal:
        return Outcome(one, not one.sound, f"refused: {type(refusal).__name__}")
    moved = float((after - before).norm()) / one.bound
    if one.leaves is not None and not torch.equal(left, now):
        return Outcome(one, False, "values of the records stay in the model")
    return Outcome(one, moved <= 1 + SLACK, f"s/C = {moved:.3g}")


def _released(one: Attack, extra: bool) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    model = one.model()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    private = attach(
        model,
        optimizer,
        one.loader(one.data(extra)),
        noise_multiplier=0.0,
        sample_rate=1.0,
        expected_batch_size=float(RECORDS),
        threshold=one.bound,
        loss_reduction=one.reduction,
        seed=0,
        method="fixed",
    )
    try:
        for _ in range(one.steps):
            for batch in private.loader:
                optimizer.zero_grad()
                one.loop(private, model, batch)
                optimizer.step()
        grads = [p.grad.flatten() for p in model.parameters() if p.requires_grad and p.grad is not None]
        left = torch.zeros(()) if one.leaves is None else one.leaves(model).detach().clone()
        return torch.cat(grads).double() * RECORDS, left
    finally:
        private.detach()
