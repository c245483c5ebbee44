"""A random number K of runs, each of a random candidate; only the best one is shown.

Formal guarantee (Papernot and Steinke, "Hyperparameter tuning with Renyi differential privacy", 2022). Let a run have
Renyi divergence eps(a) at order a, the largest of all candidates (a candidate drawn at random, and named, costs no more).

- Truncated negative binomial K with shape eta > -1 and parameter g (Theorem 2): for every order b >= 1 the best of K runs
  has at order a > 1 at most eps(a) + (1 + eta) ((1 - 1/b) eps(b) + ln(1/g) / b) + ln E[K] / (a - 1).
  eta = 1 is the geometric distribution, eta = 0 the logarithmic one.
- Poisson K with mean m (Theorem 6): eps(a) + m d + ln m / (a - 1), where a run is (ln(1 + 1 / (a - 1)), d)-private. With
  chance e^-m there is no run, and nothing to show.

K and the runs that lost must stay secret. What is computed here comes from our own curves alone; d is Proposition 12 of
Canonne, Kamath and Steinke (2020), read backwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from clipwise import validate
from clipwise.accounting.rdp import ORDERS, converted, rdp_curve
from clipwise.lab.tuning.strategy import Events, Strategy, Uniform, distinct
from clipwise.types import BadArgument

_NAMED = {"geometric": 1.0, "logarithmic": 0.0}
_MOST_MEAN = 1e5  # runs: a mean above it is a typing error, and its bounds are not tested


@dataclass(frozen=True)
class RepeatSelect(Strategy):
    """`repetitions` is poisson, geometric, logarithmic, or the shape eta as text; `mean_runs` is E[K], by default one
    run for each candidate."""

    name: ClassVar[str] = "repeat-select"
    summary: ClassVar[str] = "a random, secret number of runs of random candidates; only the best is shown"
    losers_are_public: ClassVar[bool] = False

    repetitions: str = "geometric"
    mean_runs: float | None = None

    def __post_init__(self) -> None:
        if self.repetitions != "poisson":
            _shape(self.repetitions)
        if self.mean_runs is not None:
            mean = validate.positive("mean_runs", self.mean_runs, "give the average number of runs")
            if not 1 < mean <= _MOST_MEAN:
                raise BadArgument(f"mean_runs={mean!r} must lie above 1 and be at most {_MOST_MEAN:g}")

    def total(self, candidates: Sequence[Events], delta: float, accountant: str = "best") -> float:
        validate.choice("accountant", accountant, ("best", "rdp"))  # the theorem is about Renyi divergences
        largest = np.max([rdp_curve(events) for events in distinct(candidates)], axis=0)
        if math.isinf(largest.min()):
            return math.inf
        return converted(self.curve_of_best(largest, len(candidates)), delta)

    def curve_of_best(self, of_a_run: np.ndarray, candidates: int) -> np.ndarray:
        """The divergence of the whole search at ORDERS, from that of one run there."""
        mean = self.expected_runs(candidates)
        if self.repetitions == "poisson":
            with np.errstate(over="ignore"):
                return of_a_run + mean * _deltas(of_a_run, np.log1p(1 / (ORDERS - 1))) + math.log(mean) / (ORDERS - 1)
        counts = self.counts(candidates)
        price = (1 - 1 / ORDERS) * of_a_run + math.log(1 / counts.gamma) / ORDERS
        return of_a_run + (1 + counts.shape) * price.min() + math.log(mean) / (ORDERS - 1)

    def expected_runs(self, candidates: int) -> float:
        return float(self.mean_runs or candidates)

    def most_runs(self, candidates: int) -> int | None:  # noqa: ARG002
        return None

    def counts(self, candidates: int) -> TruncatedNegativeBinomial:
        return TruncatedNegativeBinomial.of_mean(_shape(self.repetitions), self.expected_runs(candidates))

    def draw_counts(self, candidates: int, uniform: np.ndarray) -> np.ndarray:
        """How many runs there are, for each of the uniform numbers."""
        if self.repetitions == "poisson":
            return stats.poisson.ppf(np.maximum(uniform, 2.0**-54), self.expected_runs(candidates)).astype(int)
        return self.counts(candidates).quantiles(uniform)

    def draw(self, candidates: int, uniform: Uniform) -> list[int]:
        (runs,) = self.draw_counts(candidates, uniform(1))
        return [int(u * candidates) for u in uniform(int(runs))]


@dataclass(frozen=True)
class TruncatedNegativeBinomial:
    """K >= 1 with P(k + 1) / P(k) = (1 - gamma) (k + shape) / (k + 1)."""

    shape: float
    gamma: float

    @staticmethod
    def of_mean(shape: float, mean: float) -> TruncatedNegativeBinomial:
        if shape == 1:
            return TruncatedNegativeBinomial(1.0, 1 / mean)

        def excess(log_gamma: float) -> float:
            return math.log(TruncatedNegativeBinomial(shape, math.exp(log_gamma)).mean / mean)

        low = -1.0
        while excess(low) < 0:
            low *= 2
            if low < -500:
                raise BadArgument(
                    f"repetitions={shape!r} has no distribution with a mean of {mean:g}; take a larger shape"
                )
        return TruncatedNegativeBinomial(shape, math.exp(brentq(excess, low, -1e-9, xtol=1e-13)))

    @property
    def mean(self) -> float:
        if self.shape == 0:
            return (1 / self.gamma - 1) / math.log(1 / self.gamma)
        return self.shape * (1 - self.gamma) / (self.gamma * -math.expm1(self.shape * math.log(self.gamma)))

    @cached_property
    def chances(self) -> np.ndarray:
        """P(1), P(2), ... as far as 53 bits of a uniform number can tell."""
        size = math.ceil(60 / self.gamma) + 60
        steps = np.arange(1, size, dtype=float)
        logs = np.concatenate([[0.0], np.cumsum(np.log((1 - self.gamma) * (steps + self.shape) / (steps + 1)))])
        if self.shape == 0:
            first = (1 - self.gamma) / math.log(1 / self.gamma)
        else:
            odds = math.expm1(-self.shape * math.log(self.gamma))  # gamma^-shape - 1
            first = self.shape * (1 - self.gamma) / odds
        return first * np.exp(logs)

    def quantiles(self, uniform: np.ndarray) -> np.ndarray:
        places = np.searchsorted(np.cumsum(self.chances), uniform, side="right")
        return np.minimum(places, len(self.chances) - 1) + 1


def _shape(repetitions: str) -> float:
    try:
        shape = _NAMED[repetitions] if repetitions in _NAMED else float(repetitions)
    except ValueError:
        shape = math.nan
    if not -1 < shape <= 10:
        raise BadArgument(
            f"repetitions={repetitions!r} is not known; choose poisson, geometric, logarithmic, or a shape above -1 such as 0.5"
        )
    return shape


def _deltas(curve_of_a_run: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
    """For each epsilon a delta such that a run is (epsilon, delta)-private, by the best of the orders."""
    orders, divergences = ORDERS[:, None], curve_of_a_run[:, None]
    logs = (orders - 1) * (divergences - epsilons) + orders * np.log1p(-1 / orders) - np.log(orders - 1)
    return np.minimum(np.exp(np.minimum(logs.min(axis=0), 0)), 1)
