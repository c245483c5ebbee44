"""Per-example gradients of a few rows at a time.

Stored for all rows at once, the gradients of layers with many places (tokens) are what makes a private step large, and
every step pays for fresh memory to put them in. The inputs and output gradients that they come from are often smaller. So
these are kept instead (`Unformed`), and once the backward pass is over, `Blocks` forms the gradients of a few rows of all
such layers in room that is used again and again, measures them, and adds them up with the weights that their norms were
given, before it forms the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from clipwise.norms.kernel import Part, sum_of_squares, without_rows

BLOCK_BYTES = 24 * 2**20  # of the gradients of one block, all layers together; but one row at least
_SHARE = 1 / 8  # of it, for a layer that is formed by itself: what it gets among others, about


class Unformed:
    """g_i = b_i^T a_i for a parameter of shape (d, p), from a (rows, T, p) and b (rows, T, d), of float32 at least: the
    blocks' sums are added in that type. `others` is the part of the call's other parameters."""

    def __init__(self, role: str, a: Tensor, b: Tensor, others: Part | None):
        self.role, self.a, self.b, self.others = role, a, b, others

    @property
    def shape(self) -> tuple[int, int]:
        return self.b.shape[2], self.a.shape[2]

    @cached_property
    def squared_norms(self) -> Tensor:
        blocks = Blocks([self], _SHARE)
        squares = torch.cat([blocks.form(rows) for rows in blocks])
        return squares if self.others is None else squares + self.others.squared_norms.to(squares)

    def drop_rows(self, bad: Tensor) -> None:
        self.a, self.b = without_rows(self.a, bad), without_rows(self.b, bad)
        if self.others is not None:
            self.others.drop_rows(bad)

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        blocks = Blocks([self], _SHARE)
        [total] = sums = blocks.room_for_sums()
        for rows in blocks:
            blocks.form(rows)
            blocks.add_to(sums, weights[rows])
        return {self.role: total, **({} if self.others is None else self.others.weighted_sum(weights))}


class Blocks:
    """Iterate over it for the rows of each block, and `form` them before anything else is done with them."""

    def __init__(self, parts: Sequence[Unformed], share: float = 1):
        self._parts = parts
        self._rows = len(parts[0].b)
        bytes_of_a_row = sum(p.b.element_size() * math.prod(p.shape) for p in parts)
        most = max(1, int(share * BLOCK_BYTES) // max(1, bytes_of_a_row))
        blocks = max(1, math.ceil(self._rows / most))
        self._size = max(1, math.ceil(self._rows / blocks))  # all alike: a small last one would leave cores idle
        self._room = [p.b.new_empty(self._size, *p.shape) for p in parts]
        self._formed = slice(0, 0)

    def __iter__(self) -> Iterator[slice]:
        for start in range(0, max(1, self._rows), self._size):
            yield slice(start, min(start + self._size, self._rows))

    def room_for_sums(self) -> list[Tensor]:
        return [p.b.new_zeros(p.shape) for p in self._parts]

    def form(self, rows: slice) -> Tensor:
        """The squared norms of the gradients of these rows over all parts; the gradients take the place of the last."""
        self._formed = slice(0, rows.stop - rows.start)
        squares = self._parts[0].b.new_zeros(self._formed.stop, dtype=torch.float64)
        for part, room in zip(self._parts, self._room, strict=True):
            formed = torch.bmm(part.b[rows].mT, part.a[rows], out=room[self._formed])
            squares += sum_of_squares(formed).to(squares)
        return squares

    def drop(self, bad: Tensor) -> None:
        for room in self._room:
            room[self._formed].masked_fill_(bad.view(-1, 1, 1).to(room.device), 0)

    def add_to(self, sums: Sequence[Tensor], weights: Tensor) -> None:
        for total, room in zip(sums, self._room, strict=True):
            total.view(1, -1).addmm_(weights.to(room)[None], room[self._formed].flatten(1))
