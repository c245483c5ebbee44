"""Every backward pass of the process, seen before it runs.

`Tensor.backward`, `autograd.backward` and `autograd.grad` all end in one function of torch's. It is replaced while an
engine is installed; each pass is shown to `judge`, which raises where it must not run, and gives a context to run it in.
A pass that does not come through here (from C++, say) finds the taps closed. Hooks on tensors are noted the same way; those
on nodes of the graph (`grad_fn.register_hook`) may look on, and a private pass in which one changes a gradient is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from clipwise.norms.loss.marks import mark_hook
from clipwise.types import LoopMisuse

OF_GRAD = (
    "This was a call of torch.autograd.grad: gradients that are not trained on (adversarial examples, pictures) belong into a block of "
    "private.outside(); a gradient penalty would differentiate through clipping: instead of one, clamp the weights after optimizer.step()"
)
Judge = Callable[
    [Sequence[Any], Sequence[Any], bool], AbstractContextManager[Any]
]  # roots, their gradients, of autograd.grad

_lock = threading.RLock()  # `unwatch` may come from the garbage collector, anywhere
_users = 0
_original: Callable[..., Any] = torch.autograd._engine_run_backward


_original_hook = Tensor.register_hook
_original_node_hook = torch.autograd.Function._register_hook  # where hooks on nodes of all kinds end, before and after
# The taps, and torch's hooks on modules, which `Members` and the walk know of.
_KNOWN_HOOKS = ("clipwise.norms.record.recording", "torch.utils.hooks")
_open: list[Any] = []  # batches that a pass may reach now


class Opened:
    """While a pass runs that may reach the taps of these batches."""

    __slots__ = ("_batches",)

    def __init__(self, batches: Collection[Any]):
        self._batches = batches

    def __enter__(self) -> None:
        for batch in self._batches:
            batch.passes += 1
            _open.append(batch)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for batch in self._batches:
            batch.passes -= 1
            if kind is not None:
                batch.when_done.clear()
            _open.remove(batch)


def _register_hook(self: Tensor, hook: Callable[..., Any]) -> Any:
    """What a hook does to a gradient is not known; the walk refuses a loss that has one on its way."""
    mark_hook(self)
    return _original_hook(self, hook)  # type: ignore[no-untyped-call]


def _register_node_hook(hooks: Any, hook: Callable[..., Any]) -> Any:
    known = getattr(hook, "__module__", "") in _KNOWN_HOOKS
    return _original_node_hook(hooks, hook if known else _looking_on(hook))  # type: ignore[no-untyped-call]


def _looking_on(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, which a private pass does not let change a gradient."""

    def looks(*gradients: tuple[Tensor | None, ...]) -> Any:
        before = [(g, g._version) for some in gradients for g in some or () if g is not None]
        changed = hook(*gradients)
        if _open and (changed is not None or any(g._version != version for g, version in before)):
            for batch in _open:
                batch.received = False  # whatever was recorded: the step will refuse it
            raise LoopMisuse(
                "a hook on a node of the graph (grad_fn.register_hook or register_prehook) changed a gradient of a private batch, and what it "
                "does to other rows cannot be told; nothing was changed. Let it look on and return None, or put what it does into the loss"
            )
        return changed

    return looks


def watch(judge: Judge) -> None:
    """From now on every backward pass is shown to `judge`. As often as this is called, `unwatch` must be."""
    global _users, _original

    with _lock:
        _users += 1
        if _users > 1:
            return
        original = _original = torch.autograd._engine_run_backward

        def run(roots: Sequence[Any], gradients: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            of_grad = not kwargs.get("accumulate_grad", True)
            with judge(roots, gradients, of_grad):
                try:
                    return original(roots, gradients, *args, **kwargs)
                except RuntimeError as error:
                    if not (of_grad and _open and "used in the graph" in str(error)):
                        raise
                    raise LoopMisuse(
                        f"no gradient of a parameter is there before optimizer.step(). {OF_GRAD}"
                    ) from error

        torch.autograd._engine_run_backward = run  # type: ignore[assignment]
        Tensor.register_hook = _register_hook  # type: ignore[method-assign]
        torch.autograd.Function._register_hook = staticmethod(_register_node_hook)  # type: ignore[method-assign]


def unwatch() -> None:
    global _users

    with _lock:
        _users -= 1
        if not _users:
            torch.autograd._engine_run_backward = _original
            Tensor.register_hook = _original_hook  # type: ignore[method-assign]
            del torch.autograd.Function._register_hook  # and torch's own, of its base, is there again


def gradients_of(scalar: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """As `torch.autograd.grad` of a graph that is kept, for values of Clipwise's own; None for what has no part in it."""
    found: tuple[Tensor | None, ...] = run_unseen(
        (scalar,), (torch.ones_like(scalar),), True, False, tuple(inputs), allow_unreachable=True, accumulate_grad=False
    )
    return found


def run_unseen(*args: Any, **kwargs: Any) -> Any:
    """A pass of Clipwise's own."""
    return _original(*args, **kwargs)
