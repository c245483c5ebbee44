"""A user's own data: `.npz` (arrays x and y, perhaps x_test and y_test) and `.csv` (a header; a label column by name).

Nothing is learned from the data on the way in. Standardising by its mean and deviation would be a look at private
records that no budget pays for, so features stay as they are unless the user states a *public* range, mapped to 0..1.
"""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from clipwise.data.lines import bounded
from clipwise.data.source import Array, Recipe, Split, checked
from clipwise.data.split import held_out_share
from clipwise.files import is_ordinary
from clipwise.types import BadArgument

_MOST_CLASSES = 1000  # when their number is read off the labels: a column of ids is not a label
_MOST_NAMES, _LONGEST_NAME = 20, 60  # of columns, in a message
EVERY_COLUMN = "*"

Ranges = Mapping[str, Sequence[float]]


def read_own(
    path: Path, label: str | None, classes: int | None, ranges: Ranges, test_fraction: float
) -> tuple[Split, Split | None, int, tuple[str, ...], tuple[str, ...]]:
    """Train split, test split, number of classes, names of the columns, and notes for the report."""
    if not is_ordinary(path):
        raise BadArgument(
            f"data={str(path)[-200:]!r} is not a file; give the path of a .npz or .csv file, or a name from `clipwise data`"
        )
    notes: list[str] = []
    if path.suffix.lower() == ".csv":
        x, y, columns = _read_csv(path, label)
        parts: list[tuple[Array, Array]] = [(x, y)]
    else:
        if label is not None:
            raise BadArgument(f"label={label!r} is for a .csv file; a .npz file has its labels in y: leave it out")
        parts, columns = _read_npz(path), None
    if classes is None:
        classes = _count_classes(path, [y for _, y in parts])
        notes.append(
            f"number of classes, {classes}: read off the labels and treated as public (or state it: --classes)"
        )
    scaled = [(_scaled(_channels_first(path, x), columns, ranges, notes), y) for x, y in parts]
    names = [str(path)] if len(parts) == 1 else [str(path), f"{path} (x_test, y_test)"]
    train, *rest = [checked(name, x, y, classes) for name, (x, y) in zip(names, scaled, strict=True)]
    if rest:
        test: Split | None = rest[0]
        if rest[0].x.shape[1:] != train.x.shape[1:]:
            raise BadArgument(
                f"{path}: records of x and x_test differ in shape, {train.x.shape[1:]} and {rest[0].x.shape[1:]}; "
                "store both alike"
            )
    else:
        train, test = _split(path, train, parts[0], test_fraction)
        notes.append(
            f"test split: about {test_fraction:g} of the file's records, each held out or not by a hash of its own content"
        )
    return train, test, classes, tuple(columns or ()), tuple(dict.fromkeys(notes))


def own_recipe(shape: tuple[int, ...], records: int) -> Recipe:
    """Settings from public facts alone: images get the small CNN, and batches are a quarter of the data, up to 512."""
    image = len(shape) == 3 and min(shape[1:]) >= 8
    return Recipe(
        model="cnn" if image else "mlp", expected_batch_size=max(1, min(512, records // 4)), epochs=20, lr=0.25
    )


def _read_npz(path: Path) -> list[tuple[Array, Array]]:
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
    for names in (("x", "y"), ("x_test", "y_test")):
        missing = [name for name in names if name not in arrays]
        if missing and (names[0] == "x" or len(missing) == 1):
            raise BadArgument(
                f"{path} has no array {missing[0]!r}; store {names[0]} and {names[1]} both, with numpy.savez"
            )
    return [(arrays[x], arrays[y]) for x, y in (("x", "y"), ("x_test", "y_test")) if x in arrays]


def _refuse_above_memory(path: Path) -> None:
    """A small file can unpack to more than the machine has: what it promises is looked at before anything is read."""
    with zipfile.ZipFile(path) as archive:
        promised = sum(member.file_size for member in archive.infolist())
    if promised > _memory():
        raise BadArgument(
            f"{path} unpacks to {promised:,} bytes, and this machine has {_memory():,} of memory; give a smaller file"
        )


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return 64 * 1024**3


def _read_csv(path: Path, label: str | None) -> tuple[Array, Array, list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            rows = csv.reader(bounded(handle, path), strict=True)
            header = [name.strip() for name in next(rows, [])]
            if not header:
                raise BadArgument(f"{path} is empty; give a .csv file with a header line and a record a line")
            if len(set(header)) < len(header):
                raise BadArgument(f"{path} has two columns of the same name; give each its own")
            if label is None or label not in header:
                raise BadArgument(
                    f"label={label!r} is not a column of {path}; name the label column with --label, "
                    f"one of {_some(header)}"
                )
            table = [row for row in rows if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadArgument(
            f"{path} cannot be read as a .csv file ({error}); save it as UTF-8, comma-separated, with a header"
        ) from error
    if any(len(row) != len(header) for row in table):
        raise BadArgument(
            f"{path} has rows with more or fewer fields than its header's {len(header)}; "
            "give every row one field a column"
        )
    columns = dict(zip(header, zip(*table, strict=True) if table else [()] * len(header), strict=True))
    labels = columns.pop(label)
    if not columns:
        raise BadArgument(f"{path} has no column beside the label {label!r}; add the features, one column each")
    try:
        y = np.array([int(text) for text in labels], np.int64)
    except (ValueError, OverflowError) as error:
        raise BadArgument(
            f"{path}: column {label!r} holds labels that are not whole numbers; number the classes 0, 1, 2, ..."
        ) from error
    return np.stack([_column(path, name, values) for name, values in columns.items()], axis=1), y, list(columns)


def _some(names: Sequence[str]) -> str:
    """Names for a message: a header may hold millions of them, or one that is as long as the file."""
    shown = [name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..." for name in names[:_MOST_NAMES]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _column(path: Path, name: str, values: Sequence[str]) -> Array:
    try:
        return np.array([float(text) for text in values], np.float64)
    except ValueError as error:
        raise BadArgument(
            f"{path}: column {_some([name])!r} holds text or empty fields; encode it as numbers "
            "(a field 'nan' is read, and its record then counts for nothing in training)"
        ) from error


def _split(
    path: Path, whole: Split, as_stored: tuple[Array, Array], test_fraction: float
) -> tuple[Split, Split | None]:
    """A part to train on and, if any, a part to test on; the same for the same file, whatever the run's options. A record
    goes by its content as it is stored, before any scaling."""
    x, y = as_stored
    test = held_out_share((row.tobytes() + label.tobytes() for row, label in zip(x, y, strict=True)), test_fraction)
    if test.all():
        raise BadArgument(
            f"{path}: every record was held out for testing, each by a hash of its content (equal records go the same way); give more "
            "records, or test_fraction=0 and x_test, y_test of your own"
        )
    train = ~test
    return Split(whole.x[train], whole.y[train]), Split(whole.x[test], whole.y[test]) if test.any() else None


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


def _scaled(x: Array, columns: list[str] | None, ranges: Ranges, notes: list[str]) -> Array:
    """Features mapped from their stated, public range to 0..1 (and cut off there); all others as they are."""
    if x.dtype.kind not in "biuf" or x.ndim < 2:
        return x  # left for `checked` to refuse
    if not ranges:
        if x.dtype == np.uint8 and x.ndim == 4:
            notes.append("pixels: divided by 255, the range of their type")
            return x / np.float32(255)
        notes.append("features: used as they are; state public ranges with --range to scale them")
        return x
    known = [EVERY_COLUMN, *(columns or [])]
    for name in ranges:
        if name not in known:
            raise BadArgument(f"range of {name!r} has no such column; give a range for one of {_some(known)}")
    x = x.astype(np.float64)
    for index, name in enumerate(columns) if columns else [(slice(None), EVERY_COLUMN)]:
        bounds = ranges.get(name, ranges.get(EVERY_COLUMN))
        if bounds is not None:
            low, high = bounds
            x[:, index] = (np.clip(x[:, index], low, high) - low) / (high - low)
    notes.append("features: stated public ranges mapped to 0..1, values outside cut off")
    return x
