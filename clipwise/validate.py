"""Checks of arguments, shared by every room. Each names the argument, the value and the remedy.

No privacy check is an `assert`: they hold under `python -O` too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from numbers import Real

from clipwise.types import BadArgument

_LONGEST_PATH, _LONGEST_NAME = 4095, 255  # bytes, Linux's limits; no system allows much more
_LONGEST = 2000  # characters of a message
_SHOWN = 60  # characters of a value in a message


def _number(name: str, value: object, remedy: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise BadArgument(f"{name}={value!r} is not a number; {remedy}")
    try:
        return float(value)
    except OverflowError as error:  # a whole number above 1e308, which may have too many digits to be shown
        raise BadArgument(f"{name} is too large for a number; {remedy}") from error


def positive(name: str, value: object, remedy: str = "give a finite number above 0") -> float:
    number = _number(name, value, remedy)
    if not (math.isfinite(number) and number > 0):
        raise BadArgument(f"{name}={value!r} must be finite and above 0; {remedy}")
    return number


def non_negative(name: str, value: object, remedy: str = "give a finite number, 0 or above") -> float:
    number = _number(name, value, remedy)
    if not (math.isfinite(number) and number >= 0):
        raise BadArgument(f"{name}={value!r} must be finite and not below 0; {remedy}")
    return number


def probability(name: str, value: object, *, one_allowed: bool, remedy: str) -> float:
    """A number in (0, 1), or in (0, 1] if one_allowed."""
    number = _number(name, value, remedy)
    if not (0 < number < 1 or (one_allowed and number == 1)):
        raise BadArgument(f"{name}={value!r} must lie in (0, 1{']' if one_allowed else ')'}; {remedy}")
    return number


def count(name: str, value: object, *, least: int = 1, remedy: str | None = None) -> int:
    remedy = remedy or f"give a whole number of at least {least}"
    number = _number(name, value, remedy)
    if not (math.isfinite(number) and number == int(number) and number >= least):
        raise BadArgument(f"{name}={value!r} must be a whole number of at least {least}; {remedy}")
    return int(number)


def short(text: str) -> str:
    """A message of a length that can be read: a value in it may be a whole file."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"


def path(name: str, value: str) -> str:
    """A text that a file or folder can be called: what asks the system for another gets an error without a name."""
    too_long = len(value.encode()) > _LONGEST_PATH or any(len(p.encode()) > _LONGEST_NAME for p in value.split("/"))
    if "\0" in value or too_long:
        shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
        raise BadArgument(f"{name}={shown!r} is no name that a file can have; give a path of the usual kind")
    return value


def choice(name: str, value: object, allowed: Collection[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise BadArgument(f"{name}={value!r} is not known; choose one of {', '.join(sorted(allowed))}")
    return value


def mean_and_deviation(name: str, value: Sequence[float]) -> tuple[float, float]:
    remedy = "give a mean and a standard deviation above 0 of the pixels, such as 0.1307 and 0.3081"
    if len(value) != 2 or not math.isfinite(value[0]):
        raise BadArgument(f"{name}={list(value)!r} is not two numbers; {remedy}")
    return value[0], positive(name, value[1], remedy)


def finite_or_none(value: object) -> float | None:
    """The value as a finite float, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
