"""Logistic regression: one linear layer on the flattened record."""

from __future__ import annotations

import math

from torch import nn

from clipwise.models.architecture import Architecture


def _build(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


LINEAR = Architecture("linear", "logistic regression, for records of any shape", _build)
