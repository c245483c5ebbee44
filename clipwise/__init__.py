"""Clipwise: train PyTorch models under differential privacy without tuning a clipping threshold by hand.

The names below load on first use, so that `clipwise account` does not pay for importing torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from clipwise.dropin import Private, attach
    from clipwise.fixing import fix
    from clipwise.lab.tuning.runner import tune
    from clipwise.loop.fit import fit
    from clipwise.plans import Plan
    from clipwise.step import private_step
    from clipwise.training.verify import verify
    from clipwise.types import BadArgument, BudgetExhausted, ClipwiseError, LoopMisuse, Unsupported

_HOME = {
    "attach": "clipwise.dropin",
    "Private": "clipwise.dropin",
    "fix": "clipwise.fixing",
    "fit": "clipwise.loop.fit",
    "Plan": "clipwise.plans",
    "private_step": "clipwise.step",
    "tune": "clipwise.lab.tuning.runner",
    "verify": "clipwise.training.verify",
    **dict.fromkeys(("BadArgument", "BudgetExhausted", "ClipwiseError", "LoopMisuse", "Unsupported"), "clipwise.types"),
}
__all__ = [
    "BadArgument",
    "BudgetExhausted",
    "ClipwiseError",
    "LoopMisuse",
    "Plan",
    "Private",
    "Unsupported",
    "attach",
    "fit",
    "fix",
    "private_step",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'clipwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
