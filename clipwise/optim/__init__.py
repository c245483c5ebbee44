"""The optimizer stage: released gradients into torch.optim (stage 6 of the step)."""

from clipwise.optim.adam_wosm import AdamWOSM
from clipwise.optim.apply import hand_over

__all__ = ["AdamWOSM", "hand_over"]
