"""The tape: what one forward and backward pass of a physical batch left behind, until the step has used it.

It answers two questions and is then dropped: how long is each example's gradient, and what is their weighted sum? It
holds private values, so nothing may keep it past the step.

Guarantee: a row with a non-finite norm (NaN or inf anywhere in its gradient, or overflow) contributes exactly zero to
every sum; norms are those of the gradient of each example's *own* loss, whatever the reduction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, wraps
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from clipwise.norms.blocks import Blocks, Unformed
from clipwise.norms.kernel import Call, Outer, Part, outer_squares, wide
from clipwise.norms.precision import exact_products

Weigh = Callable[[Tensor, slice], Mapping[str, Tensor]]
_Answer = TypeVar("_Answer")
_Sums = tuple[Call, Mapping[str, Tensor]]  # role -> sum


def _exact(answer: Callable[..., _Answer]) -> Callable[..., _Answer]:
    """A loop may take its step under autocast or in TF32 too, which must not make products of ours less precise."""

    @wraps(answer)
    def run(self: Tape, *args: Any, **kwargs: Any) -> _Answer:
        with exact_products(self._parameters[0].device.type):
            return answer(self, *args, **kwargs)

    return run


class Tape:
    def __init__(self, parameters: Sequence[nn.Parameter], parts: Sequence[tuple[Call, Part]], rows: int, scale: float):
        """`scale` undoes a mean over the rows: the gradient of example i's own loss is `scale` times what was
        recorded."""
        self._parameters = parameters
        self._parts = list(parts)
        self._scale = scale
        self.rows = rows
        # Rounding: of norms, 64 eps over kernel.RUN numbers in 8 lanes, 128 in 4; of weights and their products, 4. Weights
        # shrunk by this much keep the bound true all the same.
        self.slack = max(132 * torch.finfo(wide(dtype)).eps for dtype in {p.dtype for p in parameters})

    @cached_property
    @_exact
    def norms(self) -> Tensor:
        norms = self._squares().sqrt_().mul_(self._scale)
        self._drop(~norms.isfinite())
        return norms

    @_exact
    def weighted_sum(self, weights: Tensor, *, last: bool = False) -> list[Tensor]:
        """sum_i weights[i] * g_i, one tensor for each parameter, in their order. The `last` sum gives each layer's
        memory back as soon as it is summed."""
        return self._in_order(self._sums(self._usable(weights, self.norms), last=last))

    @_exact
    def weighted_sums(self, weigh: Weigh) -> dict[str, list[Tensor]]:
        """The weighted sum for each name that `weigh(norms of some rows, those rows)` gives weights for; the rows come
        all at once or block by block. This uses the tape up."""
        unformed = [(call, part) for call, part in self._parts if isinstance(part, Unformed)]
        if not unformed:
            weights = weigh(self.norms, slice(0, self.rows))
            final = list(weights)[-1]
            return {name: self.weighted_sum(w, last=name == final) for name, w in weights.items()}
        self._parts = [(call, part) for call, part in self._parts if not isinstance(part, Unformed)]
        self._parts += [(call, part.others) for call, part in unformed if part.others is not None]
        usable, formed = self._in_blocks(unformed, weigh)
        final = list(usable)[-1]
        return {
            name: self._in_order(chain(formed[name], self._sums(usable[name], last=name == final))) for name in usable
        }

    def _in_blocks(
        self, unformed: Sequence[tuple[Call, Unformed]], weigh: Weigh
    ) -> tuple[dict[str, Tensor], dict[str, list[_Sums]]]:
        """By name, the weights of all rows as they are to be used, and the sums of what was unformed."""
        blocks, squares = Blocks([part for _, part in unformed]), self._squares()
        usable: defaultdict[str, list[Tensor]] = defaultdict(list)
        added: defaultdict[str, list[list[Tensor]]] = defaultdict(blocks.space_for_sums)
        for rows in blocks:
            norms = squares[rows].add_(blocks.form(rows)).sqrt() * self._scale
            bad = ~norms.isfinite()
            if bad.any():
                blocks.drop(bad)
            for name, weights in weigh(norms, rows).items():
                usable[name].append(self._usable(weights, norms))
                blocks.add_to(added[name], usable[name][-1])
        self._drop(~squares.isfinite())
        return {name: torch.cat(each) for name, each in usable.items()}, {
            name: [(call, found) for (call, _), found in zip(unformed, blocks.sums(each), strict=True)]
            for name, each in added.items()
        }

    def _squares(self) -> Tensor:
        squares = torch.zeros(self.rows, dtype=torch.float64, device=self._parameters[0].device)
        outer: defaultdict[Hashable, list[Outer]] = defaultdict(list)
        for _, part in self._parts:
            if isinstance(part, Outer):
                outer[part.b.dtype, part.b.device].append(part)
            else:
                squares += part.squared_norms.to(squares)
        for alike in outer.values():
            squares += outer_squares(alike).to(squares)
        return squares

    def _drop(self, bad: Tensor) -> None:
        if bad.any():
            for _, part in self._parts:
                part.drop_rows(bad)

    def _usable(self, weights: Tensor, norms: Tensor) -> Tensor:
        return torch.where(norms.isfinite(), weights.to(norms), 0).mul_(self._scale)

    def _sums(self, usable: Tensor, *, last: bool) -> Iterator[_Sums]:
        usable_as = {dtype: usable.to(wide(dtype)) for dtype in {p.dtype for p in self._parameters}}
        for call, part in self._taken() if last else self._parts:
            some = next(iter(call.params.values()))
            yield call, part.weighted_sum(usable_as[some.dtype])

    def _taken(self) -> Iterator[tuple[Call, Part]]:
        while self._parts:
            yield self._parts.pop()

    def _in_order(self, found: Iterable[_Sums]) -> list[Tensor]:
        place = {id(p): i for i, p in enumerate(self._parameters)}
        sums: list[Tensor | None] = [None] * len(self._parameters)
        for call, values in found:
            for role, value in values.items():
                p = call.params[role]
                i = place[id(p)]
                piece = call.pieces.get(role)
                if piece is None and sums[i] is None:
                    sums[i] = value.view_as(p)
                else:  # a packed projection's pieces, or a second use of the same parameter in disjoint pieces
                    total = sums[i]
                    total = torch.zeros_like(p, dtype=wide(p.dtype)) if total is None else total
                    total[slice(None) if piece is None else piece] += value
                    sums[i] = total
        return [
            torch.zeros_like(p, dtype=wide(p.dtype)) if s is None else s
            for s, p in zip(sums, self._parameters, strict=True)
        ]
