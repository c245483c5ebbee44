"""Auto DP-SGD as published: every gradient is multiplied by W, and the noise follows the mean of the batch's own norms.

    weight = W         noise std = sigma s,  s = sum_i W ||g_i|| / B

**No guarantee holds.** Nothing bounds what one record adds, and s is read off the batch without noise: a batch whose
gradients are zero releases exactly zero, so one record with another gradient is seen at once, and no (epsilon, delta)
with a useful delta exists. It runs only when that is allowed by name, its epsilon is infinite, and the paper's own
figure, with rho = 13 q^2 (s^2 / 2) S, is shown as claimed: S = sum_e 1 / sigma_e^2 over *epochs*, and for step decay, as its
Table 8 prints it, the sum over *stages* divided by their length D (see docs/claims.md). `auto-dp-sound` is the sound counterpart. Reference: Auto DP-SGD (paper 000), Algorithms 1 and 2, here with the expected batch size B.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clipwise import validate
from clipwise.clipping.contract import Context, Method, bounded, option
from clipwise.types import Decision, Released, SideQuery


class AutoDpState(NamedTuple):
    mean_sensitivity: float  # of the steps so far
    inverse_noise: float  # the paper's S so far


@dataclass(frozen=True, kw_only=True)
class AutoDp(Method):
    name = "auto-dp"
    summary = "scales every gradient by W and the noise by the batch's mean norm, as published"
    reference = "Auto DP-SGD: Dual Improvements of Privacy and Accuracy via Automatic Clipping Threshold and Noise Multiplier Estimation"
    adapts = "the noise"
    tune = ("scale",)
    guarantee = "nothing bounds what one record adds, and the noise follows the batch's own norms, unprotected"
    sound = False
    alternative = "auto-dp-sound"

    scale: float = option(1.0, "W, the scale factor of the paper")

    def __post_init__(self) -> None:
        validate.positive("scale", self.scale)

    def side_queries(self, context: Context) -> tuple[SideQuery, ...]:  # noqa: ARG002
        return (SideQuery("mean_norm", 1, math.inf, 0.0),)  # unbounded, and released as it is

    def init(self, context: Context) -> AutoDpState:  # noqa: ARG002
        return AutoDpState(0.0, 0.0)

    def l2_bound(self, state: AutoDpState) -> float:  # noqa: ARG002
        return math.inf

    def noise_scale(self, state: AutoDpState, sides: Mapping[str, Tensor], context: Context) -> float:  # noqa: ARG002
        return float(sides["mean_norm"]) / context.expected_batch_size

    def decide(self, state: AutoDpState, norms: Tensor, groups: Tensor | None = None) -> Decision:  # noqa: ARG002
        weights = bounded(torch.full_like(norms, self.scale), norms, math.inf)
        return Decision(weights, {"mean_norm": (weights * norms.nan_to_num(0.0, 0.0))[:, None]})

    def update(self, state: AutoDpState, released: Released, context: Context, step: int) -> AutoDpState:
        here = self.noise_scale(state, released.sides, context)
        mean = state.mean_sensitivity + (here - state.mean_sensitivity) / (step + 1)
        begins = step == 0 or context.epoch(step) > context.epoch(step - 1)
        share = _share(context, context.epoch(step)) if begins and released.noise_multiplier else 0.0
        return AutoDpState(mean, state.inverse_noise + (share / released.noise_multiplier**2 if share else 0.0))

    def claimed_epsilon(self, state: AutoDpState, context: Context, delta: float) -> float:
        rho = 13 * context.sample_rate**2 * state.mean_sensitivity**2 / 2 * state.inverse_noise
        return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def _share(context: Context, epoch: int) -> float:
    """Of an epoch's 1 / sigma_e^2 in S: all of it, and for step decay a D-th of one in each stage of D."""
    stage = context.schedule.every if context.schedule.kind == "step" and context.schedule.by == "epoch" else None
    return 1.0 if stage is None else (1 / stage if epoch % stage == 0 else 0.0)
