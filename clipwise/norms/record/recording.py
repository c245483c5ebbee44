"""What one forward and backward pass leaves: the nodes of the graph that catch it, and where it is collected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from clipwise.norms.kernels.kernel import Call, Part
from clipwise.norms.kernels.precision import NOTHING, exact_products
from clipwise.norms.loss import LossProof, Trial, Witness
from clipwise.norms.record.units import spread_shape

Receive = Callable[[Tensor, tuple[Tensor, ...] | None], None]  # the output gradient; what was kept, None if by the tap


class TapNode(torch.autograd.Function):
    """Identity. Takes a dummy that requires grad, so that it stands in the graph even where nothing upstream does."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, dummy: Tensor, saved: list[Tensor], receive: Receive) -> Tensor:  # noqa: ARG004
        ctx.save_for_backward(*saved)  # autograd's own version check then catches an input modified in place
        ctx.receive = receive
        ctx.mark_dirty(out)  # lets an in-place activation follow
        return out

    @staticmethod
    def backward(ctx: Any, b: Tensor) -> tuple[Any, ...]:
        ctx.receive(b, ctx.saved_tensors)
        return b if ctx.needs_input_grad[0] else None, None, None, None


class SpreadNode(torch.autograd.Function):
    """A value without rows, seen from every row (no copy); the backward hands over one gradient a row."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        dummy: Tensor,  # noqa: ARG004
        saved: list[Tensor],
        receive: Receive,
        shape: torch.Size,
    ) -> Tensor:
        ctx.save_for_backward(*saved)
        ctx.receive, ctx.rows = receive, shape[0]
        return value.expand(shape)

    @staticmethod
    def backward(ctx: Any, b: Tensor) -> tuple[Any, ...]:
        ctx.receive(b, tuple(s.expand(spread_shape(s, ctx.rows)) for s in ctx.saved_tensors))
        return None, None, None, None, None


class Tap:
    """One call's place in the graph: who waits there for the gradient of its output, and what is kept for it."""

    __slots__ = ("call", "current", "dim", "name", "saved", "used", "versions")

    def __init__(self, current: Pass, call: Call, dim: int, name: str):
        self.current, self.call, self.dim, self.name = current, call, dim, name
        self.used = False
        self.saved: tuple[Tensor, ...] = ()
        self.versions: list[int] = []

    def keep(self, saved: list[Tensor]) -> None:
        self.saved, self.versions = tuple(saved), [s._version for s in saved]

    def take(self) -> tuple[Tensor, ...]:
        """What was kept, which is let go: the user's loss may keep the graph, and the graph this tap, for long."""
        saved, self.saved = self.saved, ()
        if [s._version for s in saved] != self.versions:
            raise RuntimeError(
                f"an input of layer {self.name!r}, which is needed for the gradient, has been modified by an inplace operation; nothing was "
                "changed. Leave it as it is until loss.backward(), or change a copy of it"
            )
        return saved


def hook_on(out: Tensor, receive: Receive) -> None:
    """A tap on a value that is in the graph already: `receive` hears of its whole gradient before its node runs. A tenth of what
    a node of Python's own costs."""
    node, nr = out.grad_fn, out.output_nr
    if node is None:
        raise RuntimeError("a value without a graph has no gradient")

    def heard(gradients: tuple[Tensor | None, ...]) -> None:
        if (b := gradients[nr]) is not None:
            receive(b, None)

    node.register_prehook(heard)


def can_hook(out: Tensor) -> bool:
    """Not inside an activation checkpoint, which is to keep what a tap keeps."""
    return out.grad_fn is not None and torch._C._autograd._top_saved_tensors_default_hooks(True) is None


class Pass:
    """Everything recorded for one physical batch."""

    def __init__(self, rows: int, proof: LossProof, lengths: tuple[int, ...] = ()):
        self.rows = rows
        self.lengths = lengths  # of dimensions that were padded to the longest record of this batch
        self.proof = proof  # that judges the losses of this batch
        self.passes = 0  # judged backward passes that run now: without one the taps take nothing
        self.scale: float | None = None  # that undoes the reduction of the rows
        self.trial: Trial | None = None  # while gradients are only compared
        self.foreseen: Trial | None = None  # what the pass that runs now must bring to the taps
        self.when_done: list[
            Callable[[], None]
        ] = []  # what was learned of a pass, to be kept when the batch has come to its step
        self.looked_at: set[int] | None = None  # taps that a trial has met, by id, in a pass that had one
        self._exact_on: set[torch.device] = (
            set()
        )  # devices on which nothing was reduced when the backward pass came there
        self.inputs_need_gradients = False  # of the model, in this batch
        self.witness: Witness | None = None  # of what the loop does with the batch
        self.over = False
        self.uses: defaultdict[int, list[slice | None]] = defaultdict(list)  # parameter id -> pieces used
        self.parts: list[tuple[Call, Part]] = []
        self.shared: dict[int, tuple[nn.Parameter, Tensor]] = {}  # per-example gradients, added over several uses
        self.alone: set[int] = set()  # parameters that `parts` hold, by id
        self.received = False

    def begin(self) -> None:
        """A backward pass that was not looked at so far."""
        self.looked_at = self.foreseen = None
        self._exact_on.clear()

    def exact_products(self, device: torch.device) -> AbstractContextManager[None]:
        """As the function of that name; the settings are looked up once a pass."""
        if device in self._exact_on:
            return NOTHING
        found = exact_products(device)
        if found is NOTHING:
            self._exact_on.add(device)
        return found

    def note(self, call: Call) -> None:
        for role, p in call.params.items():
            self.uses[id(p)].append(call.pieces.get(role))

    def is_shared(self, call: Call) -> bool:
        return any([len(self.uses[id(p)]) > 1 and overlap(self.uses[id(p)]) for p in call.params.values()])

    def measured_apart(self, call: Call) -> bool:
        """Whether an earlier backward pass has taken the norm of a gradient that this (shared) call's would have to be added to."""
        return any(id(p) in self.alone for p in call.params.values())

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
