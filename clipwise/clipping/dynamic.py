"""Dynamic DP-SGD: threshold and noise multiplier fall by a public rule over the planned steps.

    C_t = C_0 r_C^(t/T)         sigma_t = sigma_0 r_sigma^(t/T)         weight min(1, C_t / ||g||)

Guarantee: weight * norm <= C_t, and both paths are public and fixed before training, so that each step is an ordinary
Gaussian release whose cost is known in advance; sigma_0 is calibrated over all of them by exact accounting, where the
paper uses a central limit that can under-report. Reference: Du et al., "Dynamic Differential-Privacy Preserving SGD"
(2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clipwise import validate
from clipwise.clipping.contract import Context, Method, bounded, option
from clipwise.clipping.fixed import FixedState
from clipwise.types import BadArgument, Decision, Released


@dataclass(frozen=True, kw_only=True)
class Dynamic(Method):
    name = "dynamic"
    summary = "threshold and noise fall by a public rule, step by step"
    reference = "Du et al., Dynamic Differential-Privacy Preserving SGD, 2021"
    adapts = "the threshold and the noise, by a public schedule"
    tune = ("threshold", "threshold_decay", "noise_decay")
    guarantee = "weight x norm <= C_t; threshold and noise depend on no data"

    threshold: float = option(1.5, "C_0, where the threshold starts")
    threshold_decay: float = option(0.3, "r_C: the threshold ends at r_C C_0")
    noise_decay: float = option(0.8, "r_sigma: the noise multiplier ends at r_sigma sigma_0")

    def __post_init__(self) -> None:
        for name in ("threshold", "threshold_decay", "noise_decay"):
            validate.positive(name, getattr(self, name))
        for name in ("threshold_decay", "noise_decay"):
            if getattr(self, name) > 1:
                raise BadArgument(f"{name}={getattr(self, name)!r} must be at most 1; give 1 to keep it as it starts")

    def init(self, context: Context) -> FixedState:
        if not context.steps:
            raise BadArgument("epochs=None: method 'dynamic' runs over the planned steps; give epochs")
        return FixedState(float(self.threshold))

    def noise_factor(self, context: Context, step: int) -> float:
        return float(self.noise_decay ** _share(context, step))

    def l2_bound(self, state: FixedState) -> float:
        return state.threshold

    def decide(self, state: FixedState, norms: Tensor, groups: Tensor | None = None) -> Decision:  # noqa: ARG002
        return Decision(bounded(torch.ones_like(norms), norms, state.threshold))

    def update(self, state: FixedState, released: Released, context: Context, step: int) -> FixedState:  # noqa: ARG002
        return FixedState(self.threshold * self.threshold_decay ** _share(context, step + 1))


def _share(context: Context, step: int) -> float:
    """Of the planned steps; a run that goes on longer stays at its last values."""
    return min(step / max(1, context.steps), 1.0)
