"""Clipwise: train PyTorch models under differential privacy without tuning a clipping threshold by hand.

The names below load on first use, so that `clipwise account` does not pay for importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from clipwise import hf as hf
    from clipwise import lightning as lightning
    from clipwise import losses as losses
    from clipwise.checking import check
    from clipwise.dropin import Private, attach
    from clipwise.estimators import PrivateClassifier, PrivateRegressor
    from clipwise.fixing import fix
    from clipwise.forecast import plan
    from clipwise.guards import detach
    from clipwise.lab.tuning.runner import tune
    from clipwise.loop.fit import fit
    from clipwise.mechanism import Mechanism, Performance
    from clipwise.plans import Plan
    from clipwise.run import Run
    from clipwise.sampling import pad_to
    from clipwise.step import private_step
    from clipwise.training.trained import TrainedModel, load
    from clipwise.training.verify import verify
    from clipwise.types import BadArgument, BudgetExhausted, ClipwiseError, LoopMisuse, Unsupported

# Each public name and the module that it lives in; a module's own name stands for the module itself.
_HOME = {
    "BadArgument": "clipwise.types",
    "BudgetExhausted": "clipwise.types",
    "ClipwiseError": "clipwise.types",
    "LoopMisuse": "clipwise.types",
    "Mechanism": "clipwise.mechanism",
    "Performance": "clipwise.mechanism",
    "Plan": "clipwise.plans",
    "Private": "clipwise.dropin",
    "PrivateClassifier": "clipwise.estimators",
    "PrivateRegressor": "clipwise.estimators",
    "Run": "clipwise.run",
    "TrainedModel": "clipwise.training.trained",
    "Unsupported": "clipwise.types",
    "attach": "clipwise.dropin",
    "check": "clipwise.checking",
    "detach": "clipwise.guards",
    "fit": "clipwise.loop.fit",
    "fix": "clipwise.fixing",
    "hf": "clipwise.hf",
    "lightning": "clipwise.lightning",
    "load": "clipwise.training.trained",
    "losses": "clipwise.losses",
    "pad_to": "clipwise.sampling",
    "plan": "clipwise.forecast",
    "private_step": "clipwise.step",
    "tune": "clipwise.lab.tuning.runner",
    "verify": "clipwise.training.verify",
}
__all__ = [
    "BadArgument",
    "BudgetExhausted",
    "ClipwiseError",
    "LoopMisuse",
    "Mechanism",
    "Performance",
    "Plan",
    "Private",
    "PrivateClassifier",
    "PrivateRegressor",
    "Run",
    "TrainedModel",
    "Unsupported",
    "attach",
    "check",
    "detach",
    "fit",
    "fix",
    "hf",
    "lightning",
    "load",
    "losses",
    "pad_to",
    "plan",
    "private_step",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'clipwise' has no attribute {name!r}")
    home = import_module(_HOME[name])
    return home if home.__name__ == f"clipwise.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    """The public names alone; what is loaded, and how, is nobody's concern."""
    return [*__all__, "__version__"]
