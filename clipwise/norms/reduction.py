"""Does the loss combine the examples the way the engine was told?

A mean that was declared a sum (or the other way round) scales every gradient by the realised batch size, so that one
record more changes all the others' shares: the bound would not hold. The loss that `backward()` was called on is not
handed to the taps, but it stands in the call stack of the backward pass; where its last operation is a known
reduction, it is compared with what was declared. A function of the reduced loss (its root, its logarithm) makes each
example's gradient depend on all the others' losses, and is refused. Best effort: what is not known passes.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from torch import Tensor

_MEAN, _SUM = 1, 2  # torch's own codes
_BY_NAME = {"MeanBackward0": _MEAN, "MeanBackward1": _MEAN, "SumBackward0": _SUM, "SumBackward1": _SUM}


# Of one number: what keeps examples apart, and what does not.
_LINEAR = ("AddBackward0", "SubBackward0", "MulBackward0", "DivBackward0", "NegBackward0", "ToCopyBackward0")
_NOT_LINEAR = ("Sqrt", "Rsqrt", "Log", "Log2", "Log10", "Log1P", "Exp", "Pow", "Clamp", "ClampMin", "ClampMax", "Abs", "Sigmoid", "Tanh", "Relu", "Reciprocal")  # fmt: skip


def contradicts(declared: str) -> str | None:
    """The reduction that the running backward pass shows, if it is not the declared one; else None."""
    root = _root()
    node = None if root is None else root.grad_fn
    if node is None:
        return None
    code: Any = _BY_NAME.get(node.name()) or getattr(node, "_saved_reduction", 0)
    found = {_MEAN: "mean", _SUM: "sum"}.get(code)
    return found if found is not None and found != declared else None


def not_linear() -> str | None:
    """The name of a function that the running backward pass shows to have been taken of the reduced loss; else None."""
    root = _root()
    waiting = [root.grad_fn] if root is not None and root.dim() == 0 else []
    for node in waiting:  # grows; all are operations on one number each
        if node is None:
            continue
        name = node.name().removesuffix("0").removesuffix("1").removesuffix("Backward")
        if name in _NOT_LINEAR:
            return name.lower()
        if node.name() in _LINEAR:
            if name in ("Mul", "Div") and all(following is not None for following, _ in node.next_functions):
                return "a product or quotient of two losses"
            waiting += [following for following, _ in node.next_functions]
    return None


def _root() -> Tensor | None:
    """The one tensor whose backward pass is running in this thread, or (on a device's thread) in the main one."""
    frames: list[FrameType | None] = [sys._getframe(1)]
    main = threading.main_thread().ident
    if main is not None and main != threading.get_ident():
        frames.append(sys._current_frames().get(main))
    for start in frames:
        frame: FrameType | None = start
        while frame is not None:
            if frame.f_code.co_name == "_engine_run_backward":
                outputs = frame.f_locals.get("t_outputs", ())
                return outputs[0] if len(outputs) == 1 and isinstance(outputs[0], Tensor) else None
            frame = frame.f_back
    return None
