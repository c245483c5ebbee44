"""What stands on `p.grad` between `backward()` and `step()`: a gradient that nobody may read or change, because it has not
been released.

There is no gradient yet: it is made by the step, from norms, weights and noise. Code that clips, scales or reads `p.grad`
in between would work on nothing and never know, so that each operation on the stand-in is refused. It takes no memory.

Guarantee: whatever a loop does to `p.grad` between the two calls, the step raises `LoopMisuse` or the operation itself
does; nothing is silently without effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from clipwise.types import LoopMisuse

_INSTEAD = (
    "optimizer.step() clips each record, adds the noise, and puts the released gradient there. Leave clip_grad_norm_ and GradScaler out, "
    "and edit or read the released gradient in a hook: optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: ...) runs after it "
    "is there and before the weights move"
)


class Unreleased(Tensor):
    """As large as its parameter, without a number in it."""

    @staticmethod
    def __new__(cls, p: Tensor) -> Unreleased:
        return Tensor._make_wrapper_subclass(cls, p.shape, dtype=p.dtype, device=p.device)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise LoopMisuse(f"p.grad was used ({function}) between loss.backward() and optimizer.step(); {_INSTEAD}")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return "<not released before optimizer.step()>"


class HeldBack:
    """The stand-ins of a model's parameters."""

    def __init__(self, parameters: Sequence[nn.Parameter], names: Mapping[int, str]):
        self._parameters, self._names = parameters, names
        self._stand_ins: list[Unreleased] = []
        self._standing = False

    def put(self) -> None:
        """A backward pass has come."""
        self._standing = True
        try:
            self._place()
        except (RuntimeError, ValueError):  # there are none yet, or the model has moved to another device or type
            self._stand_ins = [Unreleased(p) for p in self._parameters]
            self._place()

    def take(self) -> None:
        """The step has come: refuse where something else stands there by now."""
        if not self._standing:
            return
        self._standing, touched = False, []
        for p, mine in zip(self._parameters, self._stand_ins, strict=True):
            if p.grad is mine:
                p.grad = None
            else:
                touched.append(p)
        if touched:
            self._standing = True
            self.clear()
            raise LoopMisuse(
                f"p.grad of {self._names.get(id(touched[0]), '?')!r} was set or cleared (zero_grad?) between loss.backward() and "
                f"optimizer.step(); nothing was changed. Call zero_grad() before backward(); {_INSTEAD}"
            )

    def clear(self) -> None:
        if self._standing:
            self._standing = False
            for p in self._parameters:
                if type(p.grad) is Unreleased:
                    p.grad = None

    def _place(self) -> None:
        for p, stand_in in zip(self._parameters, self._stand_ins, strict=True):
            p.grad = stand_in
