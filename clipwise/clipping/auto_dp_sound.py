"""Auto DP-SGD made sound: the threshold follows the mean gradient norm, through a released, bounded statistic.

Auto DP-SGD as published multiplies every gradient by W and takes the noise scale from the batch itself: nothing bounds a record's influence. Here
weights are W min(1, s / ||g||), bounded by W s, and s follows the released sum of min(||g||, kappa s) / (kappa s), which lies in [0, 1]:

    s <- clamp(kappa s U / B), at most kappa times larger in a step.

Guarantee: weight * norm <= W s; one record moves the statistic by at most 1. Reference: the idea of Auto DP-SGD (paper 000); the repair is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clipwise import validate
from clipwise.clipping.contract import Context, Method, bounded, option
from clipwise.clipping.fixed import FixedState
from clipwise.types import BadArgument, Decision, Released, SideQuery


@dataclass(frozen=True, kw_only=True)
class AutoDpSound(Method):
    name = "auto-dp-sound"
    summary = "the threshold follows the mean gradient norm, released with noise"
    reference = "after Auto DP-SGD, with a bounded and paid-for release of the mean norm"
    adapts = "the threshold"
    guarantee = "weight x norm <= W s; one record moves the released mean norm by at most 1"

    threshold: float = option(1.0, "s, where it starts")
    scale: float = option(1.0, "W, the scale factor of the paper; it folds into the learning rate")
    growth: float = option(2.0, "kappa: norms are measured up to kappa s, and s grows at most so much in a step")
    mean_noise: float = option(10.0, "noise multiplier of the released mean norm")
    lowest: float = option(1e-6, "s is not taken below this")
    highest: float = option(1e6, "nor above this")

    def __post_init__(self) -> None:
        for name in ("threshold", "scale", "mean_noise", "lowest", "highest"):
            validate.positive(name, getattr(self, name))
        if not (self.growth > 1 and self.growth < float("inf")):
            raise BadArgument(f"growth={self.growth!r} must be above 1; give a factor such as 2")
        if not self.lowest <= self.threshold <= self.highest:
            raise BadArgument(
                f"threshold={self.threshold!r} must lie between lowest={self.lowest!r} and highest={self.highest!r}"
            )

    def side_queries(self, context: Context) -> tuple[SideQuery, ...]:  # noqa: ARG002
        return (SideQuery("mean_norm", 1, 1.0, float(self.mean_noise)),)

    def init(self, context: Context) -> FixedState:  # noqa: ARG002
        return FixedState(float(self.threshold))

    def l2_bound(self, state: FixedState) -> float:
        return self.scale * state.threshold

    def decide(self, state: FixedState, norms: Tensor, groups: Tensor | None = None) -> Decision:  # noqa: ARG002
        reach = self.growth * state.threshold
        measured = torch.where(norms.isfinite(), norms.clamp(max=reach) / reach, 0.0)
        weights = bounded(torch.full_like(norms, self.scale), norms, self.l2_bound(state))
        return Decision(weights, {"mean_norm": measured[:, None]})

    def update(self, state: FixedState, released: Released, context: Context, step: int) -> FixedState:  # noqa: ARG002
        mean = self.growth * state.threshold * float(released.sides["mean_norm"]) / context.expected_batch_size
        mean = min(max(mean, state.threshold / self.growth), state.threshold * self.growth)
        return FixedState(min(max(mean, self.lowest), self.highest))
