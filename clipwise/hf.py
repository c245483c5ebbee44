"""Hugging Face. `from clipwise import hf`; docs/hugging_face.md.

hf.row_losses(output, labels)   one loss a record, of a model's output and the labels
hf.PrivateTrainer               transformers.Trainer with an epsilon
"""

from typing import TYPE_CHECKING, Any

from clipwise.own_loss import row_losses

if TYPE_CHECKING:
    from clipwise.integrations.trainer import PrivateTrainer

__all__ = ["PrivateTrainer", "row_losses"]


def __getattr__(name: str) -> Any:
    if name == "PrivateTrainer":  # transformers is loaded for who asks for it
        from clipwise.integrations.trainer import PrivateTrainer

        return PrivateTrainer
    raise AttributeError(f"module 'clipwise.hf' has no attribute {name!r}")
