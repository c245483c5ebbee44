"""Hugging Face. `from clipwise import hf`; docs/hugging_face.md.

hf.row_losses(output, labels)   one loss a record, of a model's output and the labels
hf.PrivateTrainer               transformers.Trainer with an epsilon
hf.PrivateSFTTrainer            trl.SFTTrainer with an epsilon
hf.PrivateDPOTrainer            trl.DPOTrainer with an epsilon; a record is a pair
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clipwise.own_loss import row_losses

if TYPE_CHECKING:
    from clipwise.integrations.trainer import PrivateTrainer
    from clipwise.integrations.trl import PrivateDPOTrainer, PrivateSFTTrainer

__all__ = ["PrivateDPOTrainer", "PrivateSFTTrainer", "PrivateTrainer", "row_losses"]
_HOME = {"PrivateTrainer": "trainer", "PrivateSFTTrainer": "trl", "PrivateDPOTrainer": "trl"}


def __getattr__(name: str) -> Any:
    if name in _HOME:  # transformers and trl are loaded for who asks for them
        return getattr(import_module(f"clipwise.integrations.{_HOME[name]}"), name)
    raise AttributeError(f"module 'clipwise.hf' has no attribute {name!r}")
