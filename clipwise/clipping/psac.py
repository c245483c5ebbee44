"""Per-sample adaptive clipping: weight C / (||g|| + r / (||g|| + r)).

Near zero the weight tends to C, so that small gradients are not blown up as auto-s does; it peaks at ||g|| = sqrt(r) - r.
Guarantee: weight * norm < C, since the denominator exceeds the norm. Reference: Xia et al., "Differentially Private Learning with
Per-Sample Adaptive Clipping", AAAI 2023, eq. 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from clipwise import validate
from clipwise.clipping.contract import bounded, option
from clipwise.clipping.fixed import Fixed, FixedState
from clipwise.types import Decision


@dataclass(frozen=True, kw_only=True)
class Psac(Fixed):
    name = "psac"
    summary = "normalises gradients, with a weight that does not grow for small ones"
    reference = "Xia et al., Differentially Private Learning with Per-Sample Adaptive Clipping, AAAI 2023"
    adapts = "nothing"
    tune = ("r",)
    guarantee = "weight x norm < C for every norm"

    threshold: float = option(1.0, "the length that gradients are scaled to; it only rescales the learning rate")
    r: float = option(0.1, "where the weight turns over; 0.01 is used too")

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.positive("r", self.r, "give a number above 0, such as 0.1")

    def decide(self, state: FixedState, norms: Tensor, groups: Tensor | None = None) -> Decision:  # noqa: ARG002
        weights = state.threshold / (norms + self.r / (norms + self.r))
        return Decision(bounded(weights, norms, state.threshold))
