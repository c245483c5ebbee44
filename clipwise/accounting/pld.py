"""Epsilon by privacy loss distributions: the tight accountant, fast for many noise levels.

Formal guarantee: `pld_epsilon` is an upper bound on epsilon at delta, for add/remove neighbours, of all the events
composed. Each direction is bounded by itself and the larger epsilon is the answer. For one direction,

    delta(epsilon) <= sum over grid losses L > epsilon of m(L) (1 - exp(epsilon - L))  +  infinite  +  wrapped

- m is the distribution of the sum of the steps' losses, each made pessimistic on the grid (`dots.py`: it dominates).
- It comes from a cyclic convolution, so that a loss beyond the window re-enters at its other end. From below, that puts
  mass on a larger loss, which can only raise the sum. From above, the mass would count for too little: `wrapped` bounds
  all of it, by Chernoff's inequality with the moment generating functions of the grid distributions themselves, and is 0
  where the window covers every possible loss.
- `infinite` is the exact chance that any step has infinite loss on the grid.
- Rounding of the transforms: with inputs of total mass 1, each frequency of a level is wrong by at most e = 8 u log2(n)
  (n points, u the unit roundoff), so a product of powers is wrong by at most prod (|f|+e)^count - prod |f|^count, plus
  8 u for each multiplication. The mean of that over frequencies bounds the error of each point, and is added to each.

The answer is the smallest epsilon for which the right side is at most delta. Its excess over the truth is steered by the
grid width to about 0.03 % (0.1 % for more than 128 levels), and where 2^20 points do not suffice for that, a wider grid costs tightness, never validity.
All rates equal to 1 need no grid: a sum of Gaussians is one Gaussian, with a closed form.

References: Koskela, Jälkö, Honkela (2020), Gopi, Lee, Wutschitz (2021) for Fourier accountants; Balle and Wang (2018),
Theorem 8, for the Gaussian; see also `dots.py` and `tilt.py`.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clipwise.accounting.coarsen import coarsen
from clipwise.accounting.dots import Dots, connect_the_dots
from clipwise.accounting.events import StepEvent, merge
from clipwise.accounting.gdp import gaussian_epsilon
from clipwise.accounting.joint import joint_noise_multiplier
from clipwise.accounting.later import fft
from clipwise.accounting.tilt import Losses, Tilted

_GRID_ERROR = 3e-4  # what the grid may add to epsilon, relatively
_GRID_ERROR_OF_MANY, _MANY = 1e-3, 128  # where there are more levels than this, each costs less
_CUT = 1e-4  # the share of delta given to infinite loss, and again to what wraps around
_FOLDED = 1e-6  # the chance, under the tilt, of a loss below the window, and of one above it
_LEAST_POINTS, _MOST_POINTS = 1 << 13, 1 << 20  # of the grid: fewer save no time, more take seconds; chosen
_ATTEMPTS = 8  # at a good tilt; each gives a bound, and the first is nearly always the last
# Of the whole curve: the grid may add this to epsilon, over the loss's deviation where that is below 1, so that a chance
# grows by some tenths of a percent; and so much mass is given to infinite loss, and again to what wraps around.
_CURVE_ERROR, _CURVE_CUT = 1e-3, 1e-9
_CURVE_POINTS = 1 << 17  # at most: with 128 levels of noise below 2 s on one core, with one below 0.1 s
_UNIT = sys.float_info.epsilon


def pld_epsilon(events: Sequence[StepEvent], delta: float) -> float:
    """Upper bound on epsilon at delta; infinity where floating point cannot answer."""
    return _evaluate(coarsen(merge(events)), delta)


@functools.lru_cache(maxsize=512)
def _evaluate(events: tuple[StepEvent, ...], delta: float) -> float:
    if not events:
        return 0.0
    if any(event.noise_multiplier == 0 for event in events):
        return math.inf
    # Total variation adds up over steps: where the sum is within delta, epsilon is 0.
    if sum(event.count * _total_variation(event) for event in events) * (1 + 1e-9) <= delta:
        return 0.0
    events = _collapse_unsampled(events)
    if all(event.sample_rate == 1 for event in events):
        return gaussian_epsilon(events[0].noise_multiplier, delta)
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        value = _one_direction(events, delta, removal=True)
        # No answer has a larger loss than this when a record is added; for little noise the other direction has.
        most = sum(
            event.count * -math.log1p(-event.sample_rate) if event.sample_rate < 1 else math.inf for event in events
        )
        return value if most <= value else max(value, _one_direction(events, delta, removal=False))


class _Composed(NamedTuple):
    """The sum of all losses, tilted: mass exp(log_scale - tilt * loss) * masses at each loss of the window."""

    width: float  # of the grid
    losses: np.ndarray
    masses: np.ndarray
    log_scale: float
    tilt: float
    lost: float  # infinite and wrapped mass


def _one_direction(events: tuple[StepEvent, ...], delta: float, *, removal: bool) -> float:
    steps = sum(event.count for event in events)
    cut = max(_CUT * delta / steps, 1e-300)
    losses = Losses(events, cut, removal=removal)
    centre = losses.saddle(delta)
    best = math.inf
    relative = _GRID_ERROR if len(events) <= _MANY else _GRID_ERROR_OF_MANY
    far = losses.beyond(losses.at(0.0), math.log(_CUT * delta), 1)
    for _ in range(_ATTEMPTS):
        error = relative * max(centre.mean, 1e-2 * math.sqrt(centre.variance), 1e-300)
        composed = _composed_around(centre, far, losses, events, error, cut, removal=removal)
        if composed is None:
            return math.inf
        value, previous = _epsilon(composed, delta), best
        best = min(best, value)
        close_enough = abs(value - centre.mean) <= 0.1 * value or value > 0.999 * previous
        if (close_enough and value < math.inf) or value == 0:
            break
        # The loss is far from normal, and under so strong a tilt rare large losses may crowd the window: ease off.
        centre = losses.at(centre.tilt / 2)
    return best


def whole_curve(events: tuple[StepEvent, ...], *, removal: bool) -> tuple[float, np.ndarray, np.ndarray, float] | None:
    """The whole distribution of the composed loss for one direction, pessimistic as above: the width of a grid, its losses,
    the mass at each, and what is infinite or left the window at its top. None where floating point cannot answer.

    Without a tilt: for chances that are not tiny, to which some 1e-8 may be added.
    """
    events = _collapse_unsampled(events)
    cut = _CURVE_CUT / sum(event.count for event in events)
    losses = Losses(events, cut, removal=removal)
    plain = losses.at(0.0)
    far = losses.beyond(plain, math.log(_CURVE_CUT), 1)
    error = _CURVE_ERROR * min(1.0, math.sqrt(plain.variance))
    composed = _composed_around(
        plain, far, losses, events, max(error, 1e-300), cut, removal=removal, most_points=_CURVE_POINTS
    )
    if composed is None:
        return None
    return composed.width, composed.losses, math.exp(composed.log_scale) * composed.masses, composed.lost


def _composed_around(
    centre: Tilted,
    far: Tilted,
    losses: Losses,
    events: tuple[StepEvent, ...],
    error: float,
    cut: float,
    *,
    removal: bool,
    most_points: int = _MOST_POINTS,
) -> _Composed | None:
    """The sum of all losses on a grid that adds about `error` to epsilon, in a window around the centre; None where no
    window does."""
    lower, upper = (losses.beyond(centre, math.log(_FOLDED), side) for side in (-1, 1))
    top = max(far.mean, upper.mean)
    span = top - lower.mean
    width = losses.width_for(centre, error)
    width = min(max(width, span / most_points), span / _LEAST_POINTS)
    # A step's own losses, too, are held on a bounded number of points.
    width = max(width, (min(losses.largest, top) - max(losses.smallest, min(lower.mean, 0) - span)) / most_points)
    if not width > 1e-300:
        return None
    margin = 16 + math.ceil((0.01 * span + 8 * math.sqrt(losses.spread_by_grid(centre, width))) / width)
    points = fft.next_fast_len(math.ceil(span / width) + 2 * margin, real=True)
    start = math.floor(lower.mean / width) - margin
    return _compose(events, centre.tilt, far.tilt, width, start, points, cut, removal)


def _compose(
    events: tuple[StepEvent, ...],
    tilt: float,
    far_tilt: float,
    width: float,
    start: int,
    points: int,
    cut: float,
    removal: bool,
) -> _Composed:
    """All steps on one grid, by powers in the Fourier domain; one level at a time, so that memory stays small."""
    error = 8 * _UNIT * math.log2(points)
    powers: dict[int, np.ndarray] = {}  # bit -> product of the levels whose count has this bit
    log_bound = np.zeros(points // 2 + 1)
    log_scale = log_far = log_finite = 0.0
    offset = last = 0
    # One loss so far out takes the sum out of the window, whatever the others are: below it does not count, above it is
    # as good as infinite.
    within = (min(start, 0) - points, max(start, 0) + 2 * points)
    for event in events:
        dots = connect_the_dots(event.sample_rate, event.noise_multiplier, width, cut, within, removal=removal)
        level, log_mass = _tilt(dots, width, tilt)
        log_scale += event.count * log_mass
        log_far += event.count * _tilt(dots, width, far_tilt)[1]
        log_finite += event.count * math.log1p(-min(dots.infinite, 1.0)) if dots.infinite < 1 else -math.inf
        offset += event.count * dots.first
        last += event.count * (dots.first + len(level) - 1)
        frequencies = fft.rfft(_fold(level, points), points)
        log_bound += event.count * np.log(np.abs(frequencies) + error)
        for bit in range(event.count.bit_length()):
            if event.count >> bit & 1:
                powers[bit] = powers[bit] * frequencies if bit in powers else frequencies
    product = np.ones(points // 2 + 1, dtype=complex)
    for bit in range(max(powers), -1, -1):
        product = product * product
        if bit in powers:
            product *= powers[bit]
    steps = sum(event.count for event in events)
    deviation = np.exp(log_bound) * (1 + error + 8 * _UNIT * (steps + 64)) - np.abs(product)
    wrong = 2 * float(np.maximum(deviation, 0).sum() + error * np.abs(product).sum()) / points
    masses = np.roll(fft.irfft(product, points), (offset - start) % points)
    end = start + points
    log_wrapped = log_far - far_tilt * width * end
    sums = 4 * _UNIT * (len(events) + 4)
    log_wrapped += sums * (abs(log_far) + abs(far_tilt * width * end))
    log_scale += sums * (abs(log_scale) + abs(tilt) * width * max(abs(start), abs(end)))
    wrapped = 0.0 if last < end else math.exp(min(log_wrapped, 0.0))
    lost = -math.expm1(log_finite) + wrapped
    return _Composed(width, width * np.arange(start, end), np.maximum(masses, 0) + wrong, log_scale, tilt, lost)


def _tilt(dots: Dots, width: float, tilt: float) -> tuple[np.ndarray, float]:
    """Masses times exp(tilt * loss), scaled to total 1, and the log of what they were divided by, rounded up.

    That scale also makes up for what rounding may take from any one of the masses.
    """
    exponent = tilt * width * np.arange(dots.first, dots.first + len(dots.masses))
    size = max(abs(float(exponent[0])), abs(float(exponent[-1])))
    exponent += np.log(dots.masses)
    top = float(exponent.max())
    weights = np.exp(exponent - top)
    total = float(weights.sum())
    return weights / total, top + math.log(total) + _UNIT * (64 + 4 * size + 4 * abs(top))


def _fold(level: np.ndarray, points: int) -> np.ndarray:
    """A level longer than the window wraps around it, as the whole convolution does."""
    if len(level) <= points:
        return level
    return np.asarray(np.pad(level, (0, -len(level) % points)).reshape(-1, points).sum(axis=0))


def _epsilon(composed: _Composed, delta: float) -> float:
    """The smallest epsilon of the window at which the bound on delta holds; its first loss if it holds there."""
    losses, left = composed.losses, delta - composed.lost
    if not left > 0:
        return math.inf
    masses = np.exp(composed.log_scale - composed.tilt * losses) * composed.masses

    def spent(index: int) -> float:
        return float((masses[index + 1 :] * -np.expm1(losses[index] - losses[index + 1 :])).sum()) * (1 + 1e-12)

    fails, fits = -1, len(losses) - 1  # at the last loss of the window, only what is lost is spent
    while fits - fails > 1:
        middle = (fails + fits) // 2
        fails, fits = (fails, middle) if spent(middle) <= left else (middle, fits)
    if fits == 0:
        return max(0.0, float(losses[0]))
    # Between two grid points delta is linear in exp(epsilon).
    whole = float(masses[fits:].sum()) * (1 + 1e-12)
    other = float((masses[fits:] * np.exp(losses[fits] - losses[fits:])).sum())
    step = math.log((whole - left) / other) if whole > left else -math.inf
    return max(0.0, float(losses[fits - 1]), float(losses[fits]) + min(step, 0.0)) * (1 + 1e-12)


def _total_variation(event: StepEvent) -> float:
    return event.sample_rate * math.erf(0.5 / event.noise_multiplier / math.sqrt(2))


def _collapse_unsampled(events: tuple[StepEvent, ...]) -> tuple[StepEvent, ...]:
    """Releases that see every record are one Gaussian, exactly: no grid error need be paid for composing them."""
    whole = [event.noise_multiplier / math.sqrt(event.count) for event in events if event.sample_rate == 1]
    sampled = tuple(event for event in events if event.sample_rate < 1)
    return (*sampled, StepEvent(1.0, joint_noise_multiplier(whole))) if whole else sampled
