"""DC-SGD-P: the threshold is a percentile of the gradient norms, read off a private histogram.

C <- the middle of the first bin at which the noisy counts add up to a share p of their sum; range <- 2 C. Guarantee: weight * norm <= C; the
histogram moves by 1 (histogram.py). Reference: DC-SGD (paper 002), Algorithm 3. At most 1.95 times larger in a step, and 20 times smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from clipwise import validate
from clipwise.clipping.contract import Context, option
from clipwise.clipping.histogram import HistogramMethod, HistogramState
from clipwise.types import Released


@dataclass(frozen=True, kw_only=True)
class DcSgdP(HistogramMethod):
    name = "dc-sgd-p"
    summary = "the threshold is a percentile of the gradient norms, from a private histogram"
    reference = "Wei et al., DC-SGD: Differentially Private SGD with Dynamic Clipping through Gradient Norm Distribution Estimation, 2025"
    adapts = "the threshold"
    tune = ("percentile",)
    guarantee = "weight x norm <= C; one record moves the released histogram by at most 1"

    percentile: float = option(0.5, "p, the share of gradients below the threshold")

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.probability("percentile", self.percentile, one_allowed=False, remedy="give a share such as 0.5")

    def init(self, context: Context) -> HistogramState:  # noqa: ARG002
        return HistogramState(float(self.threshold), float(self.first_range or 2 * self.threshold))

    def update(self, state: HistogramState, released: Released, context: Context, step: int) -> HistogramState:  # noqa: ARG002
        counts = released.sides["histogram"].double().cpu()
        reached = torch.nonzero(counts.cumsum(0) >= self.percentile * counts.sum())
        place = int(reached[0]) if len(reached) else self.bins - 1
        threshold = self.clamped((place + 0.5) * state.range / self.bins)
        return HistogramState(threshold, 2 * threshold, *self.norms_seen(counts, state.range))
