"""One step's privacy loss on a grid, pessimistically: "connect the dots".

For the Poisson-subsampled Gaussian with sample rate q and noise multiplier s, write A = N(0, s^2), B = N(1, s^2) and
M = (1-q) A + q B. Removing a record turns M into A, adding one turns A into M; the privacy loss of an answer x is
log(1 - q + q r(x)) in the first case and its negative in the second, with r(x) = dB/dA(x) = exp((2x-1) / 2s^2).

Formal guarantee: the `Dots` of a step dominate the step: for every alpha, their hockey-stick curve is at least
sup_S P(S) - alpha Q(S), where (P, Q) is (M, A) for removal and (A, M) for addition. Domination survives composition.
Why: the grid cuts the line of answers into cells, one between each two neighbouring losses. The mass P of a cell moves to
its two ends in the only shares that keep its mass under Q as well, so that the new curve meets the true one at each grid
point and is straight between: above it, as the true one is convex in alpha. What lies above the grid becomes infinite
loss, what lies below it moves up to the first grid point. Both raise the curve, and so does what is added for rounding.

The shares come from cell masses in closed form (differences of the normal distribution function), not from second
differences of the curve, which would cancel: a rounding error then moves a little mass by one grid step, no further.

References: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the dots: tighter discrete approximations of privacy
loss distributions" (2022); Zhu, Dong, Wang, "Optimal accounting of differential privacy via characteristic function"
(2022), for dominating pairs of subsampled mechanisms and their composition.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numpy as np

from clipwise.accounting.later import special

# Bounds the relative rounding error of a tail probability, and of what is computed from it, with room to spare.
_ROUNDING = 16 * sys.float_info.epsilon

_EXP_SAFE = 30.0  # from here on exp(-loss) no longer matters beside 1
_NO_MASS = -1e300  # the log of an empty tail, kept finite so that differences are not NaN


class Dots(NamedTuple):
    """P's mass at the losses width * (first, first + 1, ...), and at infinite loss."""

    first: int
    masses: np.ndarray
    infinite: float


class _Tails(NamedTuple):
    """A normal distribution on the cells."""

    log_mass: np.ndarray  # of each cell
    log_error: np.ndarray  # of each cell: the log of what rounding may be, over _ROUNDING
    below: float  # mass below the first cell
    above: float


def loss(answer: np.ndarray, rate: np.ndarray | float, noise: np.ndarray | float) -> np.ndarray:
    """The privacy loss of an answer when a record is removed; arguments are broadcast."""
    with np.errstate(divide="ignore"):  # a rate of 1
        return np.asarray(np.logaddexp(np.log1p(-np.asarray(rate)), np.log(rate) + (answer - 0.5) / np.square(noise)))


def reaches(rate: np.ndarray | float, cut: float) -> tuple[float, np.ndarray]:
    """How many deviations out A, and B in M, still have more than half the mass `cut` above."""
    return -float(special.ndtri(cut / 2)), np.maximum(-special.ndtri(np.minimum(cut / 2 / np.asarray(rate), 0.5)), 0.0)


def connect_the_dots(
    rate: float, noise: float, width: float, cut: float, within: tuple[int, int], *, removal: bool
) -> Dots:
    """The step's loss on the grid of this width.

    Its ends leave out a mass of at most `cut`, and lie at the grid indices `within` where these are closer.
    """
    absent_reach, present_reach = reaches(rate, cut)
    ends = np.array([-absent_reach * noise, max(absent_reach * noise, 1 + float(present_reach) * noise)])
    first, last = (loss(ends, rate, noise) / width).tolist()
    least, most = within if removal else (-within[1], -within[0])
    low = min(max(math.floor(first), least), most - 1)
    high = max(min(math.ceil(last), most), low + 1)
    losses = width * np.arange(low, high + 1, dtype=float)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        log_ratio = _log_ratio(losses, rate)
        answers = noise**2 * log_ratio + 0.5
        absent, present = _tails(answers / noise), _tails((answers - 1) / noise)
        if removal:
            return _removal(losses, rate, width, low, log_ratio, absent, present)
        return _addition(losses, rate, width, low, log_ratio, absent, present)


def _log_ratio(losses: np.ndarray, rate: float) -> np.ndarray:
    """log r at the answer with this loss; minus infinity at losses that no answer has, log(1 - rate) and below."""
    small = np.log1p(np.maximum(np.expm1(np.minimum(losses, _EXP_SAFE)) / rate, -1.0))
    large = losses - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-np.maximum(losses, _EXP_SAFE)))
    # For rate 1 the ratio is exp(loss), which the first form loses to rounding at very negative losses.
    return losses if rate == 1 else np.where(losses < _EXP_SAFE, small, large)


def _tails(points: np.ndarray) -> _Tails:
    """Cell masses of the standard normal from its smaller tail on either side, so that no tail cancels."""
    tail = np.maximum(special.log_ndtr(-np.abs(points)), _NO_MASS)
    start, end = tail[:-1], tail[1:]
    outer = np.maximum(start, end)
    across = (points[:-1] < 0) & (points[1:] > 0)
    one_side = outer + np.log(-np.expm1(-np.abs(end - start)))
    log_mass = np.where(across, np.log1p(-np.exp(start) - np.exp(end)), one_side)
    # A tail of log value t carries a relative error that grows with |t|.
    log_error = np.where(across, 0.0, outer + np.log1p(-outer))
    below, above = np.exp(special.log_ndtr(np.array([points[0], -points[-1]]))).tolist()
    return _Tails(log_mass, log_error, below, above)


def _removal(
    losses: np.ndarray, rate: float, width: float, low: int, log_ratio: np.ndarray, absent: _Tails, present: _Tails
) -> Dots:
    """P = M, Q = A: to a cell's upper end goes (P - exp(lower loss) Q) / (1 - exp(-width)) = q (B - r A) / ..."""
    ratio = log_ratio[:-1] + math.log(rate)
    part_b, part_a = rate * np.exp(present.log_mass), np.exp(ratio + absent.log_mass)
    size = np.maximum(ratio, -700.0)  # finite
    error = rate * np.exp(present.log_error) + np.exp(size + absent.log_error) * (1 + np.abs(size))
    if not math.isfinite(ratio[0]):  # the first cell's lower loss is below every answer's: q r = exp(loss) - 1 + q < 0
        part_a[0] = (np.expm1(losses[0]) + rate) * np.exp(absent.log_mass[0])
        error[0] += rate + abs(part_a[0])
    total = (1 - rate) * np.exp(absent.log_mass) + part_b
    total += _ROUNDING * ((1 - rate) * np.exp(absent.log_error) + rate * np.exp(present.log_error))
    masses = _ends(total, part_b - part_a, error, width)
    masses[0] += (1 - rate) * absent.below + rate * present.below
    infinite = ((1 - rate) * absent.above + rate * present.above) * (1 + _ROUNDING)
    return Dots(low, masses, infinite)


def _addition(
    losses: np.ndarray, rate: float, width: float, low: int, log_ratio: np.ndarray, absent: _Tails, present: _Tails
) -> Dots:
    """P = A, Q = M, losses negated: the upper end is now the cell's first; its share is q (r A - B) / exp(removal loss)."""
    scale = math.log(rate) - losses[1:]
    ratio = log_ratio[1:] + scale
    part_a, part_b = np.exp(ratio + absent.log_mass), np.exp(scale + present.log_mass)
    error = np.exp(ratio + absent.log_error) * (1 + np.abs(ratio)) + np.exp(scale + present.log_error)
    total = np.exp(absent.log_mass) + _ROUNDING * np.exp(absent.log_error)
    masses = _ends(total[::-1], (part_a - part_b)[::-1], error[::-1], width)
    masses[0] += absent.above
    return Dots(-(low + len(losses) - 1), masses, absent.below * (1 + _ROUNDING))


def _ends(total: np.ndarray, upper: np.ndarray, error: np.ndarray, width: float) -> np.ndarray:
    """Each cell's mass on its two ends. `upper` is the exact share of the upper end times 1 - exp(-width)."""
    share = (np.maximum(upper, 0) + _ROUNDING * error) / -math.expm1(-width)
    share = np.where(np.isfinite(share), np.minimum(share, total), total)  # in doubt, all of it moves up
    masses = np.zeros(len(total) + 1)
    masses[:-1] = total - share
    masses[1:] += share
    return masses
