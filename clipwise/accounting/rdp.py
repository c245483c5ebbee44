"""Epsilon by Renyi differential privacy: quick, a little loose, and looser the larger it is.

Formal guarantee: an upper bound on epsilon for the composition of the events, for add/remove neighbours; infinity only
where there is no noise or beyond floating point. The curve of one (rate, noise) pair is computed once, in about a millisecond, and
kept, so that schedules with many levels are quick and asking again with other step counts costs microseconds.

The divergence of order a is log E r^a / (a - 1) with r = 1 - q + q exp((2x-1) / 2s^2) and x normal with deviation s. A
whole order gives a binomial sum. Another gives two binomial series, for the answers on either side of the point where
the two parts of r are equal; their terms are added by absolute value. That is dp-accounting's convention: a little above
the divergence at orders near 1 (where signs alternate), never below it, and the same figure as everyone else's.

References: Mironov, Talwar, Zhang (2019) for the curve; Canonne, Kamath, Steinke (2020), Proposition 12, for the
conversion.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clipwise.accounting.coarsen import coarsen
from clipwise.accounting.events import StepEvent, merge
from clipwise.accounting.later import special

# Fractional orders serve epsilons above 1, the large ones small epsilons. Those near 1 are for epsilons above 100 (noise that
# decays far): with 1.1 and 1.2 alone, 149.8 is found where 141.8 holds (q = 256/120000, sigma 1.3768 exp(-0.05 e), 40
# epochs). None is below 1.02 (the conversion is unstable near 1), so that the bound is loose above some 1,000: 1e8 where 3e5 is true.
_NEAR_ONE = (1.02, 1.03, 1.05, 1.075, 1.125, 1.15, 1.175, 1.25)
_ORDERS = (
    *sorted((*_NEAR_ONE, *(1 + k / 10 for k in range(1, 100)))),
    *range(11, 64),
    *(80, 96, 128, 192, 256, 512, 1024),
)

ORDERS = np.array(_ORDERS, dtype=float)
_WHOLE = np.floor(ORDERS) == ORDERS

_OTHERS = ORDERS[~_WHOLE]

_MOST_TERMS, _CHUNK = 1000, 50  # of a series; most end within the first chunk
_NEGLIGIBLE = 30.0  # in logs: terms so far below the total end a series


@functools.cache
def _log_binomial() -> np.ndarray:
    found: np.ndarray = special.binom(_OTHERS[:, None], np.arange(float(_MOST_TERMS)))
    logs: np.ndarray = np.log(np.abs(found))
    return logs


class _Terms(NamedTuple):
    """The binomial sums of all whole orders, end to end."""

    chosen: np.ndarray
    left: np.ndarray
    log_binomial: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


@functools.cache
def _binomial_terms() -> _Terms:
    orders = ORDERS[_WHOLE]
    lengths = orders.astype(int) + 1
    starts = np.cumsum(lengths) - lengths
    chosen = np.arange(lengths.sum(), dtype=float) - np.repeat(starts, lengths)
    left = np.repeat(orders, lengths) - chosen
    log_binomial = special.gammaln(chosen + left + 1) - special.gammaln(chosen + 1) - special.gammaln(left + 1)
    return _Terms(chosen, left, log_binomial, starts, lengths)


# Above the rounding error of one step's divergence, absolute below 1 and relative above, so that rounding stays on the safe
# side; far below anything a user can see.
_ROUNDING = 1e-13


def rdp_epsilon(events: Sequence[StepEvent], delta: float) -> float:
    """Upper bound on epsilon at delta."""
    return _evaluate(coarsen(merge(events)), delta)


def _evaluate(events: Sequence[StepEvent], delta: float) -> float:
    if not events:
        return 0.0
    if any(event.noise_multiplier == 0 for event in events):
        return float("inf")
    return converted(_total(events), delta)


def rdp_curve(events: Sequence[StepEvent]) -> np.ndarray:
    """The Renyi divergence of all the events together, at each of ORDERS; infinite if one has no noise."""
    if any(event.noise_multiplier == 0 and event.count for event in events):
        return np.full(len(ORDERS), np.inf)
    return _total(coarsen(merge(events)))


def _total(events: Sequence[StepEvent]) -> np.ndarray:
    curves = [event.count * _curve(event.sample_rate, event.noise_multiplier) for event in events]
    return np.sum(curves, axis=0) if curves else np.zeros(len(ORDERS))


def converted(total: np.ndarray, delta: float) -> float:
    """Epsilon at delta from the divergence at each of the orders."""
    if (
        -np.expm1(-total) < delta**2
    ).any():  # total variation is at most sqrt(1 - exp(-KL)), and KL below every order's
        return 0.0
    found = total + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return max(0.0, float(np.where(np.isnan(found), np.inf, found).min()))


@functools.lru_cache(maxsize=65536)
def _curve(sample_rate: float, noise_multiplier: float) -> np.ndarray:
    """The Renyi divergence of one step at each order."""
    if sample_rate == 1:
        return ORDERS / (2 * noise_multiplier**2)
    curve = np.empty(len(_ORDERS))
    with np.errstate(over="ignore"):
        curve[_WHOLE] = _log_moments_of_whole_orders(sample_rate, noise_multiplier)
        curve[~_WHOLE] = _log_moments_of_other_orders(sample_rate, noise_multiplier)
    curve = np.maximum(curve / (ORDERS - 1), 0)
    return np.asarray(curve + _ROUNDING * np.maximum(curve, 1))


def _log_moments_of_whole_orders(rate: float, noise: float) -> np.ndarray:
    chosen, left, log_binomial, starts, lengths = _binomial_terms()
    terms = log_binomial + chosen * math.log(rate) + left * math.log1p(-rate)
    terms += chosen * (chosen - 1) / (2 * noise**2)
    top = np.maximum.reduceat(terms, starts)
    return top + np.log(np.add.reduceat(np.exp(terms - np.repeat(top, lengths)), starts))


def _log_moments_of_other_orders(rate: float, noise: float) -> np.ndarray:
    """Infinity, which leaves the order out, where the series has not converged after all terms."""
    moments = np.full(len(_OTHERS), np.inf)
    open_ = np.arange(len(_OTHERS))  # the orders whose series goes on
    total = np.full((len(_OTHERS), 1), -np.inf)
    middle = noise**2 * math.log(1 / rate - 1) + 0.5
    for start in range(0, _MOST_TERMS, _CHUNK):
        # From one term early on, to see whether the first of this chunk is smaller than the one before it.
        term = np.arange(max(start - 1, 0), start + _CHUNK, dtype=float)
        rest = _OTHERS[open_, None] - term
        log_binomial = _log_binomial()[open_, int(term[0]) : start + _CHUNK]
        low = term * math.log(rate) + rest * math.log1p(-rate) + term * (term - 1) / (2 * noise**2)
        low += log_binomial + special.log_ndtr((middle - term) / noise)
        high = rest * math.log(rate) + term * math.log1p(-rate) + rest * (rest - 1) / (2 * noise**2)
        high += log_binomial + special.log_ndtr((rest - middle) / noise)
        new = np.logaddexp(low, high)[:, 1 if start else 0 :]
        terms = np.hstack([total, new])
        top = terms.max(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):  # far below the largest term, which comes later
            totals = (top + np.log(np.cumsum(np.exp(terms - top), axis=1)))[:, 1:]
        falling = (np.diff(low) < 0) & (np.diff(high) < 0)
        small = np.maximum(low, high)[:, 1:] < totals[:, 0 if start else 1 :] - _NEGLIGIBLE
        stops = falling & small
        found = stops.any(axis=1)
        last = stops.argmax(axis=1) + (0 if start else 1)
        moments[open_[found]] = totals[found, last[found]]
        open_, total = open_[~found], totals[~found, -1:]
        if not len(open_):
            break
    return moments
