"""Physical batches that wait to be measured together.

Of a batch that is split into many small parts, a part's norms, weights and sums take longer to ask for than to compute. Where a part
left nothing but inputs and output gradients of linear layers at one place (outer.py), these are kept until the logical batch is
over, or until `deferred_bytes` of the device's policy are, and then measured and summed as one batch.

Guarantee: what is measured are the rows of all parts, one after the other, each the gradient of its own loss. What is kept is a
copy, because a loop may use the memory of its batch again. It is private, and nothing of it is left once it was taken or dropped.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from clipwise.devices import policy
from clipwise.norms.kernels.kernel import Call
from clipwise.norms.kernels.outer import Outer
from clipwise.norms.record.plain import PlainTape
from clipwise.norms.record.tape import Tape

AnyTape = Tape | PlainTape
Groups = Tensor | None  # of a tape's rows


class _Part(NamedTuple):
    layers: list[tuple[Tensor, Tensor]]  # inputs and output gradients
    groups: Groups
    rows: int


class Deferred:
    """The parts of one logical batch."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._like: Tape | None = None  # the first one's, used up: of these layers all are
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def drop(self) -> None:
        self._parts, self._like, self._bytes = [], None, 0

    def keep(self, tape: AnyTape, groups: Groups) -> bool:
        """Whether the tape was kept, and is used up."""
        if not isinstance(tape, Tape) or (layers := tape.outer_alone) is None:
            return False
        size = sum([part.a.nbytes + part.b.nbytes for part in layers])
        if self._bytes + size > policy(layers[0].b.device).deferred_bytes:
            return False
        return self._add(tape, layers, groups, size)

    def _add(self, tape: Tape, layers: list[Outer], groups: Groups, size: int) -> bool:
        if self._like is None:
            self._like = tape
        elif _kinds(self._like.outer_alone) != _kinds(layers):
            return False
        # Of the loss's mean over its rows nothing is left: what is measured and what is summed has the scale in it.
        kept = [(part.a.clone(), part.b * tape.scale) for part in layers]
        self._parts.append(_Part(kept, groups, tape.rows))
        self._bytes += size
        return True

    def take(self, tape: AnyTape, groups: Groups) -> list[tuple[AnyTape, Groups]]:
        """What was kept and this tape: together, where they are of the same layers."""
        if not self:
            return [(tape, groups)]
        alike = (
            isinstance(tape, Tape) and (layers := tape.outer_alone) is not None and self._add(tape, layers, groups, 0)
        )
        return self.rest() if alike else [*self.rest(), (tape, groups)]

    def rest(self) -> list[tuple[AnyTape, Groups]]:
        """What was kept, alone: one tape, or none."""
        joined: list[tuple[AnyTape, Groups]] = [self._joined()] if self else []
        self.drop()
        return joined

    def _joined(self) -> tuple[Tape, Groups]:
        if self._like is None:
            raise RuntimeError("nothing was kept that could be joined")
        columns = zip(*(part.layers for part in self._parts), strict=True)
        sides = [tuple(torch.cat(side) for side in zip(*column, strict=True)) for column in columns]
        whole = self._like.with_outer(sides, sum(part.rows for part in self._parts))
        groups = [part.groups for part in self._parts if part.groups is not None]
        return whole, torch.cat(groups) if groups else None


def _kinds(layers: list[Outer] | None) -> list[Hashable]:
    return [
        (part.a.shape[1:], part.b.shape[1:], part.a.dtype, part.b.dtype, part.b.device, _of_call(part.call))
        for part in layers or ()
    ]


def _of_call(call: Call) -> Hashable:
    return (
        id(call.kernel),
        call.config,
        tuple([(role, id(p), str(call.pieces.get(role))) for role, p in call.params.items()]),
    )
