"""The tape: what one forward and backward pass of a physical batch left behind, until the step has used it.

It answers two questions and is then dropped: how long is each example's gradient, and what is their weighted sum? It
holds private values, so nothing may keep it past the step.

Guarantee: a row with a non-finite norm (NaN or inf anywhere in its gradient, or overflow) contributes exactly zero to
every sum; norms are those of the gradient of each example's *own* loss, whatever the reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from clipwise.norms.kernel import Call, Part


class Tape:
    def __init__(self, parameters: Sequence[nn.Parameter], parts: Sequence[tuple[Call, Part]], rows: int, scale: float):
        """`scale` undoes a mean over the rows: the gradient of example i's own loss is `scale` times what was
        recorded."""
        self._parameters = parameters
        self._parts = list(parts)
        self._scale = scale
        self.rows = rows
        device = parameters[0].device
        squares = torch.zeros(rows, dtype=torch.float64, device=device)
        for _, part in parts:
            squares += part.squared_norms.to(squares)
        self.norms = squares.sqrt_() * scale
        # Rounding: of norms, 64 eps over kernel.RUN numbers in 8 lanes, 128 in 4, in float32 at least; of weights and
        # their products, in the parameters' own type. Weights shrunk by this much keep the bound true all the same.
        types = {p.dtype for p in parameters}
        self.slack = max(
            128 * torch.finfo(torch.promote_types(t, torch.float32)).eps + 4 * torch.finfo(t).eps for t in types
        )
        bad = ~self.norms.isfinite()
        if bad.any():
            for _, part in parts:
                part.drop_rows(bad)

    def weighted_sum(self, weights: Tensor, *, last: bool = False) -> list[Tensor]:
        """sum_i weights[i] * g_i, one tensor for each parameter, in their order. The `last` sum gives each layer's
        memory back as soon as it is summed."""
        usable = torch.where(self.norms.isfinite(), weights.to(self.norms), 0) * self._scale
        usable_as = {p.dtype: usable.to(p.dtype) for p in self._parameters}
        place = {id(p): i for i, p in enumerate(self._parameters)}
        sums: list[Tensor | None] = [None] * len(self._parameters)
        for call, part in self._taken() if last else self._parts:
            some = next(iter(call.params.values()))
            for role, value in part.weighted_sum(usable_as[some.dtype]).items():
                p = call.params[role]
                i = place[id(p)]
                piece = call.pieces.get(role)
                if piece is None and sums[i] is None:
                    sums[i] = value.view_as(p)
                else:  # a packed projection's pieces, or a second use of the same parameter in disjoint pieces
                    total = sums[i]
                    total = torch.zeros_like(p) if total is None else total
                    total[slice(None) if piece is None else piece] += value
                    sums[i] = total
        return [torch.zeros_like(p) if s is None else s for s, p in zip(sums, self._parameters, strict=True)]

    def _taken(self) -> Iterator[tuple[Call, Part]]:
        while self._parts:
            yield self._parts.pop()
