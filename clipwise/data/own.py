"""A user's own data, ready to train on: a table (table.py) by what its user says of it (described.py, schema.py), or a `.npz`
file of arrays x and y, perhaps x_test and y_test.

Nothing is learned from the records on the way in. Standardising by their mean and deviation would be a look at private
records that no budget pays for, so features stay as they are unless a *public* range is stated, or one is released with noise.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clipwise.data import table as tables
from clipwise.data.columns import as_text
from clipwise.data.described import EVERY_COLUMN, OwnData
from clipwise.data.learn import ToLearn
from clipwise.data.preprocessing import Amount, Block, Classes, Preprocessing, Target
from clipwise.data.schema import AS_IT_IS, Understood, understand, unscaled
from clipwise.data.source import Array, DataSet, Recipe, Split, checked
from clipwise.data.split import held_out_share
from clipwise.data.table import Table, read_table
from clipwise.files import is_ordinary
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

_MOST_CLASSES = 1000  # when their number is read off the labels: a column of ids is not a label
_Y = "y"  # the label's name in a .npz file


@dataclass(frozen=True)
class Unlearned:
    """The records of a data set as they are given, for which some ranges or categories are still to be released."""

    understood: Understood
    train: Table
    test: Table | None

    @property
    def what(self) -> ToLearn:
        return self.understood.to_learn

    def finished(self, dataset: DataSet, made: Preprocessing, notes: Sequence[str] = ()) -> DataSet:
        """With what was released, just now or in a run that goes on."""
        return replace(_encoded(dataset, made, self.train, self.test), unlearned=None, notes=(*dataset.notes, *notes))


def load_own(
    data: Any,
    words: OwnData,
    *,
    regression: bool = False,
    vocabulary: str | None = None,
    standardize: tuple[float, float] | None = None,
) -> DataSet:
    """Of a path, or of a DataFrame, a Hugging Face data set or a mapping of columns."""
    path = Path(data) if isinstance(data, str | Path) else None
    if path is not None and path.suffix.lower() == ".npz":
        if vocabulary:
            raise BadArgument(
                f"vocabulary={vocabulary!r} is for a data set of texts; yours holds numbers: leave it out"
            )
        return _load_npz(path, words, regression, standardize)
    table = tables.as_table(data) if path is None else read_table(path)
    if table is None:
        raise BadArgument(
            f"data of type {type(data).__name__}: give a path, a DataFrame, a Hugging Face data set, or columns by name"
        )
    what = "the data" if path is None else str(path)
    with _naming(what):
        understood = understand(
            table, words, what=what, regression=regression, vocabulary=vocabulary, standardize=standardize
        )
    train, test = _split(table, words.test_fraction, what)
    inputs, target = understood.preprocessing.inputs, understood.preprocessing.target
    empty = DataSet(
        name="data" if path is None else path.stem,
        train=None,  # type: ignore[arg-type]  # put there by `_encoded`
        test=None,
        classes=0,
        shape=(),
        where="memory" if path is None else str(path.resolve()),
        licence="the user's own",
        recipe=own_recipe(inputs.shape, len(train), inputs.kind),
        notes=(*understood.notes, _split_note(words)),
        warnings=understood.warnings,
        kind=inputs.kind,  # type: ignore[arg-type]
        class_names=target.names,
        vocabulary_size=getattr(inputs, "size", None),
        padding=getattr(inputs, "padding", None),
    )
    with _naming(what):
        made = _encoded(empty, understood.preprocessing, train, test)
    return replace(made, unlearned=Unlearned(understood, train, test)) if understood.to_learn else made


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """An error about a column says of which file."""
    try:
        yield
    except BadArgument as error:
        if what in str(error):
            raise
        raise BadArgument(f"{what}: {error}") from error


def _encoded(dataset: DataSet, made: Preprocessing, train: Table, test: Table | None) -> DataSet:
    def encoded(part: Table) -> TensorDataset:
        y = made.target.encode(part.columns[str(made.target.column)])
        return _tensors(Split(made.inputs.apply(part), y))

    return replace(
        dataset,
        train=encoded(train),
        test=None if test is None else encoded(test),
        classes=len(made.target.names) or 1,
        shape=made.inputs.shape,
        feature_names=made.inputs.features,
        preprocessing=made,
    )


def own_recipe(shape: tuple[int, ...], records: int, kind: str = "tabular") -> Recipe:
    """Settings from public facts alone: images get the small CNN, texts a bag of words, and batches are a quarter of the
    data, up to 512."""
    image = len(shape) == 3 and min(shape[1:]) >= 8
    batch = max(1, min(512, records // 4))
    if kind == "text":
        return Recipe(model="bow-linear", expected_batch_size=batch, epochs=20, lr=4.0, average_weights=0.9)
    return Recipe(model="cnn" if image else "mlp", expected_batch_size=batch, epochs=20, lr=0.25)


def _split(whole: Table, share: float, what: str) -> tuple[Table, Table | None]:
    test = held_out_share(whole.contents(), share)
    if test.all():
        raise BadArgument(_all_held_out(what))
    return whole.only(~test), whole.only(test) if test.any() else None


def held_out_of(data: Table | tuple[Array, Array], share: float) -> Array:
    """True for the records that a run with this share held out, or would have: by a hash of each record's content."""
    return held_out_share(data.contents() if isinstance(data, Table) else _contents(*data), share)


def _split_note(words: OwnData) -> str:
    return f"test split: about {words.test_fraction:g} of the file's records, each held out or not by a hash of its own content"


def _all_held_out(what: str) -> str:
    return (
        f"{what}: every record was held out for testing, each by a hash of its content (equal records go the same way); give more "
        "records, or test_fraction=0 and x_test, y_test of your own"
    )


def _tensors(split: Split) -> TensorDataset:
    import torch
    from torch.utils.data import TensorDataset

    return TensorDataset(torch.from_numpy(split.x), torch.from_numpy(split.y))


# -- .npz
# ------------------------------------------------------------------------------------------------------------------


def _load_npz(path: Path, words: OwnData, regression: bool, standardize: tuple[float, float] | None) -> DataSet:
    if not is_ordinary(path):
        raise BadArgument(
            f"data={str(path)[-200:]!r} is not a file; give the path of one, or a name from `clipwise data`"
        )
    _refuse_words_for_tables(words, path)
    parts = read_npz(path)
    notes: list[str] = []
    target = _npz_target(path, [y for _, y in parts], words, regression, notes)
    first = _channels_first(path, parts[0][0])
    inputs = _block(first, words, standardize, notes)
    made = Preprocessing(inputs, target, words.test_fraction if len(parts) == 1 else None)
    names = [str(path)] if len(parts) == 1 else [str(path), f"{path} (x_test, y_test)"]
    train, *rest = [_npz_part(name, path, x, y, made) for name, (x, y) in zip(names, parts, strict=True)]
    if rest:
        test: Split | None = rest[0]
    else:
        held = held_out_share(_contents(*parts[0]), words.test_fraction)
        if held.all():
            raise BadArgument(_all_held_out(str(path)))
        test = Split(train.x[held], train.y[held]) if held.any() else None
        train = Split(train.x[~held], train.y[~held])
        notes.append(_split_note(words))
    plain = AS_IT_IS in notes
    return DataSet(
        name=path.stem,
        train=_tensors(train),
        test=None if test is None else _tensors(test),
        classes=len(target.names) or 1,
        shape=inputs.shape,
        where=str(path.resolve()),
        licence="the user's own",
        recipe=own_recipe(inputs.shape, len(train.y)),
        notes=tuple(dict.fromkeys(notes)),
        warnings=(unscaled(["all features"]).replace("all features=", ""),) if plain else (),
        kind="image" if len(inputs.shape) == 3 else "tabular",
        class_names=target.names,
        preprocessing=made,
    )


def _refuse_words_for_tables(words: OwnData, path: Path) -> None:
    if words.label is not None:
        raise BadArgument(f"label={words.label!r} is for a table; a .npz file has its labels in y: leave it out")
    for name in (
        "categories",
        "texts",
        "dates",
        "missing",
        "drop",
        "learn_categories",
        "public_ranges",
        "learn_ranges",
    ):
        if name in words.given:
            raise BadArgument(
                f"{name}={words.given[name]!r} is for a table with columns, and {path.name} holds arrays: state a public range with --range "
                "LOW:HIGH, or save the data as CSV"
            )
    for name in words.ranges:
        if name not in (EVERY_COLUMN, _Y):
            raise BadArgument(f"range of {name!r} has no such column; give a range for one of {EVERY_COLUMN}, {_Y}")


def _npz_target(path: Path, labels: list[Array], words: OwnData, regression: bool, notes: list[str]) -> Target:
    if regression:
        if _Y not in words.ranges:
            raise BadArgument(
                "y is to be a number (by the loss), and no public range is stated for it: give --range y=LOW:HIGH"
            )
        low, high = words.ranges[_Y]
        return Amount(_Y, low, high)
    if isinstance(words.classes, list):
        return Classes(_Y, tuple(words.classes))
    if _Y in words.public_categories:
        names = sorted({as_text(value) for y in labels for value in y.ravel()} - {""})
        notes.append(f"**declared public by the user**: the {len(names)} classes, read off the labels")
        return Classes(_Y, tuple(names))
    classes = words.classes
    if classes is None:
        classes = _count_classes(path, labels)
        notes.append(
            f"number of classes, {classes}: read off the labels and treated as public (or state it: --classes)"
        )
    return Classes(_Y, tuple(map(str, range(classes))), numbered=True)


def _npz_part(name: str, path: Path, x: Array, y: Array, made: Preprocessing) -> Split:
    x = _channels_first(path, x)
    if x.dtype.kind in "biuf" and x.ndim >= 2 and 0 not in x.shape[1:]:
        if x.shape[1:] != made.inputs.shape:
            raise BadArgument(
                f"{path}: records of x and x_test differ in shape, {made.inputs.shape} and {x.shape[1:]}; store both alike"
            )
        x = made.inputs.apply(x)
    if isinstance(made.target, Classes) and made.target.numbered:
        return checked(name, x, y, len(made.target.names))
    if y.ndim != 1:
        raise BadArgument(f"{name}: labels have shape {y.shape}; store one label a record, as ({len(x)},)")
    labels = made.target.encode(y)
    zeros = checked(name, x, np.zeros(len(y), np.int64), 2)
    return Split(zeros.x, labels)


def _block(x: Array, words: OwnData, standardize: tuple[float, float] | None, notes: list[str]) -> Block:
    """Features mapped from their stated, public range to 0..1 (and cut off there), bytes of images divided by 255, or all as
    they are."""
    shape = x.shape[1:]
    kind = "image" if len(shape) == 3 else "tabular"
    if standardize is not None and kind != "image":
        raise BadArgument(f"standardize={list(standardize)!r} is for images; here are none: leave it out")
    mean, deviation = standardize or (0.0, 1.0)
    scale = {"mean": mean, "deviation": deviation}
    if standardize is not None:
        notes.append(
            f"pixels: less {mean:g}, divided by {deviation:g}, figures of the user's that are treated as public"
        )
    bounds = words.ranges.get(EVERY_COLUMN)
    if bounds is not None:
        notes.append("features: stated public ranges mapped to 0..1, values outside cut off")
        return Block(shape, kind, *bounds, **scale)  # type: ignore[arg-type]
    if x.dtype == np.uint8 and x.ndim == 4:
        notes.append("pixels: divided by 255, the range of their type")
        return Block(shape, kind, bytes=True, **scale)  # type: ignore[arg-type]
    notes.append(AS_IT_IS)
    return Block(shape, kind, **scale)  # type: ignore[arg-type]


def read_npz(path: Path) -> list[tuple[Array, Array]]:
    """(x, y), and (x_test, y_test) where the file has them."""
    arrays = _arrays(path)
    for names in (("x", "y"), ("x_test", "y_test")):
        missing = [name for name in names if name not in arrays]
        if missing and (names[0] == "x" or len(missing) == 1):
            raise BadArgument(
                f"{path} has no array {missing[0]!r}; store {names[0]} and {names[1]} both, with numpy.savez"
            )
    return [(arrays[x], arrays[y]) for x, y in (("x", "y"), ("x_test", "y_test")) if x in arrays]


def read_npz_records(path: Path) -> tuple[Array, Array | None]:
    """Records to predict and their labels, if any: of a file with a test part of its own, that part."""
    arrays = _arrays(path)
    for x, y in (("x_test", "y_test"), ("x", "y")):
        if x in arrays:
            return arrays[x], arrays.get(y)
    raise BadArgument(f"{path} has no array 'x'; store the records so, with numpy.savez(path, x=...)")


def _arrays(path: Path) -> dict[str, Array]:
    try:
        _refuse_above_memory(path)
        with np.load(path, allow_pickle=False) as file:  # a pickle could run code
            arrays = {name: file[name] for name in ("x", "y", "x_test", "y_test") if name in file.files}
        if odd := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"{odd[0]} is not an array")  # numpy hands out bytes where a member has no header
    except BadArgument:
        raise
    except (
        Exception
    ) as error:  # zip, zlib, ast and numpy all have errors of their own for a file that is none of theirs
        raise BadArgument(
            f"{path} cannot be read as a .npz file of plain arrays ({error}); make one with "
            "numpy.savez(path, x=..., y=...), with numbers and no objects in it"
        ) from error
    return arrays


def _refuse_above_memory(path: Path) -> None:
    """A small file can unpack to more than the machine has: what it promises is looked at before anything is read."""
    with zipfile.ZipFile(path) as archive:
        promised = sum(member.file_size for member in archive.infolist())
    if promised > tables.memory():
        raise BadArgument(
            f"{path} unpacks to {promised:,} bytes, and this machine has {tables.memory():,} of memory; give a smaller file"
        )


def _contents(x: Array, y: Array) -> list[bytes]:
    """A record goes by its content as it is stored, before any scaling."""
    return [row.tobytes() + label.tobytes() for row, label in zip(x, y, strict=True)]


def _count_classes(path: Path, labels: Sequence[Array]) -> int:
    largest = max((int(y.max()) for y in labels if y.size and y.dtype.kind in "iu"), default=0)
    if largest >= _MOST_CLASSES:
        raise BadArgument(
            f"{path}: a label is above {_MOST_CLASSES - 1}; number the classes from 0, or state how many there are "
            "(--classes)"
        )
    return max(2, largest + 1)


def _channels_first(path: Path, x: Array) -> Array:
    if x.ndim == 4 and x.shape[-1] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        raise BadArgument(f"{path}: images of shape {x.shape[1:]} look channels-last; store numpy.moveaxis(x, -1, 1)")
    return x[:, None] if x.ndim == 3 else x
