"""Bounded adaptive clipping: the threshold follows a quantile, but never below a floor; contributions are normalised by it.

    weight = min(1, C / ||g||)        update / C        C <- max(floor, C exp(-rate (share - target)))

An adaptive threshold without a floor shrinks with the gradients of the well-fitted majority and silences the others.
Dividing by C (`normalise`, which any method has) keeps the length of a step, and so the learning rate, as C moves. Guarantee:
weight * norm <= C; the released count is that of `quantile`. Reference: Zhao et al., "Mitigating Disparate Impact of Differentially Private Learning
through Bounded Adaptive Clipping" (2025).
"""

from __future__ import annotations

from dataclasses import dataclass

from clipwise.clipping.contract import NORMALISE, option
from clipwise.clipping.quantile import Quantile


@dataclass(frozen=True, kw_only=True)
class BoundedQuantile(Quantile):
    name = "bounded-quantile"
    summary = "the threshold follows a quantile of the gradient norms down to a floor, and steps keep their length"
    reference = "Zhao et al., Mitigating Disparate Impact of DP Learning through Bounded Adaptive Clipping, 2025"
    adapts = "the threshold"
    tune = ("target", "lowest")
    guarantee = "weight x norm <= C; one record moves the released count by at most 1/2"

    threshold: float = option(1.0, "C, where it starts")
    lowest: float = option(0.1, "the floor: the threshold is not taken below this")
    normalise: bool = option(True, NORMALISE)
