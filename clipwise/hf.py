"""Hugging Face: losses by record of its models. `from clipwise import hf`; docs/hugging_face.md.

hf.row_losses(output, labels)   one loss a record, of a model's output and the labels
"""

from clipwise.own_loss import row_losses

__all__ = ["row_losses"]
