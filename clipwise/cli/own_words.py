"""What is said of an own file on the command line, read from its texts: COLUMN=LOW:HIGH, COLUMN=red,green, 3x32x32, ..."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clipwise.data.described import EVERY_COLUMN
from clipwise.types import BadArgument


def own_words(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, each as a config file would have it."""
    read = {name: value for name, value in given.items() if value is not None and value != []}
    return {name: _READERS[name](value) if name in _READERS else value for name, value in read.items()}


def pair(text: str, otherwise: str) -> list[float]:
    """Two numbers with a colon between them."""
    try:
        first, second = map(float, text.split(":"))
    except ValueError as error:
        raise BadArgument(otherwise) from error
    return [first, second]


def _table(option: str, example: str, value: Callable[[str, str], Any], every: bool = False) -> Callable[[Any], Any]:
    """Reads COLUMN=VALUE; `every`: without COLUMN= it is for every column."""

    def read(texts: list[str]) -> dict[str, Any]:
        found = {}
        for text in texts:
            column, equals, rest = text.rpartition("=") if every else text.partition("=")
            if not equals and not every:
                raise BadArgument(f"{option} {text!r} names no column; write it as {example}")
            found[column if equals else EVERY_COLUMN] = value(text, rest)
        return found

    return read


def _range(text: str, bounds: str) -> list[float]:
    return pair(bounds, f"--range {text!r} is not a range; write it as LOW:HIGH or COLUMN=LOW:HIGH")


def _rule(text: str, rule: str) -> str | float:
    if rule == "flag":
        return rule
    try:
        return float(rule)
    except ValueError as error:
        raise BadArgument(f"--missing {text!r} is no rule; write it as COLUMN=flag or COLUMN=NUMBER") from error


def _classes(text: str) -> int | list[str]:
    return int(text) if text.strip().isdecimal() else _commas(text)


def _commas(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _size(text: str) -> list[int]:
    try:
        return [int(part) for part in text.lower().split("x")]
    except ValueError as error:
        raise BadArgument(f"--image-size {text!r} is no size; write it as CHANNELSxHEIGHTxWIDTH, 3x32x32") from error


_READERS: dict[str, Callable[[Any], Any]] = {
    "classes": _classes,
    "image_size": _size,
    "ranges": _table("--range", "COLUMN=LOW:HIGH", _range, every=True),
    "missing": _table("--missing", "COLUMN=flag", _rule, every=True),
    "dates": _table("--date", "COLUMN=year:1990:2030,month", lambda _, rest: _commas(rest)),
    "categories": _table(
        "--category", "COLUMN=hashed:32", lambda _, rest: rest if rest.startswith("hashed:") else _commas(rest)
    ),
}
