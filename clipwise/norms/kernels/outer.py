"""Linear layers at one place: g_i = b_i a_i^T, and b_i for the bias. Nothing is formed: |g_i|^2 = |b_i|^2 (|a_i|^2 + 1), and the
weighted sum is the ordinary weight gradient with one side scaled by row.

Each of these products is small, and takes longer to ask for than to compute. So all such layers of a step are measured
together, and layers of one shape whose tensors are small are laid on a stack and measured and summed as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from clipwise.norms.kernels.kernel import Call, lengths, without_rows

FEWEST_ALIKE = 3  # layers of one shape that are worth a stack: chosen, not measured
# Numbers of a layer's inputs and output gradients, above which it is not copied to a stack: 32 KB, which six operations' overhead
# (about 3 us each, by a profile of small steps) should pay for. Chosen, not measured.
STACKED_NUMBERS = 8192

Finish = Callable[[Call, Tensor, Tensor, Tensor, Tensor], dict[str, Tensor]]


class Outer:
    """Of one layer. `finish(call, weights, a, b, per-example gradients of the bias)` makes the weighted sums; `stacks`: whether it
    makes no more of them than `sum_i w_i b_i a_i^T` and `sum_i w_i b_i`, as they are."""

    __slots__ = ("_finish", "a", "b", "bias", "call", "stacks", "weight")

    def __init__(self, call: Call, a: Tensor, b: Tensor, finish: Finish, *, stacks: bool = False):
        self.call, self.a, self.b, self._finish, self.stacks = call, a, b, finish, stacks
        self.weight, self.bias = "weight" in call.params, "bias" in call.params

    def with_tensors(self, a: Tensor, b: Tensor) -> Outer:
        return Outer(self.call, a, b, self._finish, stacks=self.stacks)

    @property
    def squared_norms(self) -> Tensor:
        return OuterParts([self]).squares()

    def drop_rows(self, bad: Tensor) -> None:
        self.a, self.b = without_rows(self.a, bad), without_rows(self.b, bad)

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        return self._finish(self.call, weights, self.a, self.b, self.b)


class _Stack:
    """Layers alike: (layers, rows, numbers)."""

    def __init__(self, parts: Sequence[Outer]):
        self.parts = parts
        self.a, self.b = torch.stack([part.a for part in parts]), torch.stack([part.b for part in parts])

    def squares(self) -> Tensor:
        first, of_b = self.parts[0], lengths(self.b)
        of_a = lengths(self.a) if first.weight else torch.zeros_like(of_b)
        return _squares(of_a.double(), of_b.double(), [first.bias], max(self.a.shape[2], self.b.shape[2]), self.b.dtype)

    def drop_rows(self, bad: Tensor) -> None:
        bad = bad.view(1, -1, 1)
        self.a, self.b = self.a.masked_fill(bad, 0), self.b.masked_fill(bad, 0)

    def sums(self, weights: Tensor) -> Iterator[tuple[Call, Mapping[str, Tensor]]]:
        first, column = self.parts[0], weights.unsqueeze(1)
        of_role: dict[str, Sequence[Tensor]] = {}
        if first.weight:
            if self.b.shape[2] > self.a.shape[2]:
                of_role["weight"] = torch.bmm(self.b.mT, self.a * column).unbind(0)
            else:
                of_role["weight"] = torch.bmm((self.b * column).mT, self.a).unbind(0)
        if first.bias:
            of_role["bias"] = (weights @ self.b).unbind(0)
        for i, part in enumerate(self.parts):
            yield part.call, {role: each[i] for role, each in of_role.items()}


class OuterParts:
    """Of one step, of one type and device, with as many rows."""

    def __init__(self, parts: Sequence[Outer]):
        self.all = parts
        self._single: list[Outer] = []
        self._stacks: list[_Stack] = []
        if len(parts) < FEWEST_ALIKE:
            self._single = list(parts)
            return
        alike: defaultdict[Hashable, list[Outer]] = defaultdict(list)
        for part in parts:
            small = part.stacks and part.a.numel() + part.b.numel() <= STACKED_NUMBERS
            alike[(part.a.shape, part.b.shape, part.weight, part.bias) if small else id(part)].append(part)
        for group in alike.values():
            if len(group) < FEWEST_ALIKE:
                self._single += group
            else:
                self._stacks.append(_Stack(group))

    def squares(self) -> Tensor:
        """(rows,), in float64, over all parts."""
        found = [stack.squares() for stack in self._stacks]
        if self._single:
            found.append(self._squares_of_single())
        total = found[0]
        for more in found[1:]:
            total += more
        return total

    def _squares_of_single(self) -> Tensor:
        parts = self._single
        of_b = [lengths(part.b) for part in parts]
        of_a = [lengths(part.a) if part.weight else torch.zeros_like(b) for part, b in zip(parts, of_b, strict=True)]
        both = torch.stack([*of_a, *of_b]).double()
        biases = [part.bias for part in parts]
        widest = max(max(part.a.shape[1], part.b.shape[1]) for part in parts)
        return _squares(both[: len(parts)], both[len(parts) :], biases, widest, parts[0].b.dtype)

    def drop_rows(self, bad: Tensor) -> None:
        for part in self._single:
            part.drop_rows(bad)
        for stack in self._stacks:
            stack.drop_rows(bad)

    def sums(self, weights: Tensor) -> Iterator[tuple[Call, Mapping[str, Tensor]]]:
        for part in self._single:
            yield part.call, part.weighted_sum(weights)
        for stack in self._stacks:
            yield from stack.sums(weights)


def _squares(of_a: Tensor, of_b: Tensor, biases: Sequence[bool], widest: int, dtype: torch.dtype) -> Tensor:
    """|b|^2 (|a|^2 + 1), added up, of lengths (layers, rows) in float64, whose memory is used; never less for squares that underflow,
    of the widest."""
    lost = widest * torch.finfo(dtype).smallest_normal
    of_a, of_b = of_a.square_(), of_b.square_().add_(lost)
    of_a += 1.0 + lost if all(biases) else of_a.new_tensor(biases).unsqueeze(1) + lost
    return of_a.mul_(of_b).sum(0)
