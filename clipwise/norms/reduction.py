"""Does the loss combine the examples the way the engine was told?

A mean that was declared a sum (or the other way round) scales every gradient by the realised batch size, so that one
record more changes all the others' shares: the bound would not hold. The loss that `backward()` was called on is not
handed to the taps, but it stands in the call stack of the backward pass; where its last operation is a known
reduction, it is compared with what was declared. Best effort: an unknown one passes.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from torch import Tensor

_MEAN, _SUM = 1, 2  # torch's own codes
_BY_NAME = {"MeanBackward0": _MEAN, "MeanBackward1": _MEAN, "SumBackward0": _SUM, "SumBackward1": _SUM}


def contradicts(declared: str) -> str | None:
    """The reduction that the running backward pass shows, if it is not the declared one; else None."""
    root = _root()
    node = None if root is None else root.grad_fn
    if node is None:
        return None
    code: Any = _BY_NAME.get(node.name()) or getattr(node, "_saved_reduction", 0)
    found = {_MEAN: "mean", _SUM: "sum"}.get(code)
    return found if found is not None and found != declared else None


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
