"""From a budget to the noise, or to the number of steps, that spends it.

Formal guarantee: what is returned was checked last, against the same `epsilon` that a report uses: it never exceeds the
target. The noise is the smallest that meets the target, to a relative 2e-5; the step count is the largest.

Method: log epsilon is nearly linear in log noise and in log steps, so a bracketed interpolation needs few evaluations;
the quick RDP answer is the starting point for the tight accountant. A schedule has one unknown, its first noise level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from clipwise import validate
from clipwise.accounting.bound import ACCOUNTANTS, check_delta, check_target, epsilon
from clipwise.accounting.events import Event, StepEvent
from clipwise.accounting.roots import crossing
from clipwise.types import BadArgument

_LEAST_NOISE, _MOST_NOISE = 0.01, 1e6  # noise multipliers: the ends of a search, beyond what any training uses; chosen
_MOST_STEPS = 10_000_000  # of a run: no training has more, and a search for the most steps must end
_TOLERANCE = 1e-5  # in log noise


def calibrate(target_epsilon: float, delta: float, sample_rate: float, steps: int, accountant: str = "best") -> float:
    """The smallest noise multiplier with which `steps` steps stay within (target_epsilon, delta)."""
    steps = validate.count("steps", steps)
    StepEvent(sample_rate, 1.0)  # checks the rate
    return calibrate_shape(target_epsilon, delta, lambda noise: [StepEvent(sample_rate, noise, steps)], accountant)


def calibrate_shape(
    target_epsilon: float,
    delta: float,
    shape: Callable[[float], Sequence[Event]],
    accountant: str = "best",
    *,
    rough: Callable[[float], Sequence[Event]] | None = None,
) -> float:
    """The smallest sigma_0 such that the events `shape(sigma_0)` stay within (target_epsilon, delta).

    `shape` says how a schedule follows from its first noise multiplier; more of that must mean more noise throughout.
    `rough`, where there is one, gives fewer events of nearly the same epsilon, to find the neighbourhood with.
    """
    target = check_target(target_epsilon)
    delta = check_delta(delta)
    validate.choice("accountant", accountant, ACCOUNTANTS)

    def excess(of: Callable[[float], Sequence[Event]], by: str) -> Callable[[float], float]:
        """log(epsilon / target) over log noise, kept finite for the root finder."""

        def of_log_noise(log_noise: float) -> float:
            value = epsilon(of(math.exp(log_noise)), delta, by).value
            inside = 1e-9 * target < value < 1e9 * target
            return math.log(value / target) if inside else math.copysign(20.0, value - target)

        return of_log_noise

    guess, reach = 0.0, 0.5
    if accountant != "rdp":
        try:
            guess = _root(excess(rough or shape, "rdp"), guess, target, reach=reach, tolerance=1e-2) - 0.05
            reach = 0.1
        except BadArgument:  # RDP cannot tell epsilons near 0 apart; the tight accountant can
            pass
    if rough is not None:
        guess = _root(excess(rough, accountant), guess, target, reach=reach, tolerance=1e-4)
        reach = 3e-3
    answer = _root(excess(shape, accountant), guess, target, reach=reach, tolerance=_TOLERANCE)
    for _ in range(100):
        answer += _TOLERANCE  # the root may lie on the wrong side of the target, by the tolerance
        noise = math.exp(answer)
        if epsilon(shape(noise), delta, accountant).value <= target:
            return noise
    raise BadArgument(
        f"target_epsilon={target_epsilon!r} is below what accountant={accountant!r} can resolve here; "
        "ask for a larger epsilon or delta"
    )


def _root(excess: Callable[[float], float], guess: float, target: float, *, reach: float, tolerance: float) -> float:
    """Where the falling function `excess` of log noise crosses 0: a bracket around the guess, then interpolation."""
    least, most = math.log(_LEAST_NOISE), math.log(_MOST_NOISE)
    low = high = guess
    if excess(guess) > 0:
        while excess(high) > 0:
            if high == most:
                raise BadArgument(
                    f"target_epsilon={target!r} is not reached with a noise multiplier of {_MOST_NOISE:g}; "
                    "ask for a larger epsilon or delta, fewer steps or a smaller sample rate"
                )
            low, high, reach = high, min(high + reach, most), 2 * reach
    else:
        while excess(low) <= 0:
            if low == least:
                raise BadArgument(
                    f"target_epsilon={target!r} is met with a noise multiplier of {_LEAST_NOISE:g}, which protects "
                    "nobody; ask for a smaller epsilon, or a delta below sample_rate * steps"
                )
            low, high, reach = max(low - reach, least), low, 2 * reach
    return crossing(excess, low, high, tolerance=tolerance)


def largest_step_count(
    target_epsilon: float,
    delta: float,
    sample_rate: float,
    noise_multiplier: float,
    accountant: str = "best",
) -> int:
    """How many steps at this rate and noise stay within (target_epsilon, delta); 0 if not even one does."""
    target = check_target(target_epsilon)
    delta = check_delta(delta)
    validate.choice("accountant", accountant, ACCOUNTANTS)
    StepEvent(sample_rate, noise_multiplier)  # checks both

    def value(steps: int, by: str) -> float:
        return epsilon([StepEvent(sample_rate, noise_multiplier, steps)], delta, by).value

    def search(by: str, start: int) -> int:
        fits, fails = 0, start
        while (reached := value(fails, by)) <= target:
            if fails >= _MOST_STEPS:
                raise BadArgument(
                    f"target_epsilon={target_epsilon!r} allows more than {_MOST_STEPS} steps at "
                    f"noise_multiplier={noise_multiplier!r}; lower the noise or the target"
                )
            fits = fails
            fails = min(
                _MOST_STEPS, math.ceil(fails * min(4.0, max(1.02, (target / max(reached, 1e-9)) ** 2 * 1.02))) + 1
            )
        while fails - fits > 1:
            # Interpolate in log-log; the margin keeps a bracket end from standing still, the middle serves infinities.
            middle = (fits + fails) // 2
            low, high = (value(fits, by), value(fails, by)) if fits else (0.0, math.inf)
            if 0 < low < high < math.inf:
                share = math.log(target / low) / math.log(high / low)
                guess = round(fits * (fails / fits) ** share)
                margin = max(1, (fails - fits) // 16)
                middle = min(max(guess, fits + margin), fails - margin)
            fits, fails = (middle, fails) if value(middle, by) <= target else (fits, middle)
        return fits

    quick = search("rdp", 1)
    return quick if accountant == "rdp" else search(accountant, max(1, quick))
