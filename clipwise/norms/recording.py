"""What one forward and backward pass leaves: the nodes of the graph that catch it, and where it is collected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from clipwise.norms.kernel import Call, Part
from clipwise.norms.loss import LossProof, Trial, Witness
from clipwise.norms.units import spread_shape


class TapNode(torch.autograd.Function):
    """Identity. Takes a dummy that requires grad, so that it stands in the graph even where nothing upstream does."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, dummy: Tensor, saved: list[Tensor], receive: Callable[..., Any]) -> Tensor:  # noqa: ARG004
        ctx.save_for_backward(*saved)  # autograd's own version check then catches an input modified in place
        ctx.receive = receive
        ctx.mark_dirty(out)  # lets an in-place activation follow
        return out

    @staticmethod
    def backward(ctx: Any, b: Tensor) -> tuple[Any, ...]:
        ctx.receive(ctx.saved_tensors, b)
        return b if ctx.needs_input_grad[0] else None, None, None, None


class SpreadNode(torch.autograd.Function):
    """A value without rows, seen from every row (no copy); the backward hands over one gradient a row."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        dummy: Tensor,  # noqa: ARG004
        saved: list[Tensor],
        receive: Callable[..., Any],
        shape: torch.Size,
    ) -> Tensor:
        ctx.save_for_backward(*saved)
        ctx.receive, ctx.rows = receive, shape[0]
        return value.expand(shape)

    @staticmethod
    def backward(ctx: Any, b: Tensor) -> tuple[Any, ...]:
        ctx.receive(tuple(s.expand(spread_shape(s, ctx.rows)) for s in ctx.saved_tensors), b)
        return None, None, None, None, None


class Pass:
    """Everything recorded for one physical batch."""

    def __init__(self, rows: int, proof: LossProof, lengths: tuple[int, ...] = ()):
        self.rows = rows
        self.lengths = lengths  # of dimensions that were padded to the longest record of this batch
        self.proof = proof  # that judges the losses of this batch
        self.passes = 0  # judged backward passes that run now: without one the taps take nothing
        self.scale: float | None = None  # that undoes the reduction of the rows
        self.trial: Trial | None = None  # while gradients are only compared
        self.witness: Witness | None = None  # of what the loop does with the batch
        self.over = False
        self.uses: defaultdict[int, list[slice | None]] = defaultdict(list)  # parameter id -> pieces used
        self.parts: list[tuple[Call, Part]] = []
        self.shared: dict[int, tuple[nn.Parameter, Tensor]] = {}  # per-example gradients, added over several uses
        self.alone: set[int] = set()  # parameters that `parts` hold, by id
        self.received = False

    def note(self, call: Call) -> None:
        for role, p in call.params.items():
            self.uses[id(p)].append(call.pieces.get(role))

    def is_shared(self, call: Call) -> bool:
        return any(overlap(self.uses[id(p)]) for p in call.params.values())

    def measured_apart(self, call: Call) -> bool:
        """Whether an earlier backward pass has taken the norm of a gradient that this call's would have to be added to."""
        return self.is_shared(call) and any(id(p) in self.alone for p in call.params.values())

    def add_shared(self, call: Call, grads: Mapping[str, Tensor]) -> None:
        for role, g in grads.items():
            p = call.params[role]
            total = self.shared[id(p)][1] if id(p) in self.shared else g.new_zeros(self.rows, *p.shape)
            piece = call.pieces.get(role)
            total[:, slice(None) if piece is None else piece] += g
            self.shared[id(p)] = (p, total)


def overlap(pieces: list[slice | None]) -> bool:
    if len(pieces) < 2:
        return False
    spans = sorted((0, float("inf")) if s is None else (s.start or 0, s.stop) for s in pieces)
    return any(first[1] > second[0] for first, second in pairwise(spans))
