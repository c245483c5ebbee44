"""Gaussian differential privacy: exact without sampling, and a limit theorem for sampled runs that is *not* a bound.

Formal guarantee: `gaussian_epsilon` is exact (rounded up) for a Gaussian release of the whole data set; n releases with
noise multipliers s_i are one with mu^2 = sum 1 / s_i^2, and

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu).

There is none for `clt_estimate`. A central limit theorem says that many Poisson-sampled steps look like one Gaussian
release with mu^2 = sum q^2 (exp(1/s^2) - 1), in the limit of small rates and many steps; at any finite number of steps
the figure may lie below the truth, and in practice it does (`gdp_test.py` holds a case). It exists to recompute what
papers claim with it, and comes in a type of its own, which nothing that expects a bound accepts.

References: Dong, Roth, Su, "Gaussian differential privacy" (2022), Corollaries 1 and 3.3; Bu, Dong, Long, Su, "Deep
learning with Gaussian differential privacy" (2020), Section 3; Balle and Wang (2018), Theorem 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from clipwise import validate
from clipwise.accounting.events import StepEvent, merge
from clipwise.accounting.later import special

_DELTA_REMEDY = "give a probability well below 1 / number of records, such as 1e-5"


def gaussian_delta(noise: float, epsilon: float) -> float:
    """delta(epsilon) of one Gaussian release of sensitivity 1, rounded up."""
    near, far = special.log_ndtr(0.5 / noise - epsilon * noise), special.log_ndtr(-0.5 / noise - epsilon * noise)
    if near == -math.inf:
        return math.ulp(0.0)  # below every positive number
    # near and exp(epsilon) far cancel: compare in logs, and give rounding away.
    slack = 1e-13 * (1 + abs(near) + abs(epsilon))
    return math.exp(near) * -math.expm1(min(epsilon + far - near, 0.0) - slack)


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Epsilon of one Gaussian release of sensitivity 1, exactly, rounded up; infinity without noise."""
    if noise == 0:
        return math.inf

    def fits(epsilon: float) -> bool:
        return gaussian_delta(noise, epsilon) <= delta

    if fits(0.0):
        return 0.0
    high = 1.0
    while not fits(high):
        high *= 2
        if math.isinf(high):
            return math.inf
    low = high / 2 if high > 1 else 0.0
    while high - low > 1e-13 * high and low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class CltEstimate:
    """An approximation of epsilon that can lie below the truth. It has no `value`: it is no `Epsilon`, and no bound."""

    approximate_epsilon: float
    delta: float
    mu: float
    label: str = "GDP by the central limit theorem: an approximation that can under-report, not a bound"


def clt_estimate(events: Iterable[StepEvent], delta: float) -> CltEstimate:
    """What the central limit theorem of Gaussian differential privacy says of Poisson-sampled steps. Not a bound."""
    delta = validate.probability("delta", delta, one_allowed=False, remedy=_DELTA_REMEDY)
    mu = _mu(merge(events))
    return CltEstimate(gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0, delta, mu)


def _mu(events: Iterable[StepEvent]) -> float:
    return math.hypot(*(math.sqrt(event.count) * _mu_of_one(event) for event in events))


def _mu_of_one(event: StepEvent) -> float:
    """A release of everything is Gaussian as it is; a sampled one counts as its chi-square divergence, in the limit."""
    if event.noise_multiplier == 0:
        return math.inf
    inverse = 1 / event.noise_multiplier
    if event.sample_rate == 1:
        return inverse
    return event.sample_rate * math.sqrt(math.expm1(inverse**2)) if inverse < 26 else math.inf  # e^(26^2) overflows
