"""DP-SGD with a fixed threshold C: weight min(1, C / ||g||).

Guarantee: weight * norm <= C. Reference: Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm
1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from clipwise import validate
from clipwise.clipping.contract import Context, Method, bounded, option
from clipwise.types import Decision


class FixedState(NamedTuple):
    threshold: float


@dataclass(frozen=True, kw_only=True)
class Fixed(Method):
    name = "fixed"
    summary = "one threshold for the whole run, chosen by hand"
    reference = "Abadi et al., Deep Learning with Differential Privacy, CCS 2016"
    adapts = "nothing"
    tune: ClassVar[tuple[str, ...]] = ("threshold",)
    guarantee = "weight x norm <= C, which is chosen in advance"

    threshold: float = option(1.0, "the largest l2 norm a single example's gradient may contribute")

    def __post_init__(self) -> None:
        validate.positive("threshold", self.threshold, "give a finite clipping norm above 0, such as 1.0")

    def init(self, context: Context) -> FixedState:  # noqa: ARG002
        return FixedState(threshold=float(self.threshold))

    def l2_bound(self, state: FixedState) -> float:
        return state.threshold

    def decide(self, state: FixedState, norms: Tensor, groups: Tensor | None = None) -> Decision:  # noqa: ARG002
        return Decision(bounded(torch.ones_like(norms), norms, state.threshold))
