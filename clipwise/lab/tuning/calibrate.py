"""The noise with which a whole search meets a budget.

Formal guarantee: the noise that is returned was checked last, with the strategy's own `total`: it does not exceed the
target. It is the smallest that does not, to a relative 1e-4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from scipy.optimize import brentq

from clipwise.lab.tuning.strategy import Events, Strategy
from clipwise.types import BadArgument

Shape = Callable[[float], Events]  # from a first noise multiplier to the events of a run

_LEAST_NOISE, MOST_NOISE = 0.01, 1e4  # noise multipliers: the ends of the search, beyond what any training uses; chosen
_TOLERANCE = 5e-5  # in log noise


def smallest_noise(
    strategy: Strategy, shapes: Sequence[Shape], target: float, delta: float, most_noise: float = MOST_NOISE
) -> float:
    """The smallest noise multiplier, below `most_noise`, with which the search over these candidates costs at most target."""

    def total(noise: float, accountant: str) -> float:
        events = {shape: shape(noise) for shape in dict.fromkeys(shapes)}  # most candidates share one
        return strategy.total([events[shape] for shape in shapes], delta, accountant)

    def excess(log_noise: float, accountant: str) -> float:
        value = total(math.exp(log_noise), accountant)
        inside = 1e-9 * target < value < 1e9 * target
        return math.log(value / target) if inside else math.copysign(20.0, value - target)

    least, most = math.log(_LEAST_NOISE), math.log(most_noise)
    if excess(most, "best") > 0:
        raise too_small(strategy, shapes, target, delta, most_noise)
    if excess(least, "best") <= 0:
        raise BadArgument(
            f"epsilon={target!r} is met with a noise multiplier of {_LEAST_NOISE:g}, which protects nobody; ask for a "
            "smaller epsilon or delta"
        )
    answer, reach = most, most - least
    if excess(most, "rdp") <= 0 < excess(least, "rdp"):  # the quick accountant first, for the neighbourhood
        answer, reach = brentq(excess, least, most, args=("rdp",), xtol=1e-3), 0.05
    low = high = answer
    while low > least and excess(low, "best") <= 0:
        low, high, reach = max(least, low - reach), low, 2 * reach
    while high < most and excess(high, "best") > 0:
        low, high, reach = high, min(most, high + reach), 2 * reach
    answer = (
        high if excess(high, "best") == 0 or low == high else brentq(excess, low, high, args=("best",), xtol=_TOLERANCE)
    )
    for _ in range(20):
        if total(math.exp(answer), "best") <= target:
            return min(math.exp(answer), most_noise)
        answer = min(most, answer + _TOLERANCE)
    raise too_small(strategy, shapes, target, delta, most_noise)


def too_small(
    strategy: Strategy, shapes: Sequence[Shape], target: float, delta: float, most_noise: float
) -> BadArgument:
    """The refusal that says how many candidates would fit."""
    events = [shape(most_noise) for shape in shapes]

    def fits(candidates: int) -> bool:
        return strategy.total(events[:candidates], delta) <= target

    low, high = 1, len(events)  # of these, high does not fit
    if not fits(2):
        return BadArgument(
            f"epsilon={target!r} at delta={delta!r} is too small for a search by {strategy.name}, even over two candidates "
            f"and with a noise multiplier of {most_noise:g}, above which nothing is learnt; ask for more, or tune nothing"
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return BadArgument(
        f"epsilon={target!r} at delta={delta!r} is too small for {len(events)} candidates by {strategy.name} with a noise "
        f"multiplier of at most {most_noise:g}, above which nothing is learnt; the largest number that fits is {low}"
    )
