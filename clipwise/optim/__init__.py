"""The optimizer stage: released gradients into torch.optim (stage 6 of the step)."""

from clipwise.optim.adam_wosm import AdamWOSM
from clipwise.optim.apply import set_learning_rate, write_gradients

__all__ = ["AdamWOSM", "set_learning_rate", "write_gradients"]
