"""One hidden layer of 128 tanh units on the flattened record.

tanh rather than ReLU: bounded activations keep gradients small, so clipping costs less (Papernot et al., Tempered
Sigmoid Activations, 2021).
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from clipwise.models.architecture import ANY, Architecture, Records
from clipwise.models.tokens import refuse_tokens

HIDDEN = 128  # units; a round number, not tuned


def _build(records: Records, _: Any) -> nn.Module:
    refuse_tokens("mlp", records)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(records.shape), HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, records.classes)
    )


MLP = Architecture(
    name="mlp",
    summary=f"one hidden layer of {HIDDEN} tanh units, for records of any shape",
    records=ANY,
    build=_build,
    typical="adult",
)
