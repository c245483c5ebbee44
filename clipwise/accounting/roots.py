"""Where a function crosses zero: Brent's method.

scipy's `brentq` takes the same points, to the bit (`roots_test.py`); the package around it takes 0.2 s to import, which
`from clipwise import attach` would pay.

Reference: Brent, "Algorithms for minimization without derivatives" (1973), chapter 4.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

_MOST_STEPS = 200  # bisection alone takes 60 from 1e9 to 1e-9; the method is never much slower
_ROUNDING = 4 * sys.float_info.epsilon  # relative: no root is told closer than that


def crossing(
    function: Callable[[float], float], low: float, high: float, *, tolerance: float, relative: float = _ROUNDING
) -> float:
    """A point within `tolerance` of a root of a continuous function, which has opposite signs at the two ends."""
    before, here = low, high
    f_before, f_here = function(low), function(high)
    if f_before == 0 or f_here == 0:
        return low if f_before == 0 else high
    if (f_before > 0) == (f_here > 0) or math.isnan(f_before) or math.isnan(f_here):
        raise ValueError(f"the function has no sign change between {low!r} ({f_before!r}) and {high!r} ({f_here!r})")
    other = f_other = last = step = 0.0  # the other side of the root; the last two steps
    for _ in range(_MOST_STEPS):
        if f_here != 0 and (f_before > 0) != (f_here > 0):
            other, f_other = before, f_before
            last = step = here - before
        if abs(f_other) < abs(f_here):  # `here` is the best point so far
            before, here, other = here, other, here
            f_before, f_here, f_other = f_here, f_other, f_here
        least = (tolerance + relative * abs(here)) / 2
        half = (other - here) / 2
        if f_here == 0 or abs(half) < least:
            return here
        last, step = _next(before, here, other, f_before, f_here, f_other, last, step, least)
        before, f_before = here, f_here
        here += step if abs(step) > least else math.copysign(least, half)
        f_here = function(here)
    raise ValueError(f"no root between {low!r} and {high!r} after {_MOST_STEPS} steps")


def _next(
    before: float,
    here: float,
    other: float,
    f_before: float,
    f_here: float,
    f_other: float,
    last: float,
    step: float,
    least: float,
) -> tuple[float, float]:
    """The last step and the next: by interpolation where that is short and gets ahead, else half of the way."""
    half = (other - here) / 2
    if abs(last) <= least or abs(f_here) >= abs(f_before):
        return half, half
    if before == other:
        tried = -f_here * (here - before) / (f_here - f_before)
    else:
        to_before, to_other = (f_before - f_here) / (before - here), (f_other - f_here) / (other - here)
        tried = -f_here * (f_other * to_other - f_before * to_before) / (to_other * to_before * (f_other - f_before))
    return (step, tried) if 2 * abs(tried) < min(abs(last), 3 * abs(half) - least) else (half, half)
