"""Lightning. `from clipwise.lightning import PrivateCallback`; docs/lightning.md.

PrivateCallback   Trainer(callbacks=[PrivateCallback(epsilon=3)]) fits privately
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clipwise.integrations.lightning import PrivateCallback

__all__ = ["PrivateCallback"]


def __getattr__(name: str) -> Any:
    if name == "PrivateCallback":  # lightning is loaded for who asks for it
        from clipwise.integrations.lightning import PrivateCallback

        return PrivateCallback
    raise AttributeError(f"module 'clipwise.lightning' has no attribute {name!r}")
