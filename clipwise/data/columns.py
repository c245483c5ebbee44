"""The kinds of columns that a table of records can have, and how each becomes numbers.

Formal guarantee: a kind is plain data (numbers, words, lists of these), made before training from what is public, from what
the user declares public, or from released values. `encode` is a function of one value and that data alone, row by row: no
value of another record has a part in it, and the number of columns that come out does not depend on the records.

| kind     | what is public about it                         | what comes out                                              |
| -------- | ----------------------------------------------- | ----------------------------------------------------------- |
| number   | a range, or none; what stands for a gap         | 0..1 (as it is without a range), and 0 or 1 for a gap if `flag` |
| category | a list of values                                | 0 or 1 a value, one more for a gap; a value not listed: all 0 |
| hashed   | a number of buckets, or the buckets that were released | the same by bucket                                   |
| words    | a number of buckets                             | how often words of a bucket occur / root of the text's words |
| date     | its parts, each with a range                    | 0..1 a part                                                 |

A message names the column and the kind of trouble, never a value.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import TypeAdapter

from clipwise.data.source import Array, Values
from clipwise.data.text import words
from clipwise.types import BadArgument

FLAG = "flag"  # the rule for gaps that gives them a column of their own
GAPS = frozenset(
    ("", "na", "n/a", "nan", "null", "none", "?")
)  # what stands for a missing number, where a rule is given
_MOST_NAMES, _LONGEST_NAME = 20, 60  # of columns, in a message
_MOST_BUCKETS = 65_536  # of a hashed column: above it a number is a typing error
Missing = Literal["flag"] | float | None


def some(names: Sequence[str]) -> str:
    """Names for a message: a header may hold millions of them, or one that is as long as the file."""
    shown = [name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..." for name in names[:_MOST_NAMES]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def is_gap(value: Any) -> bool:
    """None, NaN, NaT, pandas.NA, or an empty field."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # pandas.NA has no truth value
        return True


def as_text(value: Any) -> str:
    """The value as a category's or a class's name: 1, 1.0 and numpy's ones are all `1`; the empty text is a gap."""
    if isinstance(value, str):
        return value.strip()
    if is_gap(value):
        return ""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


class Column(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def features(self) -> tuple[str, ...]: ...  # names of the numbers that come out
    def encode(self, values: Values) -> Array: ...  # (records, len(features)), float64


@dataclass(frozen=True)
class Number:
    name: str
    low: float | None = None
    high: float | None = None
    missing: Missing = None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None) or (
            self.low is not None
            and self.high is not None
            and not (math.isfinite(self.high - self.low) and self.low < self.high)
        ):
            raise BadArgument(
                f"range of {some([self.name])!r}: {self.low!r}:{self.high!r} is no range; give low before high"
            )
        if self.missing is not None and self.missing != FLAG and not _is_finite(self.missing):
            raise BadArgument(
                f"missing {some([self.name])!r}={self.missing!r} is no rule; give flag, or the number that stands for a gap"
            )

    @property
    def features(self) -> tuple[str, ...]:
        return (self.name, f"{self.name} is missing") if self.missing == FLAG else (self.name,)

    def encode(self, values: Values) -> Array:
        numbers = read_numbers(self.name, values, gaps=self.missing is not None)
        gone = np.isnan(numbers) if self.missing is not None else np.zeros(len(numbers), bool)
        scaled = self._scaled(numbers)
        if isinstance(self.missing, int | float):
            scaled[gone] = self._scaled(np.array([float(self.missing)]))[0]
        elif self.missing == FLAG:
            scaled[gone] = 0.0
            return np.stack([scaled, gone.astype(np.float64)], axis=1)
        return scaled[:, None]

    def _scaled(self, numbers: Array) -> Array:
        if self.low is None or self.high is None:
            return numbers
        return (np.clip(numbers, self.low, self.high) - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Category:
    name: str
    values: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) < len(self.values) or not all(self.values):
            raise BadArgument(
                f"categories of {some([self.name])!r}: the list is empty, or has a value twice or an empty one; give each once"
            )

    @property
    def features(self) -> tuple[str, ...]:
        return (*(f"{self.name}={value}" for value in self.values), f"{self.name} is missing")

    def encode(self, values: Values) -> Array:
        places = {value: place for place, value in enumerate(self.values)} | {"": len(self.values)}
        return _one_hot([places.get(as_text(value), -1) for value in values], len(self.features))


@dataclass(frozen=True)
class Hashed:
    """`kept`: of all buckets, those that a private histogram released; values in others are as one that is not listed."""

    name: str
    buckets: int
    kept: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.buckets <= _MOST_BUCKETS:
            raise BadArgument(
                f"categories of {some([self.name])!r}: hashed:{self.buckets} is not in 2..{_MOST_BUCKETS}; give a number of buckets"
            )

    @property
    def features(self) -> tuple[str, ...]:
        own = range(self.buckets) if self.kept is None else self.kept
        return (*(f"{self.name}#{bucket}" for bucket in own), f"{self.name} is missing")

    def bucket(self, value: Any) -> int:
        """Of a value, 0..buckets-1; -1 for a gap."""
        text = as_text(value)
        return _hash(text) % self.buckets if text else -1

    def encode(self, values: Values) -> Array:
        own = range(self.buckets) if self.kept is None else self.kept
        places = {bucket: place for place, bucket in enumerate(own)} | {-1: len(own)}
        number = cache(self.bucket)
        return _one_hot([places.get(number(as_text(value)), -1) for value in values], len(self.features))


@dataclass(frozen=True)
class Words:
    """A text among other columns: which words, not their order."""

    name: str
    buckets: int

    def __post_init__(self) -> None:
        if not 2 <= self.buckets <= _MOST_BUCKETS:
            raise BadArgument(
                f"text {some([self.name])!r}: hashed:{self.buckets} is not in 2..{_MOST_BUCKETS}; give a number of buckets"
            )

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(f"{self.name}: words {bucket}" for bucket in range(self.buckets))

    def encode(self, values: Values) -> Array:
        number = cache(lambda word: _hash(word) % self.buckets)
        rows = np.zeros((len(values), self.buckets))
        for row, value in zip(rows, values, strict=True):
            found = [number(word) for word in words(as_text(value))]
            np.add.at(row, found, 1.0)
            row /= math.sqrt(max(1, len(found)))
        return rows


_PARTS: dict[str, tuple[Callable[[datetime], float], tuple[float, float] | None]] = {
    "year": (lambda date: date.year, None),
    "month": (lambda date: date.month, (1, 12)),
    "day": (lambda date: date.day, (1, 31)),
    "weekday": (lambda date: date.weekday(), (0, 6)),
    "hour": (lambda date: date.hour + date.minute / 60, (0, 24)),
}


@dataclass(frozen=True)
class Date:
    """ISO dates (2024-05-31, perhaps with a time) cut into parts: `year:1990:2030`, `month`, `day`, `weekday`, `hour`."""

    name: str
    parts: tuple[str, ...]
    missing: Missing = None

    def __post_init__(self) -> None:
        if not self.parts:
            raise BadArgument(
                f"date {some([self.name])!r} has no parts; give some, such as year:1990:2030,month,weekday"
            )
        for part in self.parts:
            self._part(part)
        if self.missing not in (None, FLAG):
            raise BadArgument(f"missing {some([self.name])!r}={self.missing!r}: of a date only flag is a rule")

    def _part(self, text: str) -> tuple[str, float, float]:
        name, _, bounds = text.partition(":")
        if name not in _PARTS:
            raise BadArgument(
                f"date {some([self.name])!r}: {text[:_LONGEST_NAME]!r} is no part of a date; choose of {', '.join(_PARTS)}"
            )
        known = _PARTS[name][1]
        if not bounds and known is not None:
            return name, *known
        try:
            low, high = map(float, bounds.split(":"))
            if not (math.isfinite(high - low) and low < high):
                raise ValueError(text)
        except ValueError as error:
            raise BadArgument(
                f"date {some([self.name])!r}: {text[:_LONGEST_NAME]!r} has no range; write it like {name}:1990:2030"
            ) from error
        return name, low, high

    @property
    def features(self) -> tuple[str, ...]:
        own = tuple(f"{self.name}: {part.partition(':')[0]}" for part in self.parts)
        return (*own, f"{self.name} is missing") if self.missing == FLAG else own

    def encode(self, values: Values) -> Array:
        dates = [None if is_gap(value) else as_date(value) for value in values]
        if any(date is None and not is_gap(value) for date, value in zip(dates, values, strict=True)):
            raise BadArgument(
                f"column {some([self.name])!r} holds what is no ISO date (2024-05-31); write its dates so, or leave it out "
                f"(--drop {some([self.name])})"
            )
        if self.missing is None and any(date is None for date in dates):
            raise BadArgument(_gap(self.name, "flag"))
        columns = []
        for name, low, high in map(self._part, self.parts):
            read = _PARTS[name][0]
            raw = np.array([low if date is None else float(read(date)) for date in dates])
            columns.append((np.clip(raw, low, high) - low) / (high - low))
        if self.missing == FLAG:
            columns.append(np.array([float(date is None) for date in dates]))
        return np.stack(columns, axis=1) if len(values) else np.zeros((0, len(columns)))


KINDS: dict[str, Any] = {"number": Number, "category": Category, "hashed": Hashed, "words": Words, "date": Date}
_NAMES = {kind: name for name, kind in KINDS.items()}


def column_to_json(column: Any) -> dict[str, Any]:
    return {"kind": _NAMES[type(column)], **asdict(column)}


def column_from_json(value: Any) -> Any:
    return typed(KINDS[value["kind"]], {key: each for key, each in value.items() if key != "kind"})


def typed(kind: Any, fields: Any) -> Any:
    """A value of this kind from the fields of a JSON object, each of the type that the kind declares (ValueError otherwise)."""
    return TypeAdapter(kind).validate_json(json.dumps(fields), strict=True)


def read_numbers(name: str, values: Values, *, gaps: bool) -> Array:
    """float64; with `gaps`, NaN for whatever stands for a missing number. A field `nan` is NaN either way."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values.astype(np.float64)

    def number(value: Any) -> float:
        if isinstance(value, str):
            return math.nan if gaps and value.strip().casefold() in GAPS else float(value)
        if is_gap(value):
            if not gaps and not isinstance(value, float):
                raise ValueError("a gap")
            return math.nan
        if isinstance(value, int | float | np.number | np.bool_):
            return float(value)
        raise TypeError("not a number")

    try:
        return np.array([number(value) for value in values], np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadArgument(_no_number(name, values)) from error


def _no_number(name: str, values: Values) -> str:
    """What is wrong with a column that is not all numbers, and what to do. It tells the kind of trouble and no value."""
    shown = some([name])
    odd = [value for value in values if not _reads_as_number(value)]
    if all(map(is_gap, odd)):
        return _gap(name, "flag, or the number that stands for one")
    odd = [value for value in odd if not is_gap(value)]
    if all(str(value).lstrip().startswith("=") for value in odd):
        return (
            f"column {shown!r} holds formulas; save the file with their values (in a spreadsheet: save as CSV), or leave it out "
            f"(--drop {shown})"
        )
    if all(as_date(value) is not None for value in odd):
        return (
            f"column {shown!r} holds dates; cut them into parts with --date {shown}=year:1990:2030,month,weekday, or leave it out "
            f"(--drop {shown})"
        )
    return (
        f"column {shown!r} holds text or empty fields; name it as categories with --category {shown}=hashed:32 (or a public "
        f"list, {shown}=red,green), as text with --text {shown}, or leave it out with --drop {shown}. If these are gaps "
        f"among numbers (an empty field, na, nan, null, ?): --missing {shown}=flag"
    )


def _gap(name: str, rules: str) -> str:
    shown = some([name])
    return f"column {shown!r} has empty fields; say by a public rule what stands for them: --missing {shown}=RULE, where RULE is {rules}"


def _reads_as_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return not is_gap(value) or isinstance(value, float)


def as_date(value: Any) -> datetime | None:
    """A date that is written in the ISO form, or is one already."""
    if isinstance(value, datetime):
        return value
    text = str(value).strip()
    if len(text) < 8 or "-" not in text:  # a plain number is no date, though 20240531 can be read as one
        return None
    try:
        return datetime.fromisoformat(text[:26].rstrip("Z") if len(text) > 26 else text)
    except ValueError:
        return None


def _one_hot(places: Sequence[int], width: int) -> Array:
    rows = np.zeros((len(places), width))
    chosen = np.array(places, np.int64)
    there = np.flatnonzero(chosen >= 0)
    rows[there, chosen[there]] = 1.0
    return rows


def _hash(text: str) -> int:
    """The same on every machine, unlike Python's own."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
