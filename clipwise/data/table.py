"""A table as it is given: columns by name, of a file (CSV, Parquet, Arrow), a folder (an image or a text a file, a class a
folder), a pandas DataFrame or a Hugging Face data set. Nothing is computed from the values here.

What a file's own schema says (a column's type, a ClassLabel's names) is public metadata; a CSV says nothing but names.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clipwise.data.columns import some
from clipwise.data.lines import bounded
from clipwise.data.source import Array, Values
from clipwise.files import is_folder, is_ordinary
from clipwise.types import BadArgument

TABLES = (".csv", ".tsv", ".parquet", ".pq", ".arrow", ".feather")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
IMAGE, TEXT, LABEL = "image", "text", "label"  # columns of a folder
MOST_COLUMNS = 65_536  # a table with more is a matrix: it belongs in a .npz file
_MOST_TEXT = 16 * 1024 * 1024  # bytes of one text file of a folder
_SCHEMA = {"i": "number", "u": "number", "f": "number", "b": "number"}


@dataclass(frozen=True)
class Table:
    columns: Mapping[str, Values] = field(repr=False)
    types: Mapping[str, str] = field(default_factory=dict)  # number, text, date or image, where the schema says so
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of a column that is a ClassLabel

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    def only(self, kept: Array) -> Table:
        """The rows for which it is true."""
        places = np.flatnonzero(kept)

        def chosen(values: Values) -> Values:
            return values[places] if isinstance(values, np.ndarray) else [values[place] for place in places.tolist()]

        columns = {name: chosen(values) for name, values in self.columns.items()}
        return Table(columns, self.types, self.class_names)

    def contents(self) -> Iterator[bytes]:
        """Each record as bytes, for the rule that splits by content; of an image, what its file holds."""
        for row in zip(*self.columns.values(), strict=True):
            yield b"\x1f".join(_content(value) for value in row)


def _content(value: Any) -> bytes:
    if isinstance(value, Path):
        return hashlib.sha256(value.read_bytes()).digest()
    if hasattr(value, "tobytes"):  # an image or an array
        return bytes(value.tobytes())
    return str(value).encode("utf-8", "surrogatepass")


def read_table(path: Path) -> Table:
    """A table from a file or a folder, or an error that says what to give instead."""
    if is_folder(path):
        return _read_saved(path) if (path / "dataset_info.json").is_file() else _read_folder(path)
    if not is_ordinary(path):
        raise BadArgument(
            f"data={str(path)[-200:]!r} is not a file or a folder; give the path of one, or a name from `clipwise data`"
        )
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return read_csv(path, "\t" if suffix == ".tsv" else ",")
    return _of_arrow(str(path), _arrow(path, suffix))


def as_table(data: Any) -> Table | None:
    """A DataFrame, a Hugging Face data set, or a mapping of columns; None for anything else."""
    if isinstance(data, Table):
        return data
    if hasattr(data, "column_names"):
        return _of_hugging_face(data)
    if isinstance(data, Mapping):
        return _checked("data", Table({str(name): values for name, values in data.items()}))
    if hasattr(data, "columns") and hasattr(data, "dtypes"):
        return _of_frame(data)
    return None


def read_csv(path: Path, delimiter: str = ",") -> Table:
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            rows = csv.reader(bounded(handle, path), strict=True, delimiter=delimiter)
            header = [name.strip() for name in next(rows, [])]
            if not header:
                raise BadArgument(f"{path} is empty; give a .csv file with a header line and a record a line")
            _check_names(str(path), header)
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
    columns = zip(*table, strict=True) if table else [()] * len(header)
    return Table(dict(zip(header, columns, strict=True)))


def _check_names(what: str, names: Sequence[str]) -> None:
    if len(names) > MOST_COLUMNS:
        raise BadArgument(
            f"{what} has {len(names):,} columns, above {MOST_COLUMNS:,}; store so many numbers as arrays x and y in a .npz file"
        )
    if len(set(names)) < len(names):
        raise BadArgument(f"{what} has two columns of the same name; give each its own")
    if any(not name for name in names):
        raise BadArgument(f"{what} has a column without a name (row numbers, perhaps); name it, or save without it")


def _checked(what: str, table: Table) -> Table:
    _check_names(what, table.names)
    lengths = {len(values) for values in table.columns.values()}
    if len(lengths) > 1:
        raise BadArgument(f"{what}: its columns differ in length; give each a value a record")
    return table


# -- pyarrow
# ------------------------------------------------------------------------------------------------------------------


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.feather
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise BadArgument(
            "Parquet, Arrow and Feather files need pyarrow; run pip install 'clipwise[files]', or save the table as CSV"
        ) from error
    return pyarrow


def _arrow(path: Path, suffix: str) -> Any:
    pyarrow = _pyarrow()
    try:
        if suffix in (".parquet", ".pq"):
            file = pyarrow.parquet.ParquetFile(path)
            _refuse_large(path, file.metadata.num_rows, file.metadata.num_columns)
            return file.read()
        return _read_ipc(pyarrow, path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise BadArgument(
            f"{path} cannot be read as a {suffix} file ({error}); write it anew, or save it as CSV"
        ) from error


def _read_ipc(pyarrow: Any, path: Path) -> Any:
    with pyarrow.memory_map(str(path)) as source:
        try:
            return pyarrow.ipc.open_file(source).read_all()
        except pyarrow.ArrowInvalid:
            source.seek(0)
            return pyarrow.ipc.open_stream(source).read_all()


def _refuse_large(path: Path, rows: int, columns: int) -> None:
    """A small file can stand for more than the machine has."""
    _check_names(str(path), [""] * columns) if columns > MOST_COLUMNS else None
    if rows * columns * 8 > memory():
        raise BadArgument(
            f"{path} has {rows:,} rows of {columns:,} columns, more than this machine's memory holds; give a smaller file"
        )


def memory() -> int:
    """Of the machine, in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return 64 * 1024**3


def _of_arrow(what: str, table: Any) -> Table:
    pyarrow = _pyarrow()
    columns: dict[str, Values] = {}
    types: dict[str, str] = {}
    _check_names(what, [name.strip() for name in table.column_names])
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
        name = name.strip()
        if pyarrow.types.is_decimal(kind):
            column, kind = column.cast(pyarrow.float64()), pyarrow.float64()
        if pyarrow.types.is_nested(kind) or pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
            raise BadArgument(
                f"{what}: column {some([name])!r} holds {kind}, not one value a record; leave it out of the file"
            )
        numeric = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind)
        types[name] = "number" if numeric else "date" if pyarrow.types.is_temporal(kind) else "text"
        if numeric and not column.null_count and not pyarrow.types.is_dictionary(column.type):
            columns[name] = column.to_numpy()
        else:
            columns[name] = column.to_pylist()
    return Table(columns, types)


def _read_saved(path: Path) -> Table:
    """A folder that `save_to_disk` of Hugging Face's datasets wrote."""
    pyarrow = _pyarrow()
    try:
        files = [path / each["filename"] for each in json.loads((path / "state.json").read_text())["_data_files"]]
        parts = [_read_ipc(pyarrow, file) for file in files]
        features = json.loads((path / "dataset_info.json").read_text())["features"]
        whole = _of_arrow(str(path), pyarrow.concat_tables(parts))
    except (OSError, ValueError, LookupError, TypeError, pyarrow.ArrowException) as error:
        raise BadArgument(
            f"{path} cannot be read as a saved data set ({error}); write it anew with save_to_disk"
        ) from error
    names = {
        name: tuple(about["names"])
        for name, about in features.items()
        if isinstance(about, dict) and about.get("_type") == "ClassLabel"
    }
    return Table(whole.columns, whole.types, names)


# -- objects
# ------------------------------------------------------------------------------------------------------------------


def _of_frame(frame: Any) -> Table:
    columns: dict[str, Values] = {}
    types: dict[str, str] = {}
    _check_names("the DataFrame", [str(name) for name in frame.columns])
    for name in frame.columns:
        kind = getattr(frame.dtypes[name], "kind", "O")
        values = frame[name].to_numpy() if kind in _SCHEMA else frame[name].tolist()
        columns[str(name)] = values
        types[str(name)] = _SCHEMA.get(kind, "date" if kind == "M" else "text")
    return Table(columns, types)


def _of_hugging_face(data: Any) -> Table:
    names = data.column_names
    if not isinstance(names, list):
        raise BadArgument(f"data: a DatasetDict of {some(list(names))}; give one of its parts, such as data['train']")
    columns: dict[str, Values] = {}
    types, classes = {}, {}
    for name in names:
        feature = data.features[name]
        kind = str(getattr(feature, "dtype", ""))
        if type(feature).__name__ == "ClassLabel":
            classes[name] = tuple(feature.names)
        if type(feature).__name__ == "Image":
            types[name] = "image"
        elif kind.startswith(("int", "uint", "float", "double", "bool")):
            types[name] = "number"
        else:
            types[name] = "date" if kind.startswith(("timestamp", "date")) else "text"
        columns[name] = list(data[name])
    return _checked("the data set", Table(columns, types, classes))


# -- folders
# ------------------------------------------------------------------------------------------------------------------


def _read_folder(path: Path) -> Table:
    """A class a folder, and in it an image or a text a file. Links are not followed."""
    classes = sorted(each for each in _visible(path) if each.is_dir())
    found: list[tuple[Path, str]] = [
        (file, folder.name) for folder in classes for file in sorted(_visible(folder)) if is_ordinary(file)
    ]
    suffixes = {file.suffix.lower() for file, _ in found}
    images, texts = suffixes & set(IMAGES), suffixes & {".txt"}
    if not found or (images and texts) or suffixes - set(IMAGES) - {".txt"}:
        raise BadArgument(
            f"data={str(path)[-200:]!r} is a folder, and not one of images ({', '.join(IMAGES)}) or of texts (.txt), in a folder a "
            "class; sort its files so, without others among them"
        )
    labels = [name for _, name in found]
    if images:
        return Table({IMAGE: [file for file, _ in found], LABEL: labels}, {IMAGE: "image", LABEL: "text"})
    return Table({TEXT: [_text(file) for file, _ in found], LABEL: labels}, {TEXT: "text", LABEL: "text"})


def _visible(folder: Path) -> list[Path]:
    try:
        return [each for each in folder.iterdir() if not each.name.startswith(".") and not each.is_symlink()]
    except OSError as error:
        raise BadArgument(f"{folder} cannot be read ({error}); give yourself the right to") from error


def _text(path: Path) -> str:
    try:
        with path.open("rb") as handle:
            raw = handle.read(_MOST_TEXT + 1)
        if len(raw) > _MOST_TEXT:
            raise BadArgument(f"{path.parent} holds a text above {_MOST_TEXT} bytes; cut it, a record a file")
        return raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadArgument(
            f"{path.parent} holds a file that cannot be read as text ({error}); save it as UTF-8"
        ) from error
