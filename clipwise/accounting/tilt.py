"""Where a composition's privacy loss matters: quick estimates that steer the tight accountant.

Formal guarantee: none, and none is needed. Tilt, grid width and window chosen here decide how tight and how fast
`pld.py` is; its bound holds for any choice.

With K(t) = log E exp(t L) for the composed loss L, *tilting* by t means to weigh each loss by exp(t L - K(t)). Under the
right tilt the loss centres on the epsilon sought: there a floating-point sum keeps its relative precision, however
small delta is, and a window of a few deviations around that epsilon holds all that counts.

References: saddle-point estimates as in Alghamdi et al., "The saddle-point method in differential
privacy" (2023); exponential tilting against aliasing as in Grübel and Hermesmeier (1999).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from clipwise.accounting.dots import loss, reaches
from clipwise.accounting.events import StepEvent
from clipwise.accounting.later import special
from clipwise.accounting.roots import crossing

_NODES = 121  # of the trapezoid rule, which is very accurate on a normal density
_LEAST_TILT = -0.5  # near the tilt at which the loss centres on epsilon 0
_HUGE = 1e30  # stands for an infinite log, so that differences are not NaN


class Tilted(NamedTuple):
    """The composed loss under one tilt."""

    tilt: float
    log_weights: np.ndarray  # [level, node], each row a distribution
    mean: float
    variance: float


class Losses:
    """The losses of all levels at the nodes of a quadrature, for one direction."""

    def __init__(self, events: Sequence[StepEvent], cut: float, *, removal: bool) -> None:
        rate = np.array([[event.sample_rate] for event in events])
        noise = np.array([[event.noise_multiplier] for event in events])
        self._counts = np.array([float(event.count) for event in events])
        absent_reach, present_reach = reaches(rate, cut)
        unit = np.linspace(0.0, 1.0, _NODES)
        node = absent_reach * (2 * unit - 1)
        absent = loss(noise * node, rate, noise)
        log_absent = np.broadcast_to(_normalised(-(node**2) / 2), absent.shape)
        if removal:
            node = unit * (absent_reach + present_reach) - absent_reach
            self._losses = np.hstack([absent, loss(1 + noise * node, rate, noise)])
            with np.errstate(divide="ignore"):  # a rate of 1
                self._log_weights = np.hstack(
                    [log_absent + np.log1p(-rate), _normalised(-(node**2) / 2) + np.log(rate)]
                )
        else:
            self._losses, self._log_weights = -absent, log_absent
        self.smallest, self.largest = float(self._losses.min()), float(self._losses.max())

    def at(self, tilt: float) -> Tilted:
        log_weights = self._log_weights + tilt * self._losses
        log_weights = _normalised(log_weights)
        weights = np.exp(log_weights)
        mean = (weights * self._losses).sum(axis=1)
        variance = (weights * (self._losses - mean[:, None]) ** 2).sum(axis=1)
        return Tilted(tilt, log_weights, float(self._counts @ mean), float(self._counts @ variance))

    def log_chance(self, far: Tilted, base: Tilted) -> float:
        """Chernoff's log bound on the chance, under `base`, of a loss as far out as the mean of `far`."""
        weights = np.exp(far.log_weights)
        gap = np.where(weights > 0, base.log_weights - far.log_weights, 0.0)
        return float(self._counts @ (weights * gap).sum(axis=1))

    def saddle(self, delta: float) -> Tilted:
        """The tilt under which the loss centres on epsilon(delta)."""
        plain = self.at(0.0)

        def excess(tilt: float) -> float:
            tilted = self.at(tilt)
            deviation = math.sqrt(tilted.variance)
            # E exp(-t u) (1 - exp(-u))+ for a normal u of mean 0: what delta is, apart from the chance to get there.
            near, far = special.erfcx(np.array([tilt, tilt + 1]) * deviation / math.sqrt(2)).tolist()
            share = (near - far) / 2
            log_share = min(math.log(share), _HUGE) if share > 0 else -_HUGE
            return self.log_chance(tilted, plain) + log_share - math.log(delta)

        if excess(0.0) > 0:
            return self.at(self._distance(excess, plain))
        return self.at(_crossing(excess, _LEAST_TILT, 0.0))

    def beyond(self, base: Tilted, log_chance: float, side: int) -> Tilted:
        """The tilt whose mean is so far above (side 1) or below (side -1) that `base` exceeds it with that chance."""

        def excess(distance: float) -> float:
            return self.log_chance(self.at(base.tilt + side * distance), base) - log_chance

        return self.at(base.tilt + side * self._distance(excess, base))

    def _distance(self, falling: Callable[[float], float], base: Tilted) -> float:
        """Where the function of a tilt's distance crosses 0, in units of the loss's own scale."""
        scale = -math.log(max(math.sqrt(base.variance), 1e-15 * abs(base.mean), 1e-300))
        near, far = scale + math.log(1e-6), scale + math.log(1e6)
        return math.exp(_crossing(lambda log_distance: falling(math.exp(log_distance)), near, far))

    def spread_by_grid(self, tilted: Tilted, width: float) -> float:
        """Variance that the grid adds: at most width^2 / 4 a step, a sixth on average, less for losses near 0."""
        added = np.minimum(width**2 / 6, width * np.abs(self._losses))
        return float(self._counts @ (np.exp(tilted.log_weights) * added).sum(axis=1))

    def width_for(self, tilted: Tilted, error: float) -> float:
        """The grid width that adds `error` to epsilon: tilted by t, log E exp(tL) grows by t (t+1) / 2 * variance."""
        slope = max((tilted.tilt + 1) / 2, 0.25)

        def shortfall(log_width: float) -> float:
            return math.log(error) - math.log(max(slope * self.spread_by_grid(tilted, math.exp(log_width)), 1e-300))

        return math.exp(_crossing(shortfall, math.log(1e-15), math.log(1e15)))


def _normalised(log_weights: np.ndarray) -> np.ndarray:
    log_weights = log_weights - log_weights.max(axis=-1, keepdims=True)
    return np.asarray(log_weights - np.log(np.exp(log_weights).sum(axis=-1, keepdims=True)))


def _crossing(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function crosses 0, or the end of the range nearest to that."""
    if not falling(low) > 0:
        return low
    if falling(high) > 0:
        return high
    return crossing(falling, low, high, tolerance=1e-4, relative=1e-10)
