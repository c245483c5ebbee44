"""The row-wise form asked of the gradients themselves.

From the values at which there is one a row (the row losses, say) a random gradient is sent back through the rest of the
loss and the model twice: from all rows, and from some of them (`live`). At every tap the other rows must get exactly
nothing, and the live rows what they got before: a loss, a model or a hook that mixes rows shows in the one or in the other,
in either direction. Rows that are not finite say nothing and hide nothing of the others.

Nothing is recorded, and nothing is kept but a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from clipwise.norms.loss.graph import Row
from clipwise.norms.loss.roots import run_unseen

# Relative, of squared lengths of the same row's gradient in two runs of the same code: only how a kernel splits its work may
# differ. Chosen as some eps of the dtype's own additions, not measured.
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 1e-1}
TOLERANCE_OTHERWISE = 1e-3  # of the other dtypes


class Trial:
    """Stands at the taps while nothing is to be recorded."""

    def __init__(self, rows: int, generator: torch.Generator):
        chosen = torch.randperm(rows, generator=generator)[: rows // 2]
        self.live = torch.zeros(rows, dtype=torch.bool)
        self.live[chosen] = True
        self.all_rows = True  # of the two runs, the first
        self.mixed: str | None = None  # the name of a layer
        self.met: set[int] = set()  # taps, by id, in both runs
        self._lengths: dict[int, Tensor] = {}

    def arrive(self, tap: int, name: str, b: Tensor) -> None:
        """A gradient with its rows in the first dimension arrives at a tap."""
        live, rows = self.live.to(b.device), b.detach().flatten(1) if b.dim() > 1 else b.detach().unsqueeze(1)
        lengths = _lengths(rows)[live]
        if self.all_rows:
            self._lengths[tap] = lengths
            return
        self.met.add(tap)
        before = self._lengths.get(tap)
        if _any(rows, ~live) or before is None or _differ(before, lengths, b.dtype):
            self.mixed = name


def mixing_layer(batch: Any, values: Sequence[Row], dummy: Tensor, generator: torch.Generator) -> str | None:
    """The name of a layer at which rows get gradients of other rows' values; None where all keep apart. `batch` shows its
    `trial` to its taps."""
    trial = batch.trial = Trial(batch.rows, generator)
    edges = tuple(GradientEdge(node, nr) for (node, nr), _, _ in values)
    gradients = [_random(row, generator) for row in values]
    try:
        _send(edges, gradients, dummy)
        trial.all_rows = False
        kept = [_only(row, g, trial.live) for row, g in zip(values, gradients, strict=True)]
        _send(edges, kept, dummy)
    finally:
        batch.trial = None
    batch.looked_at = trial.met
    return trial.mixed


def _send(edges: tuple[GradientEdge, ...], gradients: list[Tensor], dummy: Tensor) -> None:
    # Every tap has the dummy among its inputs, so that all of them run, and no gradient goes to any parameter.
    run_unseen(edges, tuple(gradients), True, False, (dummy,), allow_unreachable=True, accumulate_grad=False)


def _random(row: Row, generator: torch.Generator) -> Tensor:
    (node, nr), shape, _ = row
    kind = node._input_metadata[nr]
    return (0.5 + torch.rand(shape, generator=generator)).to(device=kind.device, dtype=kind.dtype)


def _only(row: Row, gradient: Tensor, live: Tensor) -> Tensor:
    """The gradient of the live rows; nothing from the others."""
    where = row.rows
    own = live.view(1, -1, 1).expand(where.outer, -1, where.inner).reshape(-1)
    shape = [1] * gradient.dim()
    shape[where.dim] = -1
    return gradient.masked_fill(~own.to(gradient.device).view(shape), 0)


def _lengths(rows: Tensor) -> Tensor:
    """Squared, of each row."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1).double().square()
    doubtful = ~(lengths.isfinite() & ((lengths > 0) | _are_zero(rows)))
    if bool(doubtful.any()):  # numbers whose squares float32 cannot hold
        lengths[doubtful] = rows[doubtful].double().square().sum(1)
    return lengths


def _any(rows: Tensor, others: Tensor) -> bool:
    """Whether a number of these rows is not zero; NaN and infinity say nothing."""
    rest = others & ~_are_zero(rows)
    return bool(rest.any()) and bool(rows[rest].nan_to_num(0.0, 0.0, 0.0).any())


def _are_zero(rows: Tensor) -> Tensor:
    """Which rows are zero in all places: their largest and their smallest number are, which takes a tenth of what their largest
    absolute one does."""
    if not rows.shape[1]:
        return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    return (rows.amax(1) == 0) & (rows.amin(1) == 0)


def _differ(before: Tensor, after: Tensor, dtype: torch.dtype) -> bool:
    finite = before.isfinite() & after.isfinite()
    if not finite.any():
        return False
    before, after = before[finite], after[finite]
    tolerance = TOLERANCE.get(dtype, TOLERANCE_OTHERWISE)
    return bool(((before - after).abs() > tolerance * torch.maximum(before, after) + 1e-12 * before.max()).any())
