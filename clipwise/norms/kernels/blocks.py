"""Per-example gradients of a few rows at a time.

Stored for all rows at once, the gradients of layers with many places (tokens) are what makes a private step large, and
every step pays for fresh memory to put them in. The inputs and output gradients that they come from are often smaller. So
these are kept instead (`Unformed`), and once the backward pass is over, `Blocks` forms the gradients of a few rows of all
such layers in space that is used again and again, measures them, and adds them up with the weights that their norms were
given, before it forms the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from clipwise.devices import policy
from clipwise.norms.kernels.kernel import Part, sum_of_squares, without_rows

_SHARE = (
    1 / 6
)  # of a block's bytes, for a layer that is formed by itself: what it gets among others, about; chosen, not measured

Form = Callable[..., object]
Finish = Callable[[Sequence[Tensor]], dict[str, Tensor]]


class Unformed:
    """The tensors, rows first and of float32 at least (the blocks' sums are added in that type), that gradients come from:
    `form(space, *tensors of some rows)` writes the gradients into `space`, a list of (rows, *shape) for the `shapes`;
    `finish` makes role -> sum of their sums. `others` is the part of the call's other parameters."""

    def __init__(
        self,
        tensors: tuple[Tensor, ...],
        shapes: Sequence[Sequence[int]],
        form: Form,
        finish: Finish,
        others: Part | None = None,
    ):
        self.tensors, self.shapes, self.form, self.finish, self.others = tensors, shapes, form, finish, others

    @property
    def rows(self) -> int:
        return len(self.tensors[0])

    @cached_property
    def squared_norms(self) -> Tensor:
        blocks = Blocks([self], _SHARE)
        squares = torch.cat([blocks.form(rows) for rows in blocks])
        return squares if self.others is None else squares + self.others.squared_norms.to(squares)

    def drop_rows(self, bad: Tensor) -> None:
        self.tensors = tuple(without_rows(t, bad) for t in self.tensors)
        if self.others is not None:
            self.others.drop_rows(bad)

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        blocks = Blocks([self], _SHARE)
        added = blocks.space_for_sums()
        for rows in blocks:
            blocks.form(rows)
            blocks.add_to(added, weights[rows])
        return blocks.sums(added)[0] | ({} if self.others is None else self.others.weighted_sum(weights))


class Blocks:
    """Iterate over it for the rows of each block, and `form` them before anything else is done with them."""

    def __init__(self, parts: Sequence[Unformed], share: float = 1):
        self._parts = parts
        self._rows = parts[0].rows
        device = parts[0].tensors[0].device
        bytes_of_a_row = sum(p.tensors[0].element_size() * sum(map(math.prod, p.shapes)) for p in parts)
        self._size = _block_size(self._rows, max(1, int(share * policy(device).block_bytes) // max(1, bytes_of_a_row)))
        self._space = [[p.tensors[0].new_empty(self._size, *shape) for shape in p.shapes] for p in parts]
        # A thread that formed the gradients of some rows also adds them up, to a sum of its own. If it added up a share of
        # the numbers of all rows instead, as one product does, every block would go from core to core and back: where cores do
        # not share a cache, that takes longer than the sums.
        threads = torch.get_num_threads()
        whole = self._size % threads == 0 and threads <= policy(device).most_lanes
        self._lanes = threads if whole else 1
        self._formed = slice(0, 0)

    def __iter__(self) -> Iterator[slice]:
        for start in range(0, max(1, self._rows), self._size):
            yield slice(start, min(start + self._size, self._rows))

    def space_for_sums(self) -> list[list[Tensor]]:
        """To `add_to`, and then for `sums`: (lanes, *shape) for each of a part's shapes."""
        return [[p.tensors[0].new_zeros(self._lanes, *shape) for shape in p.shapes] for p in self._parts]

    def sums(self, added: Sequence[Sequence[Tensor]]) -> list[dict[str, Tensor]]:
        """Of each part: role -> sum."""
        return [
            part.finish([total.sum(0) if self._lanes > 1 else total[0] for total in totals])
            for part, totals in zip(self._parts, added, strict=True)
        ]

    def form(self, rows: slice) -> Tensor:
        """The squared norms of the gradients of these rows over all parts; the gradients take the place of the last."""
        self._formed = slice(0, rows.stop - rows.start)
        squares = self._parts[0].tensors[0].new_zeros(self._formed.stop, dtype=torch.float64)
        for part, formed in zip(self._parts, self._all_formed(), strict=True):
            part.form(formed, *(t[rows] for t in part.tensors))
            squares += sum_of_squares(*formed).to(squares)
        return squares

    def drop(self, bad: Tensor) -> None:
        for formed in self._all_formed():
            for g in formed:
                g.masked_fill_(bad.view(-1, *[1] * (g.dim() - 1)).to(g.device), 0)

    def add_to(self, sums: Sequence[Sequence[Tensor]], weights: Tensor) -> None:
        lanes = self._lanes if self._formed.stop % self._lanes == 0 else 1
        for totals, formed in zip(sums, self._all_formed(), strict=True):
            for total, g in zip(totals, formed, strict=True):
                rows, width = g.shape[0] // lanes, total[0].numel()
                into = total[:lanes].view(lanes, 1, width)
                into.baddbmm_(weights.to(g).view(lanes, 1, rows), g.view(lanes, rows, width))

    def _all_formed(self) -> Iterator[list[Tensor]]:
        for space in self._space:
            yield [g[self._formed] for g in space]


def _block_size(rows: int, most: int) -> int:
    """All blocks alike, and a multiple of the threads, or some of these would wait: they take a row each."""
    if rows <= most:
        return max(1, rows)
    size, threads = math.ceil(rows / math.ceil(rows / most)), torch.get_num_threads()
    return size if size < threads else min(math.ceil(size / threads), most // threads) * threads
