"""What is understood of an own file before anything is said of it, and what is missing: for `clipwise data FILE` and
`clipwise init FILE`.

Types are guessed from the values, names are those of the header; no value, count or range of a column is told. The guess is for the
owner's eyes and for a config that the owner reads: training itself goes by what the config says, never by a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clipwise.data.columns import GAPS, as_date, is_gap, some
from clipwise.data.source import Values
from clipwise.data.table import IMAGE, LABEL, TEXT, Table
from clipwise.types import BadArgument

NUMBER, CATEGORY, TEXTS, DATE, PICTURE, UNCLEAR = "number", "category", "text", "date", "image", "unclear"
_LOOKED_AT = 5000  # values of a column: a type is seen in far fewer
_LONG = 40  # characters: what is longer on average, with blanks, is text
_LABELS = ("label", "target", "class", "y", "outcome")  # names of a column that is the label unless one is named
_IDS = ("id", "uuid", "index", "row", "rownumber", "row_id")  # names of a column that tells records apart


@dataclass(frozen=True)
class Guess:
    """Of one column."""

    name: str
    kind: str
    gaps: bool  # whether any field is empty
    whole: bool = False  # numbers 0, 1, 2, ... that can number classes
    id: bool = False


@dataclass(frozen=True)
class Described:
    guesses: tuple[Guess, ...]
    label: str | None

    def of(self, kind: str) -> list[Guess]:
        return [each for each in self.features if each.kind == kind]

    @property
    def features(self) -> list[Guess]:
        return [each for each in self.guesses if each.name != self.label]

    @property
    def target(self) -> Guess | None:
        return next((each for each in self.guesses if each.name == self.label), None)


def describe(table: Table, label: str | None, path: Path | None = None) -> Described:
    """Guess what each column is. The label is the one that is named, or that is called like one."""
    if label is not None and label not in table.columns:
        raise BadArgument(f"label={label!r} is not a column of {path}; name one of {some(table.names)}")
    if label is None:
        named = [name for name in table.names if name.casefold() in _LABELS]
        label = named[0] if len(named) == 1 else None
    if set(table.names) in ({IMAGE, LABEL}, {TEXT, LABEL}):
        label = LABEL
    return Described(
        tuple(_guess(name, values, table.types.get(name)) for name, values in table.columns.items()), label
    )


def _guess(name: str, values: Values, schema: str | None) -> Guess:
    shown = list(values[:_LOOKED_AT])
    known = [value for value in shown if not is_gap(value) and not (isinstance(value, str) and _stands_for_gap(value))]
    gaps = len(known) < len(shown) or (
        isinstance(values, np.ndarray) and values.dtype.kind == "f" and bool(np.isnan(values).any())
    )
    gaps = gaps or any(is_gap(value) for value in values[_LOOKED_AT:])
    called_id = name.casefold() in _IDS
    if schema == "image":
        return Guess(name, PICTURE, False)
    if name == TEXT and schema == "text":
        return Guess(name, TEXTS, gaps)
    numbers = [_number(value) for value in known]
    if known and all(number is not None for number in numbers):
        whole = all(number == int(number) and 0 <= number < 1000 for number in numbers if number is not None)
        return Guess(name, NUMBER, gaps, whole, called_id)
    if known and all(as_date(value) is not None for value in known):
        return Guess(name, DATE, gaps)
    texts = [str(value) for value in known]
    if not texts:
        return Guess(name, UNCLEAR, gaps)
    if sum(map(len, texts)) / len(texts) > _LONG and sum(" " in text for text in texts) > len(texts) / 2:
        return Guess(name, TEXTS, gaps)
    return Guess(name, CATEGORY, gaps, id=called_id)


def _stands_for_gap(text: str) -> bool:
    return text.strip().casefold() in GAPS


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if np.isfinite(number) else None


def missing_words(found: Described) -> list[str]:
    """What is still to be said before the file can be trained on, each with the options that say it."""
    said = []
    if found.label is None:
        said.append(f"which column is to be predicted: --label COLUMN, one of {some([g.name for g in found.guesses])}")
    target = found.target
    if target is not None and target.kind == CATEGORY and target.name != LABEL:
        said.append(
            f"the classes of {target.name}: --classes no,yes (a public list), or --public-categories {target.name}"
        )
    said += [
        f"gaps in {g.name}: --missing {g.name}=flag, or --missing {g.name}=NUMBER" for g in found.of(NUMBER) if g.gaps
    ]
    said += [
        f"categories of {g.name}: --category {g.name}=hashed:32, or a public list, {g.name}=red,green; or --learn-categories {g.name}"
        for g in found.of(CATEGORY)
        if not g.id
    ]
    said += [f"text of {g.name}: --text {g.name}" for g in found.of(TEXTS) if g.name != TEXT]
    said += [f"dates of {g.name}: --date {g.name}=year:1990:2030,month,weekday" for g in found.of(DATE)]
    said += [
        f"{g.name} tells records apart, or nothing: --drop {g.name}"
        for g in found.features
        if g.id or g.kind == UNCLEAR
    ]
    return said


def unscaled_columns(found: Described) -> list[str]:
    return [g.name for g in found.of(NUMBER) if not g.id]


def config_text(path: str, found: Described, *, epsilon: float = 3.0) -> str:
    """A commented config for `clipwise train --config`, ready to run: nothing in it is read off the records but the columns' types."""
    if found.label is None:
        raise BadArgument(
            f"label=None: which column is to be predicted? Name it with --label, one of {some([g.name for g in found.guesses])}"
        )
    lines = [
        f"# Made by `clipwise init` for {Path(path).name}. Train with: clipwise train --config THIS_FILE --out RUN",
        "# Read the lines below: what they state is treated as public, and the privacy statement quotes it.",
        f"data = {_text(path)}",
    ]
    if found.label != LABEL or not _is_folder(found):
        lines.append(f"label = {_text(found.label)}")
    lines += [f"epsilon = {epsilon!r}  # the privacy budget: smaller is more private", ""]
    lines += _target_lines(found)
    lines += _feature_lines(found)
    return "\n".join(lines) + "\n"


def _is_folder(found: Described) -> bool:
    return {g.name for g in found.guesses} in ({IMAGE, LABEL}, {TEXT, LABEL})


def _target_lines(found: Described) -> list[str]:
    target = found.target
    if target is None or _is_folder(found):
        return []
    name = _text(target.name)
    if target.kind == NUMBER and not target.whole:
        return [
            "# The label is a number: regression. Better than to learn its range is to state it, under [ranges].",
            'loss = "huber"',
            "",
        ]
    if target.kind == NUMBER:
        return [
            "# The label numbers the classes 0, 1, 2, ...; state how many there are if that is not to be read off it.",
            "# classes = 2",
            "",
        ]
    return [
        "# The classes' names are read off the label column, and this line declares them public. If not even the names are public,",
        '# give a public list instead: classes = ["no", "yes"]',
        f"public_categories = [{name}]",
        "",
    ]


def _feature_lines(found: Described) -> list[str]:
    dropped = [g.name for g in found.features if g.id or g.kind == UNCLEAR]
    texts = [g.name for g in found.of(TEXTS) if g.name not in dropped and g.name != TEXT]
    numbers, dates = unscaled_columns(found), found.of(DATE)
    target = found.target
    ranged = [*numbers, *([target.name] if target and target.kind == NUMBER and not target.whole else [])]
    lines = []
    if dropped:
        lines += ["# Columns that are left out: they tell records apart, or nothing.", f"drop = [{_list(dropped)}]", ""]
    if texts:
        lines += [
            "# Free text: words are hashed, a public rule that looks at no record.",
            f"texts = [{_list(texts)}]",
            "",
        ]
    if ranged:
        lines += [
            "# Ranges that are not stated below are learned from the records with noise, for a part of the budget. Ranges that you know",
            "# without a look at the records cost nothing: state them, and delete this line when all are stated.",
            "learn_ranges = true",
            "",
        ]
    if ranged:
        lines += ["[ranges]", *(f"# {_text(name)} = [0.0, 100.0]" for name in ranged), ""]
    if numbers or dates:  # whether there are gaps is not told by what is written here
        lines += [
            '# What stands for an empty field, by column or for all ("*"): "flag" (a column of its own), or a number that stands for it.',
            "[missing]",
            '"*" = "flag"',
            "",
        ]
    categories = [g.name for g in found.of(CATEGORY) if g.name not in dropped]
    if categories:
        lines += [
            '# Categories: hashed into buckets, which looks at no record, or a public list, ["red", "green"]. An empty field is one of its own.',
            "[categories]",
            *(f'{_text(name)} = "hashed:32"' for name in categories),
            "",
        ]
    if dates:
        lines += [
            "# Dates, cut into parts; what lies outside the years counts as the first or the last.",
            "[dates]",
            *(f'{_text(g.name)} = ["year:1990:2030", "month", "weekday"]' for g in dates),
            "",
        ]
    return lines


def _text(value: str) -> str:
    from json import dumps

    return dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(_text, names))
