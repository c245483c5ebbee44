"""The optimizer stage: released gradients into torch.optim (stage 6 of the step)."""

from clipwise.optim.adam_wosm import AdamWOSM
from clipwise.optim.apply import hand_over
from clipwise.optim.averaging import WeightAverage, check_decay

__all__ = ["AdamWOSM", "WeightAverage", "check_decay", "hand_over"]
