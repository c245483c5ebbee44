"""Logistic regression: one linear layer on the flattened record."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from clipwise.models.architecture import ANY, Architecture, Records
from clipwise.models.tokens import refuse_tokens


def _build(records: Records, _: Any) -> nn.Module:
    refuse_tokens("linear", records)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(records.shape), records.classes))


LINEAR = Architecture(
    name="linear",
    summary="logistic regression, for records of any shape",
    records=ANY,
    build=_build,
    typical="adult",
)
