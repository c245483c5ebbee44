"""Epsilon of batches of a fixed size, drawn without replacement, by Renyi differential privacy.

Formal guarantee: an upper bound on epsilon for data sets of the same, public size that differ in *one record replaced*.
Every step draws m of n records anew, all subsets alike, and releases their sum (each part within an l2 bound) plus
Gaussian noise. Replacing a record moves the sum by up to twice the bound, so the noise counts half: with s for half the
noise multiplier, q = m / n and r the likelihood ratio of N(1, s^2) to N(0, s^2),

    (a - 1) RDP(a) <= log(1 + sum_{j=2..a} binom(a, j) q^j B_j)
    B_2 = min(4 (e^{1/s^2} - 1), 2 e^{1/s^2})
    B_j = min(4 sqrt(E(r-1)^{j-} E(r-1)^{j+}), 2 e^{j (j-1) / 2s^2})     j-, j+ the even numbers around j

for whole orders a; between two of them (a - 1) RDP(a) is convex, and the chord bounds it. The moments of r - 1 are sums
of positive terms here, where differences of exponentials would cancel.

There is no tight (PLD) bound for this scheme here, and the Poisson one does not apply to it.

Reference: Wang, Balle, Kasiviswanathan, "Subsampled Renyi differential privacy and analytical moments accountant"
(2019), Theorem 27 and Corollary 10.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from clipwise.accounting.coarsen import coarsen
from clipwise.accounting.events import FixedSizeEvent, merge_as
from clipwise.accounting.later import special
from clipwise.accounting.rdp import ORDERS, converted

_WHOLE = np.unique(np.concatenate([np.floor(ORDERS), np.ceil(ORDERS)])).astype(int)  # the chord needs both ends
_LARGEST_MOMENT = 256  # of r - 1; beyond it the second bound serves
_EVEN = np.arange(2, _LARGEST_MOMENT + 1, 2)
_NODE = 0.1  # distance of the trapezoid rule's nodes, in deviations: the integrand is smooth on the scale of 0.7
_MARGIN = 1e-9  # relative, above the error of the sums


def fixed_size_epsilon(events: Sequence[FixedSizeEvent], delta: float) -> float:
    """Upper bound on epsilon at delta."""
    levels = coarsen(merge_as(FixedSizeEvent, events))
    if not levels:
        return 0.0
    if any(event.noise_multiplier == 0 for event in levels):
        return math.inf
    curves = [event.count * _curve(event.sample_rate, event.noise_multiplier) for event in levels]
    return converted(np.sum(curves, axis=0), delta)


@functools.lru_cache(maxsize=16384)
def _curve(sample_rate: float, noise_multiplier: float) -> np.ndarray:
    """The Renyi divergence of one step at each order."""
    noise = noise_multiplier / 2
    if sample_rate == 1:
        return ORDERS / (2 * noise**2)
    log_moments = np.zeros(_WHOLE[-1] + 1)  # (a - 1) RDP(a) at whole orders; 0 for order 1
    log_bounds = _log_bounds(noise, _WHOLE[-1])
    j = np.arange(2, _WHOLE[-1] + 1)
    terms = j * math.log(sample_rate) + log_bounds - special.gammaln(j + 1)
    for order in _WHOLE[1:]:
        sum_ = terms[: order - 1] + special.gammaln(order + 1) - special.gammaln(order - j[: order - 1] + 1)
        log_moments[order] = np.logaddexp(0.0, _log_sum(sum_)) * (1 + _MARGIN)
    low, high = np.floor(ORDERS).astype(int), np.ceil(ORDERS).astype(int)
    share = ORDERS - low
    with np.errstate(invalid="ignore"):
        chord = np.where(share > 0, (1 - share) * log_moments[low] + share * log_moments[high], log_moments[low])
    return np.asarray(np.where(np.isnan(chord), np.inf, chord) / (ORDERS - 1))


def _log_bounds(noise: float, last: int) -> np.ndarray:
    """log B_j for j from 2 to last."""
    j = np.arange(2, last + 1, dtype=float)
    plain = math.log(2) + j * (j - 1) / (2 * noise**2)
    even = _log_even_moments(noise)  # of 2, 4, ..., the largest
    k = np.arange(2, min(last, _LARGEST_MOMENT) + 1)
    around = math.log(4) + (even[k // 2 - 1] + even[np.minimum((k + 1) // 2, len(even)) - 1]) / 2
    plain[: len(k)] = np.minimum(plain[: len(k)], around)
    return plain


def _log_even_moments(noise: float) -> np.ndarray:
    """log E (r - 1)^j for even j; infinite where plain powers of r do as well."""
    # The integrand peaks near x = j at the furthest, or near sqrt(j) deviations; where r is beyond exp(5) at its peak,
    # r - 1 and r are the same for the bound's purposes and the factor 4 makes this one useless.
    served = _EVEN[_EVEN / noise**2 < 5]
    log_moments = np.full(len(_EVEN), np.inf)
    if not len(served):
        return log_moments
    top = float(served[-1])
    node = np.arange(-(math.sqrt(top) + 12), 2 * math.sqrt(top) + top / noise + 12, _NODE)  # in deviations
    log_ratio = node / noise - 1 / (2 * noise**2)
    with np.errstate(divide="ignore"):
        log_distance = np.maximum(np.log(np.abs(np.expm1(log_ratio))), -1e6)
    log_density = -(node**2) / 2 + math.log(_NODE / math.sqrt(2 * math.pi))
    terms = served[:, None] * log_distance + log_density
    peak = terms.max(axis=1)
    log_moments[: len(served)] = peak + np.log(np.exp(terms - peak[:, None]).sum(axis=1)) + _MARGIN
    log_moments[0] = min(log_moments[0], math.log(math.expm1(min(noise**-2, 700)))) + _MARGIN
    return log_moments


def _log_sum(values: np.ndarray) -> float:
    top = float(values.max())
    return top if math.isinf(top) else top + math.log(float(np.exp(values - top).sum()))
