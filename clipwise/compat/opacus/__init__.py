"""Opacus' interface (of release 1.6) over Clipwise's own run: a script changes its import, and nothing else.

    from clipwise.compat.opacus import PrivacyEngine                                             # opacus
    from clipwise.compat.opacus.utils.batch_memory_manager import BatchMemoryManager             # opacus.utils....
    from clipwise.compat.opacus.validators import ModuleValidator                                # opacus.validators

Modules have the names that they have there. Clipping is `fixed` at max_grad_norm, noise and rate are the script's. What
would not be private as it is counted there is refused by name, with what to do instead: docs/from_opacus.md.
"""

from clipwise.compat.opacus import accountants, layers, schedulers, utils, validators
from clipwise.compat.opacus.privacy_engine import PrivacyEngine
from clipwise.compat.opacus.utils.batch_memory_manager import BatchMemoryManager
from clipwise.compat.opacus.validators import ModuleValidator

__all__ = [
    "BatchMemoryManager",
    "ModuleValidator",
    "PrivacyEngine",
    "accountants",
    "layers",
    "schedulers",
    "utils",
    "validators",
]
