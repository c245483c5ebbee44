"""The tape: what one forward and backward pass of a physical batch left behind, until the step has used it.

It answers two questions and is then dropped: how long is each example's gradient, and what is their weighted sum? It
holds private values, so nothing may keep it past the step.

Guarantee: a row with a non-finite norm (NaN or inf anywhere in its gradient, or overflow) contributes exactly zero to
every sum; norms are those of the gradient of each example's *own* loss, whatever the reduction.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, wraps
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from clipwise.devices import in_host_memory
from clipwise.norms.kernels.blocks import Blocks, Unformed
from clipwise.norms.kernels.kernel import Call, Part, wide
from clipwise.norms.kernels.outer import Outer, OuterParts
from clipwise.norms.kernels.precision import exact_products

Weigh = Callable[[Tensor, slice], Mapping[str, Tensor]]
_Answer = TypeVar("_Answer")
_Sums = tuple[Call, Mapping[str, Tensor]]  # role -> sum


def _exact(answer: Callable[..., _Answer]) -> Callable[..., _Answer]:
    """A loop may take its step under autocast or in TF32 too, which must not make products of ours less precise."""

    @wraps(answer)
    def run(self: Tape, *args: Any, **kwargs: Any) -> _Answer:
        with exact_products(self._parameters[0].device):
            return answer(self, *args, **kwargs)

    return run


class Tape:
    def __init__(self, parameters: Sequence[nn.Parameter], parts: Sequence[tuple[Call, Part]], rows: int, scale: float):
        """`scale` undoes a mean over the rows: the gradient of example i's own loss is `scale` times what was
        recorded."""
        self._parameters = parameters
        self._parts = [each for each in parts if not isinstance(each[1], Outer)]
        self._outer = _by_type([part for _, part in parts if isinstance(part, Outer)])
        self.scale = scale
        self.rows = rows
        self._host = in_host_memory(parameters[0].device)
        self._dtypes = set(map(_dtype, parameters))
        # Rounding: of norms, 64 eps over kernel.RUN numbers in 8 lanes, 128 in 4; of weights and their products, 4. Weights
        # shrunk by this much keep the bound true all the same.
        self.slack = max([132 * _eps(dtype) for dtype in self._dtypes])

    @property
    def outer_alone(self) -> list[Outer] | None:
        """Its parts, where all are linear layers at one place."""
        if self._parts or not self._outer:
            return None
        return [part for parts in self._outer.values() for part in parts.all]

    def with_outer(self, tensors: Sequence[tuple[Tensor, ...]], rows: int) -> Tape:
        """A tape of the same layers, all of them linear at one place, with other inputs and output gradients."""
        layers = zip(self.outer_alone or (), tensors, strict=True)
        return Tape(
            self._parameters, [(part.call, part.with_tensors(a, b)) for part, (a, b) in layers], rows, scale=1.0
        )

    @cached_property
    @_exact
    def norms(self) -> Tensor:
        return self._measured()

    @_exact
    def weighted_sum(self, weights: Tensor, *, last: bool = False) -> list[Tensor]:
        """sum_i weights[i] * g_i, one tensor for each parameter, in their order. The `last` sum gives each layer's
        memory back as soon as it is summed."""
        return self._summed(weights, self.norms, last=last)

    @_exact
    def weighted_sums(self, weigh: Weigh) -> dict[str, list[Tensor]]:
        """The weighted sum for each name that `weigh(norms of some rows, those rows)` gives weights for; the rows come
        all at once or block by block. This uses the tape up."""
        unformed = [(call, part) for call, part in self._parts if isinstance(part, Unformed)]
        if not unformed:
            norms = self._measured()
            weights = weigh(norms, slice(0, self.rows))
            final = list(weights)[-1]
            return {name: self._summed(w, norms, last=name == final) for name, w in weights.items()}
        self._parts = [(call, part) for call, part in self._parts if not isinstance(part, Unformed)]
        self._parts += [(call, part.others) for call, part in unformed if part.others is not None]
        usable, formed = self._in_blocks(unformed, weigh)
        final = list(usable)[-1]
        return {
            name: self._in_order(chain(formed[name], self._sums(usable[name], last=name == final))) for name in usable
        }

    def _measured(self) -> Tensor:
        """The norms; rows with one that is not finite are taken out."""
        norms = self._squares().sqrt_().mul_(self.scale)
        if self._may_have_bad(norms):
            self._drop(~norms.isfinite())
        return norms

    def _may_have_bad(self, norms: Tensor) -> bool:
        """Whether a row is to be taken out. A device is not asked, which would have to do all that it was told before: rows that
        may not be there are taken out."""
        # None is below 0: their sum is finite where all of them are. One number to look at, and one operation to get it.
        return not self._host or not math.isfinite(norms.sum().item())

    def _summed(self, weights: Tensor, norms: Tensor, *, last: bool) -> list[Tensor]:
        return self._in_order(self._sums(self._usable(weights, norms), last=last))

    def _in_blocks(
        self, unformed: Sequence[tuple[Call, Unformed]], weigh: Weigh
    ) -> tuple[dict[str, Tensor], dict[str, list[_Sums]]]:
        """By name, the weights of all rows as they are to be used, and the sums of what was unformed."""
        blocks, squares = Blocks([part for _, part in unformed]), self._squares()
        usable: defaultdict[str, list[Tensor]] = defaultdict(list)
        added: defaultdict[str, list[list[Tensor]]] = defaultdict(blocks.space_for_sums)
        for rows in blocks:
            norms = squares[rows].add_(blocks.form(rows)).sqrt() * self.scale
            if self._may_have_bad(norms):
                blocks.drop(~norms.isfinite())
            for name, weights in weigh(norms, rows).items():
                usable[name].append(self._usable(weights, norms))
                blocks.add_to(added[name], usable[name][-1])
        if self._may_have_bad(squares):
            self._drop(~squares.isfinite())
        return {name: torch.cat(each) for name, each in usable.items()}, {
            name: [(call, found) for (call, _), found in zip(unformed, blocks.sums(each), strict=True)]
            for name, each in added.items()
        }

    def _squares(self) -> Tensor:
        found = [part.squared_norms for _, part in self._parts]
        found += [parts.squares() for parts in self._outer.values()]
        device = self._parameters[0].device
        total = torch.zeros(self.rows, dtype=torch.float64, device=device) if len(found) != 1 else found[0]
        if len(found) == 1:
            return total.to(device, torch.float64, copy=not self._outer)  # a part keeps its own
        for squares in found:
            total += squares.to(total)
        return total

    def _drop(self, bad: Tensor) -> None:
        for _, part in self._parts:
            part.drop_rows(bad)
        for parts in self._outer.values():
            parts.drop_rows(bad)

    def _usable(self, weights: Tensor, norms: Tensor) -> Tensor:
        return torch.where(norms < torch.inf, weights.to(norms), 0.0).mul_(self.scale)

    def _sums(self, usable: Tensor, *, last: bool) -> Iterator[_Sums]:
        usable_as = {dtype: usable.to(wide(dtype)) for dtype in self._dtypes}
        for call, part in self._taken() if last else self._parts:
            some = next(iter(call.params.values()))
            yield call, part.weighted_sum(usable_as[some.dtype])
        for (dtype, _), parts in self._outer.items():
            yield from parts.sums(usable.to(dtype) if dtype not in usable_as else usable_as[dtype])
        if last:
            self._outer = {}

    def _taken(self) -> Iterator[tuple[Call, Part]]:
        while self._parts:
            yield self._parts.pop()

    def _in_order(self, found: Iterable[_Sums]) -> list[Tensor]:
        sums: dict[int, Tensor] = {}
        for call, values in found:
            pieces = call.pieces
            for role, value in values.items():
                p = call.params[role]
                piece = pieces.get(role) if pieces else None
                total = sums.get(id(p))
                if piece is None and total is None:
                    sums[id(p)] = value if value.shape == p.shape else value.view_as(p)
                else:  # a packed projection's pieces, or a second use of the same parameter in disjoint pieces
                    total = torch.zeros_like(p, dtype=wide(p.dtype)) if total is None else total
                    total[slice(None) if piece is None else piece] += value
                    sums[id(p)] = total
        return [sums[id(p)] if id(p) in sums else torch.zeros_like(p, dtype=wide(p.dtype)) for p in self._parameters]


_dtype = attrgetter("dtype")


@cache
def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(wide(dtype)).eps


def _by_type(parts: Sequence[Outer]) -> dict[tuple[torch.dtype, torch.device], OuterParts]:
    alike: defaultdict[tuple[torch.dtype, torch.device], list[Outer]] = defaultdict(list)
    for part in parts:
        alike[part.b.dtype, part.b.device].append(part)
    return {kind: OuterParts(each) for kind, each in alike.items()}
