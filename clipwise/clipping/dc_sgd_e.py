"""DC-SGD-E: the threshold minimises an expected squared error, noise plus clipping, read off a private histogram.

    E(c) = sigma_g^2 c^2 d / B^2  +  sum_j H_j (m_j - c)_+^2 / sum_j H_j        (m_j the middle of bin j, H_j its noisy count, at least 0)

searched over {0.1, ..., 2} C, again from the winner while it is the first or the last, at most 30 times. The range doubles when half of the
counts are in the last bin and halves when the upper half is nearly empty; for that the counts are taken as they were released: with negative ones
at 0, the noise of an empty half adds up instead of cancelling, and the range hardly ever halves at batches of 64 or 128. Guarantee: weight * norm <= C; the histogram moves by 1.
Reference: DC-SGD (paper 002), Algorithm 4, with an end to its loop and "else keep the range". A heuristic: it adds the noise of the mean to the
clipping error of single gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clipwise.clipping.contract import Context
from clipwise.clipping.histogram import HistogramMethod, HistogramState
from clipwise.types import Released

ROUNDS = 30  # of the search, at most: each moves the best threshold to between a tenth and twice of it, and the paper's loop has no end


@dataclass(frozen=True, kw_only=True)
class DcSgdE(HistogramMethod):
    name = "dc-sgd-e"
    summary = "the threshold minimises the expected squared error of noise and clipping, from a private histogram"
    reference = "Wei et al., DC-SGD: Differentially Private SGD with Dynamic Clipping through Gradient Norm Distribution Estimation, 2025"
    adapts = "the threshold"
    guarantee = "weight x norm <= C; one record moves the released histogram by at most 1"

    def init(self, context: Context) -> HistogramState:  # noqa: ARG002
        return HistogramState(float(self.threshold), float(self.first_range or self.bins * self.threshold))

    def update(self, state: HistogramState, released: Released, context: Context, step: int) -> HistogramState:  # noqa: ARG002
        noisy = released.sides["histogram"].double().cpu()
        counts = noisy.clamp_min(0)
        total = float(counts.sum())
        if total <= 0:
            return state
        middles = (torch.arange(self.bins, dtype=torch.float64) + 0.5) * (state.range / self.bins)
        noise = released.noise_multiplier**2 * context.parameters / context.expected_batch_size**2
        threshold = self.clamped(best_threshold(counts / total, middles, noise, state.threshold))
        seen = self.norms_seen(counts, state.range)
        return HistogramState(threshold, self._next_range(noisy, total, state.range), *seen)

    def _next_range(self, noisy: Tensor, total: float, range_: float) -> float:
        if float(noisy[-1]) >= 0.5 * total:
            return min(2 * range_, 20 * self.highest)
        if float(noisy[self.bins // 2 :].sum()) <= total / self.bins:
            return max(range_ / 2, self.lowest)
        return range_


def best_threshold(shares: Tensor, middles: Tensor, noise: float, start: float) -> float:
    best = start
    for _ in range(ROUNDS):
        candidates = torch.arange(1, 21, dtype=torch.float64) * (best / 10)
        place = int(expected_error(candidates, shares, middles, noise).argmin())
        best = (place + 1) * (best / 10)
        if place not in (0, 19):
            break
    return best


def expected_error(thresholds: Tensor, shares: Tensor, norms: Tensor, noise: float) -> Tensor:
    """E at each threshold, where `shares` of the gradients have these norms; `noise` is sigma_g^2 d / B^2."""
    excess = (norms[None, :] - thresholds[:, None]).clamp_min(0).square() @ shares
    return noise * thresholds.square() + excess
