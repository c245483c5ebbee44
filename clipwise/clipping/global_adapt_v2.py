"""DP-SGD-Global-Adapt-V2: global scaling below an upper threshold z_e that decays stepwise, per-sample normalisation above it.

    weight = c0 / z_e                          for ||g|| <= z_e
           = c0 / (||g|| + w / (||g|| + w))    above             z_e = z_0 R^floor(e / K)

Guarantee: weight * norm <= c0 for both branches, also once z_e < c0, where small gradients are enlarged. z_e is public, so that nothing beside the
gradient is released. The variants -L, -T and -S of the paper are noise schedules. Reference: DP-SGD-Global-Adapt-V2-S (paper 001), Algorithm 1, with
R and K of z_e apart from those of the noise (the paper re-uses them), and w, which it never states, 0.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clipwise import validate
from clipwise.clipping.contract import Context, Method, bounded, option
from clipwise.clipping.global_scaling import GlobalState
from clipwise.schedules import make_schedule
from clipwise.types import Decision, Released

SMALLEST = 1e-12  # z_e is not taken below this


@dataclass(frozen=True, kw_only=True)
class GlobalAdaptV2(Method):
    name = "global-adapt-v2"
    summary = "global scaling up to a bound that decays stepwise, normalisation above it"
    reference = "Chilukoti et al., DP-SGD-Global-Adapt-V2-S: Triad Improvements of Privacy, Accuracy and Fairness via Step Decay, 2025"
    adapts = "the upper bound z, by a public schedule"
    tune = ("upper", "upper_schedule")
    guarantee = "weight x norm <= c0 for any z, and z depends on no data"

    threshold: float = option(1.0, "c0, the largest contribution of one example")
    upper: float = option(3.0, "z_0, up to which gradients are scaled alike at the start")
    upper_schedule: str = option(
        "step:decay=0.5,every=10", "how z itself falls, as text (for the noise the same text gives sigma^2)"
    )
    w: float = option(0.1, "where the weight of long gradients turns over")

    def __post_init__(self) -> None:
        for name in ("threshold", "upper", "w"):
            validate.positive(name, getattr(self, name))
        make_schedule(self.upper_schedule).factor(0, sample_rate=1.0, steps=1)

    def init(self, context: Context) -> GlobalState:
        return self._at(context, 0)

    def _at(self, context: Context, step: int) -> GlobalState:
        schedule = make_schedule(self.upper_schedule)
        factor = schedule.factor(step, sample_rate=context.sample_rate, steps=context.steps or None, square=False)
        return GlobalState(max(SMALLEST, self.upper * factor))

    def l2_bound(self, state: GlobalState) -> float:  # noqa: ARG002
        return float(self.threshold)

    def decide(self, state: GlobalState, norms: Tensor, groups: Tensor | None = None) -> Decision:  # noqa: ARG002
        normalised = self.threshold / (norms + self.w / (norms + self.w))
        weights = torch.where(norms <= state.upper, self.threshold / state.upper, normalised)
        return Decision(bounded(weights, norms, self.threshold))

    def update(self, state: GlobalState, released: Released, context: Context, step: int) -> GlobalState:  # noqa: ARG002
        return self._at(context, step + 1)
