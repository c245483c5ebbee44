"""What an attacker gains: the highest true-positive rate that any attack can reach at a false-positive rate.

An attack sees all that was released, knows every other record, and says whether one record was in. Let P be what is
released with the record and Q without it: "in" is said with chance P(S) where it is true, and Q(S) where it is not.

Formal guarantee: `true_positive_rates` are upper bounds on P(S) over all S with Q(S) at most the false-positive rate, for
Poisson-sampled Gaussian steps and for P and Q in either order (a record added or removed). Why: for every epsilon,
positive or negative, P(S) <= exp(epsilon) Q(S) + delta(epsilon), so that any upper bound on that curve bounds P(S), and
its least value over epsilon is the whole trade-off curve. `pld.py` has such a bound, on a grid, between whose points it is
straight in exp(epsilon): the least is taken at one of them. What the grid adds is below 1 % of the rate.

| events                   | rates                                                 |
| ------------------------ | ----------------------------------------------------- |
| none                     | the false-positive rates: guessing                    |
| any without noise        | 1                                                     |
| all at sample rate 1     | Phi(mu + Phi^-1(rate)), the closed form, rounded up    |
| beyond floating point    | 1                                                     |

`rates_of_pair` is the same from one pair (epsilon, delta) alone, for what has no such curve here (batches of a fixed
size, an RDP bound, a search): min(exp(epsilon) rate + delta, 1 - exp(-epsilon) (1 - delta - rate)), which is weaker.

References: Dong, Roth, Su, "Gaussian differential privacy" (2022), Proposition 2.13 (the curve from its deltas) and
Equation 6; Kairouz, Oh, Viswanath, "The composition theorem for differential privacy" (2015), for one pair.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from clipwise import validate
from clipwise.accounting import pld
from clipwise.accounting.coarsen import coarsen
from clipwise.accounting.events import Event, StepEvent, merge
from clipwise.accounting.joint import joint_noise_multiplier
from clipwise.accounting.later import special

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.05)  # that a statement shows: one in a thousand, in a hundred, in twenty
# Levels of noise, beyond which they are put together on the safe side: a statement is to take a second or two at most. With
# 128 a schedule of 60,000 levels has rates 0.2 to 0.4 % above those with 512, in half the time.
_LEVELS = 128
_ROUNDING = 1e-9  # relative; the sums below have up to 2^20 positive terms, each right to some 1e-15


@dataclass(frozen=True, slots=True)
class TradeOff:
    """Upper bounds on the true-positive rate of any attack, one a false-positive rate, and what they come from."""

    false_positive_rates: tuple[float, ...]
    true_positive_rates: tuple[float, ...]
    source: str  # "pld" for the whole curve of the events, "epsilon" for one pair alone

    def pairs(self) -> tuple[dict[str, float], ...]:
        """For a statement, and for JSON."""
        return tuple(
            {"false_positive_rate": false, "true_positive_rate": true}
            for false, true in zip(self.false_positive_rates, self.true_positive_rates, strict=True)
        )


def trade_off(
    events: Iterable[Event],
    epsilon: float | None = None,
    delta: float | None = None,
    rates: Sequence[float] = FALSE_POSITIVE_RATES,
    *,
    whole_curve: bool = True,
) -> TradeOff:
    """The best bound at hand: that of the events' own curve, where they have one and it may be used (`whole_curve`), and
    that of the pair (epsilon, delta) where one is stated; at each rate the smaller."""
    listed = [validate.probability("rates", rate, one_allowed=True, remedy="give rates above 0") for rate in rates]
    of_pair = [1.0] * len(listed)
    if epsilon is not None and delta is not None:
        of_pair = rates_of_pair(epsilon, delta, listed)
    steps = list(events)
    if not whole_curve or any(type(event) is not StepEvent for event in steps):
        return TradeOff(tuple(listed), tuple(of_pair), "epsilon")
    whole = true_positive_rates(steps, listed)  # type: ignore[arg-type]
    return TradeOff(tuple(listed), tuple(map(min, whole, of_pair)), "pld")


def true_positive_rates(events: Iterable[StepEvent], rates: Sequence[float]) -> list[float]:
    """By the whole curve, for a record added or removed."""
    return list(_evaluate(coarsen(merge(events), _LEVELS), tuple(rates)))


def rates_of_pair(epsilon: float, delta: float, rates: Sequence[float]) -> list[float]:
    """By one (epsilon, delta) pair, for neighbours in either order."""
    if math.isinf(epsilon):
        return [1.0] * len(rates)
    likelier = math.exp(min(epsilon, 700.0))
    return [
        _rounded_up(min(likelier * rate + delta, 1 - max(0.0, 1 - delta - rate) / likelier), rate) for rate in rates
    ]


@functools.lru_cache(maxsize=64)
def _evaluate(events: tuple[StepEvent, ...], rates: tuple[float, ...]) -> tuple[float, ...]:
    if not events:
        return rates
    if any(event.noise_multiplier == 0 for event in events):
        return (1.0,) * len(rates)
    if all(event.sample_rate == 1 for event in events):
        mu = 1 / joint_noise_multiplier([event.noise_multiplier / math.sqrt(event.count) for event in events])
        return tuple(_rounded_up(float(special.ndtr(mu * (1 + 1e-12) + special.ndtri(rate))), rate) for rate in rates)
    least = np.array(rates)
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        for removal in (True, False):
            least = np.maximum(least, _one_direction(events, rates, removal=removal))
    return tuple(float(value) for value in least)


def _one_direction(events: tuple[StepEvent, ...], rates: tuple[float, ...], *, removal: bool) -> np.ndarray:
    curve = pld.whole_curve(events, removal=removal)
    if curve is None:
        return np.ones(len(rates))
    width, losses, masses, lost = curve
    # Sums of positive terms, from the largest loss down, so that nothing cancels: with E(i) = sum_{j>i} m_j e^(l_i - l_j),
    # E(i-1) = e^-w (m_i + E(i)), and delta(l_{i-1}) = delta(l_i) + (1 - e^-w) (m_i + E(i)).
    fading = math.exp(-width) * (1 - 4 * sys.float_info.epsilon)
    down = masses[::-1]
    with_this = np.fromiter(accumulate(down.tolist(), lambda e, m: m + fading * e), float, len(down))  # m_i + E(i)
    delta = np.concatenate([[0.0], np.cumsum((1 - fading) * with_this)])[:-1][::-1] + lost
    likelier = np.exp(losses)
    return np.array([_rounded_up(float(np.min(likelier * rate + delta)), rate) for rate in rates])


def _rounded_up(value: float, least: float) -> float:
    """A NaN is as bad as can be; no bound is below guessing."""
    return 1.0 if math.isnan(value) else min(1.0, max(least, value * (1 + _ROUNDING)))
