"""The threshold follows a quantile of the gradient norms, by a geometric update on a noisy count.

Releases sum_i (1[||g_i|| <= C] - 1/2): shifted bits, so that one record moves it by 1/2 under add/remove, whatever the batch. The share of
unclipped gradients is then count / B + 1/2, clamped to [0, 1], and C <- C exp(-rate (share - target)).
Guarantee: weight * norm <= C. Reference: Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from clipwise import validate
from clipwise.clipping.contract import Context, Method, bounded, option
from clipwise.clipping.fixed import FixedState
from clipwise.types import BadArgument, Decision, Released, SideQuery


@dataclass(frozen=True, kw_only=True)
class Quantile(Method):
    name = "quantile"
    summary = "the threshold follows a quantile of the gradient norms"
    reference = "Andrew et al., Differentially Private Learning with Adaptive Clipping, NeurIPS 2021"
    adapts = "the threshold"
    tune = ("target",)
    guarantee = "weight x norm <= C; one record moves the released count by at most 1/2"

    threshold: float = option(0.1, "C, where it starts")
    target: float = option(0.5, "the share of gradients to leave whole")
    rate: float = option(0.2, "how fast the threshold moves")
    count_std: float = option(0.0, "std of the noise on the count; 0 takes a twentieth of the expected batch size")
    lowest: float = option(1e-6, "the threshold is not taken below this")
    highest: float = option(1e6, "nor above this")

    def __post_init__(self) -> None:
        for name in ("threshold", "rate", "lowest", "highest"):
            validate.positive(name, getattr(self, name))
        validate.non_negative("count_std", self.count_std)
        validate.probability("target", self.target, one_allowed=False, remedy="give a share such as 0.5")
        if not self.lowest <= self.threshold <= self.highest:
            raise BadArgument(
                f"threshold={self.threshold!r} must lie between lowest={self.lowest!r} and highest={self.highest!r}"
            )

    def side_queries(self, context: Context) -> tuple[SideQuery, ...]:
        return (SideQuery("below", 1, 0.5, 2 * (self.count_std or context.expected_batch_size / 20)),)

    def init(self, context: Context) -> FixedState:  # noqa: ARG002
        return FixedState(float(self.threshold))

    def l2_bound(self, state: FixedState) -> float:
        return state.threshold

    def decide(self, state: FixedState, norms: Tensor, groups: Tensor | None = None) -> Decision:  # noqa: ARG002
        below = (norms <= state.threshold).to(norms.dtype) - 0.5
        return Decision(bounded(torch.ones_like(norms), norms, state.threshold), {"below": below[:, None]})

    def update(self, state: FixedState, released: Released, context: Context, step: int) -> FixedState:  # noqa: ARG002
        share = float(released.sides["below"]) / context.expected_batch_size + 0.5
        moved = state.threshold * math.exp(-self.rate * (min(1.0, max(0.0, share)) - self.target))
        return FixedState(min(max(moved, self.lowest), self.highest))
