"""A private histogram of gradient norms: what both DC-SGD methods release beside the gradient.

Each record is one 1 in `bins` bins over [0, range], the last open above: one record moves the histogram by 1. A record without a finite norm is in
no bin. Reference: DC-SGD (paper 002), Algorithm 2, with the index min(bins - 1, floor(bins * norm / range)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clipwise import validate
from clipwise.clipping.contract import Context, Method, bounded, option
from clipwise.types import BadArgument, Decision, SideQuery


class HistogramState(NamedTuple):
    threshold: float
    range: float
    # What the last released histogram says of the norms, to look at; the method itself does not read it. A bin's middle, so
    # that the last bin, which is open above, stands for all beyond it.
    norm_median: float = 0.0
    norm_90: float = 0.0


@dataclass(frozen=True, kw_only=True)
class HistogramMethod(Method):
    threshold: float = option(1.0, "C, where it starts")
    bins: int = option(20, "bins of the histogram of norms")
    histogram_noise: float = option(
        0.0, "noise multiplier of the histogram; 0 takes 5, 8 or 12 by the total noise, as the paper does"
    )
    first_range: float = option(
        0.0,
        "R of the first step; 0 takes 2 C (dc-sgd-p) or bins x C (dc-sgd-e). The paper's experiments have 1 for dc-sgd-p",
    )
    lowest: float = option(1e-6, "the threshold is not taken below this")
    highest: float = option(1e6, "nor above this")

    def __post_init__(self) -> None:
        for name in ("threshold", "lowest", "highest"):
            validate.positive(name, getattr(self, name))
        validate.count("bins", self.bins, least=2)
        validate.non_negative("histogram_noise", self.histogram_noise)
        validate.non_negative("first_range", self.first_range)
        if not self.lowest <= self.threshold <= self.highest:
            raise BadArgument(
                f"threshold={self.threshold!r} must lie between lowest={self.lowest!r} and highest={self.highest!r}"
            )

    def side_queries(self, context: Context) -> tuple[SideQuery, ...]:
        return (SideQuery("histogram", self.bins, 1.0, self.noise_of_histogram(context)),)

    def noise_of_histogram(self, context: Context) -> float:
        if self.histogram_noise:
            return float(self.histogram_noise)
        total = context.noise_multiplier
        return 5.0 if total < 2 else 8.0 if total <= 3 else max(12.0, 4 * total)

    def l2_bound(self, state: HistogramState) -> float:
        return state.threshold

    def decide(self, state: HistogramState, norms: Tensor, groups: Tensor | None = None) -> Decision:  # noqa: ARG002
        place = (norms * (self.bins / state.range)).nan_to_num(0.0).clamp(0, self.bins - 1).long()
        there = place[:, None] == torch.arange(self.bins, device=norms.device)  # one_hot would look at the values
        rows = there.to(norms.dtype) * norms.isfinite()[:, None]
        return Decision(bounded(torch.ones_like(norms), norms, state.threshold), {"histogram": rows})

    def norms_seen(self, counts: Tensor, range_: float) -> tuple[float, float]:
        """The median and the 90th percentile of the norms, by released counts."""
        known = counts.clamp_min(0).cumsum(0)
        if not float(known[-1]) > 0:
            return 0.0, 0.0
        median, upper = ((int((known < share * known[-1]).sum()) + 0.5) * range_ / self.bins for share in (0.5, 0.9))
        return median, upper

    def clamped(self, threshold: float) -> float:
        return min(max(threshold, self.lowest), self.highest)
