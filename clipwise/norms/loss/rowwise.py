"""The row-wise form asked of the gradients themselves.

From the values at which there is one a row (the row losses, say) a gradient is sent back through the rest of the loss and
the model from some of the rows (`live`), and it is compared with one that comes from all of them. At every tap the other
rows must get exactly nothing, and the live rows the same: a loss, a model or a hook that mixes rows shows in the one or in
the other, in either direction. Rows that are not finite say nothing and hide nothing of the others.

Where the graph has proved the loss, the pass from all rows is the real one (`foreseen`): the live rows were sent the gradients
that come there anyway, each times a random number, and its square must be all that the lengths of a row's gradients differ by. Else
the gradients are random in all places, and both passes are ours (`mixing_layer`).

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
# Of a row's gradient: float32's smallest normal number. In a deep network gradients run out, and numbers below are rounded in steps of one
# size, which a power of two does not scale. Norms are never taken for less than 1e-19 (kernels/outer.py), so that nothing grows out of this.
LEAST = 2.0**-126


class Trial:
    """Stands at the taps while nothing is to be recorded."""

    def __init__(self, rows: int, generator: torch.Generator):
        chosen = torch.randperm(rows, generator=generator)[: rows // 2]
        self.live = torch.zeros(rows, dtype=torch.bool)
        self.live[chosen] = True
        self.all_rows = True  # whether this is the pass from all rows, of two that are ours
        self.times: Tensor | None = (
            None  # what each live row was multiplied by, where the pass from all rows is the real one
        )
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
        if self.times is not None:
            self._lengths[tap] = lengths / self.times.to(lengths).square()
            self.mixed = name if _any(rows, ~live) else self.mixed
            return
        before = self._lengths.get(tap)
        if _any(rows, ~live) or before is None or _differ(before, lengths, b.dtype):
            self.mixed = name

    def keeps(self, tap: int, b: Tensor) -> bool:
        """Whether the real gradient of the live rows, with its rows in the first dimension, is what was foreseen."""
        before = self._lengths.get(tap)
        if before is None:  # which was refused: a way that the trial did not see
            return False
        rows = b.detach().flatten(1) if b.dim() > 1 else b.detach().unsqueeze(1)
        return not _differ(before, _lengths(rows)[self.live.to(b.device)], b.dtype)


def foreseen(
    batch: Any, values: Sequence[Row], roots: Sequence[tuple[Any, Any]], dummy: Tensor, generator: torch.Generator
) -> Trial:
    """Of a pass from `roots` (each an edge with the gradient that it is given), before it runs."""
    edges = tuple(GradientEdge(node, nr) for (node, nr), _, _ in values)
    gradients = _arriving(edges, roots)
    trial = batch.trial = Trial(batch.rows, generator)
    times = 2.0 ** torch.randint(-1, 3, (batch.rows,), generator=generator)  # powers of two, which round nothing
    trial.all_rows, trial.times = False, times[trial.live]
    try:
        kept = [_only(row, g, trial.live, times) for row, g in zip(values, gradients, strict=True)]
        _send(edges, kept, dummy)
    finally:
        batch.trial = None
    batch.looked_at = trial.met
    return trial


def _arriving(edges: tuple[GradientEdge, ...], roots: Sequence[tuple[Any, Any]]) -> list[Tensor]:
    """The gradients that come to these edges; above them there are only sums."""
    starts = tuple(GradientEdge(*edge) for edge, _ in roots)
    given = []
    for (node, nr), gradient in roots:
        kind = node._input_metadata[nr]
        given.append(
            gradient
            if isinstance(gradient, Tensor)
            else torch.full(tuple(kind.shape), float(gradient), dtype=kind.dtype, device=kind.device)
        )
    if starts == edges:
        return given
    found = run_unseen(starts, tuple(given), True, False, edges, allow_unreachable=True, accumulate_grad=False)
    return list(found)


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


def _only(row: Row, gradient: Tensor, live: Tensor, times: Tensor | None = None) -> Tensor:
    """The gradient of the live rows, each times its number; nothing from the others."""
    where = row.rows
    shape = [1] * gradient.dim()
    shape[where.dim] = -1

    def of_rows(x: Tensor) -> Tensor:
        return x.view(1, -1, 1).expand(where.outer, -1, where.inner).reshape(-1).to(gradient.device).view(shape)

    gradient = gradient if times is None else gradient * of_rows(times).to(gradient.dtype)
    return gradient.masked_fill(~of_rows(live), 0)


def _lengths(rows: Tensor) -> Tensor:
    """Squared, of each row."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1).double().square()
    kind = torch.finfo(torch.promote_types(rows.dtype, torch.float32))  # in which squares are added up
    held = (
        lengths > rows.shape[1] * kind.smallest_normal / kind.eps
    )  # or squares below the smallest normal number are missed
    doubtful = ~(lengths.isfinite() & (held | _are_zero(rows)))
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
    allowed = tolerance * torch.maximum(before, after) + 1e-12 * before.max() + LEAST**2
    return bool(((before - after).abs() > allowed).any())
