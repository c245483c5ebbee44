"""From a table and its user's words to a `Preprocessing`, or to a message that lists what is missing and how to give it.

A column is a number unless it is named as something else. What the words leave open is learned (learn.py), read off the records
where the user declares it public, or refused here, before anything is spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clipwise import validate
from clipwise.data.columns import FLAG, Category, Column, Date, Hashed, Number, Words, as_text, read_numbers, some
from clipwise.data.described import EVERY_COLUMN, OwnData
from clipwise.data.learn import BUCKETS, Learned, ToLearn
from clipwise.data.preprocessing import Amount, Classes, Inputs, Picture, Preprocessing, Row, Target, Tokens
from clipwise.data.source import Values
from clipwise.data.table import IMAGE, LABEL, TEXT, Table
from clipwise.data.text import HashedWords, make_encoder
from clipwise.types import BadArgument

_MOST_CLASSES = 1000  # when they are read off the labels: a column of ids is not a label
_MOST_VALUES = 10_000  # of a column that is declared public: one of ids is no category
_VOCABULARY = 16_384  # token numbers of a text, as for the data sets that come with Clipwise
_WORDS = 256  # buckets of a text among other columns
AS_IT_IS = "features: used as they are; state public ranges with --range to scale them"


@dataclass(frozen=True)
class Understood:
    """A table with all that is needed to train on it; what is still `to_learn` has a place-holder until it is released."""

    preprocessing: Preprocessing
    to_learn: ToLearn
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    def with_learned(self, learned: Learned) -> Preprocessing:
        inputs, target = self.preprocessing.inputs, self.preprocessing.target
        if isinstance(inputs, Row):
            inputs = Row(tuple(_settled(column, learned) for column in inputs.columns))
        if isinstance(target, Amount) and str(target.column) in learned.ranges:
            low, high = learned.ranges[str(target.column)]
            target = Amount(target.column, low, high)
        return replace(self.preprocessing, inputs=inputs, target=target)


def _settled(column: Column, learned: Learned) -> Column:
    if isinstance(column, Number) and column.name in learned.ranges:
        low, high = learned.ranges[column.name]
        return replace(column, low=low, high=high)
    if isinstance(column, Hashed) and column.name in learned.categories:
        return replace(column, kept=learned.categories[column.name])
    return column


def understand(
    table: Table,
    words: OwnData,
    *,
    what: str,
    regression: bool = False,
    vocabulary: str | None = None,
    standardize: tuple[float, float] | None = None,
) -> Understood:
    """`what` names the file in messages. Looks at the values of a column only where its name is declared public, and at
    labels for their number."""
    label = _label(table, words, what)
    features = [name for name in table.names if name != label and name not in words.drop]
    _check_named(table, words, label, what)
    if not len(table):
        raise BadArgument(f"{what}: there are no records; give a file with at least one")
    if not features:
        raise BadArgument(f"{what} has no column beside the label {some([label])!r}; add the features, one column each")
    notes: list[str] = []
    target, learned_label = _target(table, words, label, regression, notes)
    inputs, to_learn = _inputs(table, words, features, vocabulary, standardize, notes)
    to_learn = replace(to_learn, ranges=(*to_learn.ranges, *learned_label))
    bare = (
        [c.name for c in inputs.columns if isinstance(c, Number) and c.low is None] if isinstance(inputs, Row) else []
    )
    bare = [name for name in bare if name not in to_learn.ranges]
    warnings = []
    if bare:
        notes.append(AS_IT_IS)
        warnings.append(unscaled(bare))
    made = Preprocessing(inputs, target, words.test_fraction)
    return Understood(made, to_learn, tuple(dict.fromkeys(notes)), tuple(warnings))


def unscaled(names: Sequence[str]) -> str:
    first = some(names[:1])
    return (
        f"no public range is stated for {some(names)}: used as they are, and features far from 0..1 train badly. State ranges that "
        f"you know without a look at the records (--range {first}=LOW:HIGH), or learn them from the budget (--learn-ranges)"
    )


def _label(table: Table, words: OwnData, what: str) -> str:
    label = words.label
    if label is None and set(table.names) in ({IMAGE, LABEL}, {TEXT, LABEL}):
        return LABEL  # of a folder
    if label is None or label not in table.columns:
        raise BadArgument(
            f"label={label!r} is not a column of {what}; name the label column with --label, one of {some(table.names)}"
        )
    return label


def _check_named(table: Table, words: OwnData, label: str, what: str) -> None:
    """Every column that the options name is there, and is one thing only."""
    kinds = {
        "--category": [*words.categories],
        "--text": words.texts,
        "--date": [*words.dates],
        "--drop": words.drop,
        "--learn-categories": words.learn_categories,
        "--public-categories": [name for name in words.public_categories if name != label],
    }
    others = {"--range": [*words.ranges], "--missing": [*words.missing], "--public-ranges": words.public_ranges}
    for option, names in {**kinds, **others}.items():
        for name in names:
            if name not in table.columns and not (name == EVERY_COLUMN and option in others):
                if option == "--range":
                    raise BadArgument(
                        f"range of {name!r} has no such column; give a range for one of {some([EVERY_COLUMN, *table.names])}"
                    )
                raise BadArgument(f"{option} {some([name])!r} is no column of {what}; it has {some(table.names)}")
    owner: dict[str, str] = {}
    for option, names in kinds.items():
        for name in names:
            if name in owner or (name == label and option != "--public-categories"):
                raise BadArgument(
                    f"column {some([name])!r} is named twice, as {owner.get(name, '--label')} and {option}; say one thing of it"
                )
            owner[name] = option


# -- the label
# ------------------------------------------------------------------------------------------------------------------


def _target(
    table: Table, words: OwnData, label: str, regression: bool, notes: list[str]
) -> tuple[Target, tuple[str, ...]]:
    """The label's kind, and its name where its range is to be learned."""
    values = table.columns[label]
    if regression:
        return _amount(table, words, label, notes)
    if isinstance(words.classes, list):
        return _checked(Classes(label, tuple(words.classes)), values), ()
    if label in table.class_names and words.classes is None:
        names = table.class_names[label]
        notes.append(f"classes: the {len(names)} names that the data set's own schema lists, which are public")
        return _checked(Classes(label, names, numbered=True), values), ()
    if label in words.public_categories or (label == LABEL and table.types.get(LABEL) == "text"):
        return _checked(_named_classes(table, words, label, notes), values), ()
    return _checked(_numbered_classes(values, label, words.classes, notes), values), ()


def _checked(target: Classes, values: Values) -> Classes:
    target.encode(values)
    return target


def _named_classes(table: Table, words: OwnData, label: str, notes: list[str]) -> Classes:
    names = sorted({as_text(value) for value in table.columns[label]} - {""})
    if len(names) > _MOST_CLASSES:
        raise BadArgument(
            f"label {some([label])!r} has {len(names):,} classes, above {_MOST_CLASSES}; a column of ids is no label"
        )
    if label in words.public_categories:
        notes.append(f"**declared public by the user**: the {len(names)} classes of {label}, read off the labels")
    else:
        notes.append(f"classes, {len(names)}: names of the folders, treated as public")
    return Classes(label, tuple(names))


def _numbered_classes(values: Values, label: str, classes: int | None, notes: list[str]) -> Classes:
    if classes is None:
        try:
            largest = max((int(value) for value in values), default=0)
        except (ValueError, TypeError, OverflowError):
            largest = 0  # refused by `encode`, with what to do
        if largest >= _MOST_CLASSES:
            raise BadArgument(
                f"column {some([label])!r}: a label is above {_MOST_CLASSES - 1}; number the classes from 0, or state how many there "
                "are (--classes)"
            )
        classes = max(2, largest + 1)
        notes.append(
            f"number of classes, {classes}: read off the labels and treated as public (or state it: --classes)"
        )
    return Classes(label, tuple(map(str, range(validate.count("classes", classes, least=2)))), numbered=True)


def _amount(table: Table, words: OwnData, label: str, notes: list[str]) -> tuple[Amount, tuple[str, ...]]:
    values = table.columns[label]
    to_learn: tuple[str, ...] = ()
    if label in words.ranges:
        notes.append(f"label {label}: a number of the stated public range, cut off at its ends")
        low, high = words.ranges[label]
    elif label in words.public_ranges:
        low, high = _read_off(label, values)
        notes.append(f"**declared public by the user**: the range of the label {label}, read off the records")
    elif words.learn_ranges:
        low, high, to_learn = 0.0, 1.0, (label,)
    else:
        name = some([label])
        raise BadArgument(
            f"label={name!r} is to be a number (by the loss), and no public range is stated for it: give --range {name}=LOW:HIGH, "
            f"learn it from the budget (--learn-ranges), or declare it public (--public-ranges {name})"
        )
    target = Amount(label, low, high)
    target.encode(values)
    return target, to_learn


# -- the features
# ------------------------------------------------------------------------------------------------------------------


def _inputs(
    table: Table,
    words: OwnData,
    features: list[str],
    vocabulary: str | None,
    standardize: tuple[float, float] | None,
    notes: list[str],
) -> tuple[Inputs, ToLearn]:
    alone = features[0] if len(features) == 1 else None
    if alone is not None and table.types.get(alone) == "image":
        return _picture(alone, words, standardize, notes), ToLearn()
    if alone is not None and (alone in words.texts or (alone == TEXT and set(table.names) == {TEXT, LABEL})):
        return _tokens(alone, table, words, vocabulary, notes), ToLearn()
    if vocabulary is not None:
        raise BadArgument(f"vocabulary={vocabulary!r} is for a text alone, without other columns: leave it out")
    if standardize is not None:
        raise BadArgument(f"standardize={list(standardize)!r} is for images; here are none: leave it out")
    row = Row(tuple(_column(name, table, words, notes) for name in features))
    for column in row.columns:
        if isinstance(column, Number):
            _check_numbers(column, table)
        elif isinstance(column, Date):
            column.encode(table.columns[column.name])  # refuses what is no date
    stated = [
        c.name for c in row.columns if isinstance(c, Number) and c.low is not None and c.name not in words.public_ranges
    ]
    if stated:
        notes.append("features: stated public ranges mapped to 0..1, values outside cut off")
    open_ranges = [c.name for c in row.columns if isinstance(c, Number) and c.low is None] if words.learn_ranges else []
    return row, ToLearn(tuple(open_ranges), tuple(name for name in features if name in words.learn_categories))


def _column(name: str, table: Table, words: OwnData, notes: list[str]) -> Column:
    missing = words.missing.get(name, words.missing.get(EVERY_COLUMN))
    if name in words.categories:
        return _categories(name, words.categories[name], notes)
    if name in words.public_categories:
        values = sorted({as_text(value) for value in table.columns[name]} - {""})
        if len(values) > _MOST_VALUES:
            raise BadArgument(
                f"column {some([name])!r} has {len(values):,} values, too many for categories; hash it (--category)"
            )
        notes.append(f"**declared public by the user**: the {len(values)} categories of {name}, read off the records")
        return Category(name, tuple(values))
    if name in words.learn_categories:
        return Hashed(name, BUCKETS, kept=(0,))  # until they are released
    if name in words.texts:
        notes.append(f"column {name}: words hashed into {_WORDS} buckets, a public rule that looks at no record")
        return Words(name, _WORDS)
    if name in words.dates:
        notes.append(f"column {name}: dates cut into {', '.join(words.dates[name])}, by a public rule")
        return Date(name, tuple(words.dates[name]), "flag" if missing == FLAG else None)
    return _number(name, table, words, missing, notes)


def _number(name: str, table: Table, words: OwnData, missing: Any, notes: list[str]) -> Number:
    if missing is not None:
        rule = "a column of their own" if missing == FLAG else f"the number {missing:g}"
        notes.append(f"column {name}: {rule} for gaps, by a public rule")
    bounds = words.ranges.get(name)
    declared = name in words.public_ranges or EVERY_COLUMN in words.public_ranges
    if bounds is None and declared:
        bounds = list(_read_off(name, table.columns[name]))
        notes.append(f"**declared public by the user**: the range of {name}, read off the records")
    if bounds is None:
        bounds = words.ranges.get(EVERY_COLUMN)
    low, high = (None, None) if bounds is None else map(float, bounds)
    return Number(name, low, high, missing)


def _categories(name: str, given: str | list[str], notes: list[str]) -> Column:
    if isinstance(given, list):
        notes.append(f"column {name}: a public list of {len(given)} categories; any other value counts as none of them")
        return Category(name, tuple(value.strip() for value in given))
    rule, _, number = given.partition(":")
    if rule != "hashed" or not number.isdecimal():
        raise BadArgument(
            f"categories: {some([name])}={given[:60]!r} is not understood; give hashed:32 (buckets), or a public list, red,green"
        )
    notes.append(f"column {name}: values hashed into {number} buckets, a public rule that looks at no record")
    return Hashed(name, int(number))


def _check_numbers(column: Number, table: Table) -> None:
    """Refuses what is no number and, where no range is stated, a column that always says the same."""
    values = read_numbers(column.name, table.columns[column.name], gaps=column.missing is not None)
    if column.low is None and len(values) > 1 and (values == values[0]).all():
        raise BadArgument(
            f"column {some([column.name])!r} is constant: it tells nothing. Leave it out (--drop {some([column.name])}), or state its "
            "public range"
        )


def _read_off(name: str, values: Values) -> tuple[float, float]:
    numbers = read_numbers(name, values, gaps=True)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers) or numbers.min() == numbers.max():
        raise BadArgument(
            f"column {some([name])!r} is constant, or all gaps: no range can be read off it. Leave it out (--drop {some([name])}), or "
            "state its public range"
        )
    return float(numbers.min()), float(numbers.max())


def _tokens(name: str, table: Table, words: OwnData, vocabulary: str | None, notes: list[str]) -> Tokens:
    default = HashedWords(_VOCABULARY, words.text_length)
    texts = [as_text(value) for value in table.columns[name]]
    encoder = default if vocabulary is None else make_encoder(vocabulary, default, texts)
    notes.append(encoder.note)
    return Tokens(name, encoder.length, encoder.size, encoder.padding, encoder)


def _picture(name: str, words: OwnData, standardize: tuple[float, float] | None, notes: list[str]) -> Picture:
    channels, height, width = words.image_size
    notes.append(f"images: made {channels}x{height}x{width} (a stated, public size), pixels divided by 255")
    if standardize is not None:
        notes.append(
            f"pixels: less {standardize[0]:g}, divided by {standardize[1]:g}, figures of the user's that are treated as public"
        )
    return Picture(name, channels, height, width, *(standardize or (0.0, 1.0)))
