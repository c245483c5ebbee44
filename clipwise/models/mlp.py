"""One hidden layer of 128 tanh units on the flattened record.

tanh rather than ReLU: bounded activations keep gradients small, so clipping costs less (Papernot et al., Tempered
Sigmoid Activations, 2021).
"""

from __future__ import annotations

import math

from torch import nn

from clipwise.models.architecture import Architecture

HIDDEN = 128


def _build(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, classes))


MLP = Architecture("mlp", f"one hidden layer of {HIDDEN} tanh units, for records of any shape", _build)
