"""The engine of a run without privacy: torch's own gradients, behind the face of the private engine.

No norm is measured, so that every record has the same weight; nothing is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clipwise.norms.record.tape import Weigh
from clipwise.norms.record.units import untrained
from clipwise.types import LoopMisuse, Padding


class PlainTape:
    """The sum of the rows' gradients, each with the weight of a row of norm 0 (they all have the same)."""

    slack = 0.0

    def __init__(self, sums: list[Tensor], rows: int):
        self._sums, self._rows = sums, rows

    def weighted_sums(self, weigh: Weigh) -> dict[str, list[Tensor]]:
        weights = weigh(torch.zeros(self._rows, device=self._sums[0].device), slice(0, self._rows))
        return {name: [total * own[0] for total in self._sums] for name, own in weights.items()}


class PlainEngine:
    """`open(rows)`, the user's forward and backward, `close()`: one physical batch."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, loss_reduction: str):
        self.parameters: Sequence[nn.Parameter] = list(parameters.values())
        self._reduction = loss_reduction
        self._rows: int | None = None
        self._summed = False  # whether the batch's losses came one a row

    def install(self) -> None:
        self._forget()

    def remove(self) -> None:
        self._rows = None

    def begin_epoch(self) -> None: ...

    def end_epoch(self) -> None: ...

    def open(
        self,
        rows: int,
        padding: Padding | None = None,  # noqa: ARG002
        records: Any = None,  # noqa: ARG002
        lengths: tuple[int, ...] = (),  # noqa: ARG002
    ) -> None:
        self._forget()
        self._rows, self._summed = rows, False

    def backward(self, losses: Tensor) -> None:
        """From one loss a row, whatever reduction was declared."""
        self._summed = True
        losses.sum().backward()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """No parameter takes a gradient from the passes in this block."""
        with untrained(self.parameters):
            yield

    def close(self) -> PlainTape:
        rows, self._rows = self._rows, None
        if rows is None or all(p.grad is None for p in self.parameters):
            raise LoopMisuse("optimizer.step() came without a new loss.backward() on a batch of private.loader")
        scale = float(rows) if self._reduction == "mean" and not self._summed else 1.0
        sums = [torch.zeros_like(p) if p.grad is None else p.grad * scale for p in self.parameters]
        self._forget()
        return PlainTape(sums, rows)

    def _forget(self) -> None:
        for p in self.parameters:
            p.grad = None
