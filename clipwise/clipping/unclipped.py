"""No clipping: training without privacy, for comparison. No bound holds and epsilon is infinite.

It is asked for by epsilon=inf, never by name, so that it is in no registry: nobody gets it by a slip of the pen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clipwise.clipping.contract import Context, Method
from clipwise.types import Decision


class Nothing(NamedTuple):
    pass


@dataclass(frozen=True, kw_only=True)
class Unclipped(Method):
    name = "none"
    summary = "No clipping, no noise: training without privacy."
    reference = "no clipping"
    guarantee = "none"
    sound = False

    def init(self, context: Context) -> Nothing:  # noqa: ARG002
        return Nothing()

    def l2_bound(self, state: Nothing) -> float:  # noqa: ARG002
        return torch.inf

    def decide(self, state: Nothing, norms: Tensor, groups: Tensor | None = None) -> Decision:  # noqa: ARG002
        return Decision(torch.ones_like(norms))

    def noise_scale(self, state: Nothing, sides: Mapping[str, Tensor], context: Context) -> float:  # noqa: ARG002
        return 0.0
