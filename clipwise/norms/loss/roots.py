"""Every backward pass of the process, seen before it runs.

`Tensor.backward`, `autograd.backward` and `autograd.grad` all end in one function of torch's. It is replaced while an
engine is installed; each pass is shown to `judge`, which raises where it must not run, and gives a context to run it in.
A pass that does not come through here (from C++, say) finds the taps closed. Hooks on tensors are noted the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from clipwise.norms.loss.marks import mark_hook

Judge = Callable[
    [Sequence[Any], Sequence[Any], bool], AbstractContextManager[Any]
]  # roots, their gradients, of autograd.grad

_lock = threading.RLock()  # `unwatch` may come from the garbage collector, anywhere
_users = 0
_original: Callable[..., Any] = torch.autograd._engine_run_backward


_original_hook = Tensor.register_hook


def _register_hook(self: Tensor, hook: Callable[..., Any]) -> Any:
    """What a hook does to a gradient is not known; the walk refuses a loss that has one on its way."""
    mark_hook(self)
    return _original_hook(self, hook)  # type: ignore[no-untyped-call]


def watch(judge: Judge) -> None:
    """From now on every backward pass is shown to `judge`. As often as this is called, `unwatch` must be."""
    global _users, _original

    with _lock:
        _users += 1
        if _users > 1:
            return
        original = _original = torch.autograd._engine_run_backward

        def run(roots: Sequence[Any], gradients: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            with judge(roots, gradients, not kwargs.get("accumulate_grad", True)):
                return original(roots, gradients, *args, **kwargs)

        torch.autograd._engine_run_backward = run  # type: ignore[assignment]
        Tensor.register_hook = _register_hook  # type: ignore[method-assign]


def unwatch() -> None:
    global _users

    with _lock:
        _users -= 1
        if not _users:
            torch.autograd._engine_run_backward = _original
            Tensor.register_hook = _original_hook  # type: ignore[method-assign]


def run_unseen(*args: Any, **kwargs: Any) -> Any:
    """A pass of Clipwise's own."""
    return _original(*args, **kwargs)
