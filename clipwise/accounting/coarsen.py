"""Very many noise levels as a bounded number of them, on the safe side.

Formal guarantee: the events returned dominate those given. Levels are grouped, at one sample rate, into buckets of
neighbouring noise multipliers, and each bucket is charged at its smallest: more noise is post-processing of less, so
this can only raise epsilon. The number of steps stays. Where there are few enough levels, nothing changes; and what
comes out goes through unchanged.

What it adds: a schedule by step has as many levels as steps, and each costs milliseconds. The buckets are cut where the
Renyi divergence of order 2, log(1 + q^2 (exp(1 / s^2) - 1)), which is a good stand-in for a step's share of epsilon,
has risen by the same total in each: narrow where levels are costly, wide where they cost next to nothing. For a
geometric decay the rise is at most about 2 / levels of the whole; in epsilon that is 0.03 to 0.12 % (see the tests).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from clipwise.accounting.events import Kind

MOST_LEVELS = 512  # of noise: RDP and PLD take seconds over these, and epsilon is 0.03 to 0.12 % above the exact one
_MOST_RATES = 32  # sample rates of a run; with more, buckets go by cells of both instead of one search a rate
_TOLERANCE = 0.01  # of the search for the rise of a bucket


def coarsen(events: Sequence[Kind], most: int = MOST_LEVELS) -> tuple[Kind, ...]:
    """At most `most` levels that dominate the given ones, which are distinct and sorted, as `merge` leaves them."""
    if len(events) <= most:
        return tuple(events)
    rates = []
    for rate, same in groupby(events, key=lambda event: event.sample_rate):
        noises, counts = zip(*((event.noise_multiplier, event.count) for event in same), strict=True)
        rates.append(_Rate(rate, np.array(noises), counts))
    buckets = _by_rise(rates, most) if len(rates) <= _MOST_RATES else _by_cells(rates, most)
    return tuple(type(events[0])(*bucket) for bucket in buckets)


def scheduled(
    kind: type[Kind], sample_rate: float, noises: np.ndarray, counts: Sequence[int], most: int = MOST_LEVELS
) -> tuple[Kind, ...]:
    """The same for levels in any order and not yet events, which for a level a step are slow to make."""
    levels, place = np.unique(noises, return_inverse=True)
    summed = np.zeros(len(levels), dtype=np.int64)
    np.add.at(summed, place, np.asarray(counts, dtype=np.int64))
    totals = summed.tolist()
    if len(levels) <= most:
        return tuple(kind(sample_rate, noise, count) for noise, count in zip(levels.tolist(), totals, strict=True))
    return tuple(kind(*bucket) for bucket in _by_rise([_Rate(sample_rate, levels, totals)], most))


class _Bucket(NamedTuple):
    sample_rate: float
    noise_multiplier: float
    steps: int


def _by_rise(rates: Sequence[_Rate], most: int) -> list[_Bucket]:
    """Buckets that all raise the cost alike, by as little as makes few enough of them."""
    low, high = 0.0, max(rate.largest_rise for rate in rates)  # which makes one bucket a rate
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        fits = sum(len(rate.starts(middle)) for rate in rates) <= most
        low, high = (low, middle) if fits else (middle, high)
    return [bucket for rate in rates for bucket in rate.buckets(high)]


class _Rate:
    """The levels at one rate, from little noise to much."""

    def __init__(self, rate: float, noises: np.ndarray, counts: Iterable[int]) -> None:
        self.rate, self.noises, self.counts = rate, noises.tolist(), list(counts)
        with np.errstate(divide="ignore", over="ignore"):
            square = np.minimum(noises**-2.0, 1e12)  # no noise at all is a level too
        # log(1 + q^2 (e^x - 1)), without overflow
        moderate = np.log1p(rate**2 * np.expm1(np.minimum(square, 30)))
        divergence = np.where(square < 30, moderate, np.maximum(square + 2 * math.log(rate), moderate))
        self._divergence = divergence.tolist()
        self._steps = [0, *np.cumsum(self.counts).tolist()]
        self._costs = [0.0, *np.cumsum(np.array(self.counts) * divergence).tolist()]
        self.largest_rise = self._steps[-1] * self._divergence[0]

    def starts(self, rise: float) -> list[int]:
        """Where each bucket starts, if charging all of it like its first level may add `rise` to the cost."""
        found, start, end = [], 0, len(self.noises)
        while start < end:
            found.append(start)
            first, steps, cost = self._divergence[start], self._steps[start], self._costs[start]

            def added(stop: int, first: float = first, steps: int = steps, cost: float = cost) -> float:
                return float((self._steps[stop] - steps) * first - (self._costs[stop] - cost))

            stop = bisect.bisect_right(range(end + 1), rise, lo=start + 1, key=added) - 1
            start = max(stop, start + 1)  # a bucket of one level adds nothing, but for rounding
        return found

    def buckets(self, rise: float) -> list[_Bucket]:
        return [
            _Bucket(self.rate, self.noises[start], self._steps[stop] - self._steps[start])
            for start, stop in pairwise([*self.starts(rise), len(self.noises)])
        ]


def _by_cells(rates: Sequence[_Rate], most: int) -> list[_Bucket]:
    """Where rates differ as much as noise does: cells of both, each charged at its largest rate and smallest noise."""
    step = 5e-4
    cells: dict[tuple[int, int], _Bucket] = {}
    while not cells or len(cells) > most:
        cells = {}
        for each in rates:
            for noise, count in zip(each.noises, each.counts, strict=True):
                key = math.floor(math.log(each.rate) / step), math.floor(math.log(max(noise, 1e-300)) / step)
                old = cells.get(key, _Bucket(0.0, math.inf, 0))
                cells[key] = _Bucket(
                    max(old.sample_rate, each.rate), min(old.noise_multiplier, noise), old.steps + count
                )
        step *= 2
    return sorted(cells.values())
