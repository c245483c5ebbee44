"""What stands between a record as it is given and the tensor that a model sees, and back: one frozen value.

Formal guarantee: `Preprocessing` is plain data, written as JSON and read back without running anything; `inputs` and
`targets` use it and the record alone. Training, `clipwise.load`, `predict`, `evaluate` and `export` call this same code, so
that a record has the same tensor, bit for bit, wherever it is met.

What comes in is one of four: a table of columns (columns.py), a text, an image, or an array of a fixed shape. What comes out
is a class of a public list, or a number of a public range, which training sees as -1..1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clipwise import files
from clipwise.data.columns import Category, Column, as_text, column_from_json, column_to_json, read_numbers, some, typed
from clipwise.data.source import Array, Values
from clipwise.data.table import Table, as_table
from clipwise.data.text import Characters, Encoder, HashedWords, ListedWords
from clipwise.types import BadArgument

SCHEMA = 1  # of preprocessing.json: one more whenever an older reader would misread it
MOST_FEATURES = 1_000_000  # numbers of one record: above it no model of ours is meant for it
_WIDEST = 8192  # pixels on a side
_ENCODERS: dict[str, Any] = {"hashed words": HashedWords, "listed words": ListedWords, "characters": Characters}


@dataclass(frozen=True)
class Row:
    """A record is a row of a table."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        if not self.columns:
            raise BadArgument("no column is left beside the label; keep some features, one column each")
        if self.shape[0] > MOST_FEATURES:
            raise BadArgument(
                f"the columns make {self.shape[0]:,} numbers of a record, above {MOST_FEATURES:,}; hash the categories into fewer "
                "buckets (--category COLUMN=hashed:32), or leave columns out (--drop COLUMN)"
            )

    kind = "tabular"

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(len(column.features) for column in self.columns),)

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.features)

    def apply(self, data: Any) -> Array:
        table = self._table(data)
        missing = [column.name for column in self.columns if column.name not in table.columns]
        if missing:
            raise BadArgument(f"column {some(missing)} is missing; give all that the model was trained on")
        parts = [column.encode(table.columns[column.name]) for column in self.columns]
        with np.errstate(over="ignore"):  # beyond float32 it becomes inf, and training gives such a record no weight
            return np.ascontiguousarray(np.concatenate(parts, axis=1), np.float32)

    def _table(self, data: Any) -> Table:
        table = as_table(data)
        if table is not None:
            return table
        rows = np.asarray(data) if not hasattr(data, "detach") else data.detach().cpu().numpy()
        if rows.ndim != 2 or rows.shape[1] != len(self.columns):
            raise BadArgument(
                f"x of shape {rows.shape}: give a table with the columns {some([c.name for c in self.columns])}, or rows with a value "
                f"for each of these {len(self.columns)}, in this order"
            )
        return Table({column.name: rows[:, place] for place, column in enumerate(self.columns)})

    def to_json(self) -> dict[str, Any]:
        return {"columns": [column_to_json(column) for column in self.columns]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Row:
        return cls(tuple(map(column_from_json, value["columns"])))


@dataclass(frozen=True)
class Tokens:
    """A record is a text, of a column or given alone; `encoder` makes token numbers of it. Of a model that brings its own
    tokeniser it is None here, and handed in."""

    column: str | None
    length: int
    size: int
    padding: int
    encoder: Encoder | None = field(default=None, repr=False)
    sequence: bool = False  # a token a character

    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (1 <= self.length <= MOST_FEATURES and 0 <= self.padding < self.size):
            raise BadArgument(
                f"tokens: rows of {self.length} with padding {self.padding} of {self.size} numbers make no sense"
            )

    @property
    def kind(self) -> str:
        return "sequence" if self.sequence else "text"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    def apply(self, data: Any, encoder: Encoder | None = None) -> Array:
        table = as_table(data)
        if table is not None:
            data = _only_column(table, self.column, "text")
        if hasattr(data, "detach"):
            data = data.detach().cpu().numpy()
        if isinstance(data, np.ndarray) and data.dtype.kind in "iu":
            return self._numbers(data)
        texts = [data] if isinstance(data, str) else list(data)
        if not all(isinstance(text, str | tuple) or text is None for text in texts):
            raise BadArgument("x: give texts, a list of str, or rows of token numbers")
        encoder = encoder or self.encoder
        if encoder is None:
            raise BadArgument("x: this model reads texts with a tokeniser that is not here; give rows of token numbers")
        return np.ascontiguousarray(encoder.encode([text or "" for text in texts]), np.int64)

    def _numbers(self, rows: Array) -> Array:
        if (
            rows.ndim != 2
            or rows.shape[1] != self.length
            or (rows.size and not 0 <= rows.min() <= rows.max() < self.size)
        ):
            raise BadArgument(
                f"x: token numbers of shape {rows.shape}; give rows of {self.length}, each from 0 to {self.size - 1}, or texts"
            )
        return np.ascontiguousarray(rows, np.int64)

    def to_json(self) -> dict[str, Any]:
        plain = {key: value for key, value in vars(self).items() if key not in ("encoder", "features")}
        names = {kind: name for name, kind in _ENCODERS.items()}
        if self.encoder is None or type(self.encoder) not in names:
            return {**plain, "encoder": None}
        return {**plain, "encoder": {"kind": names[type(self.encoder)], **asdict(self.encoder)}}  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Tokens:
        encoder = value["encoder"]
        if encoder is not None:
            encoder = typed(_ENCODERS[encoder["kind"]], {k: v for k, v in encoder.items() if k != "kind"})
        column, sequence = value["column"], value["sequence"]
        length, size, padding = (value[name] for name in ("length", "size", "padding"))
        whole = all(type(each) is int for each in (length, size, padding))
        if not whole or not isinstance(column, str | None) or type(sequence) is not bool:
            raise ValueError("a field of another type")
        return cls(column, length, size, padding, encoder, sequence)


@dataclass(frozen=True)
class Picture:
    """A record is an image, of a file or in memory: made grey or RGB, of one public size, and 0..1."""

    column: str | None
    channels: int
    height: int
    width: int
    mean: float = 0.0
    deviation: float = 1.0

    kind = "image"
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.channels not in (1, 3) or not (1 <= self.height <= _WIDEST and 1 <= self.width <= _WIDEST):
            raise BadArgument(
                f"image_size={self.channels}x{self.height}x{self.width}: give 1 or 3 channels and 1 to {_WIDEST} pixels on a side, "
                "such as 3x32x32"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.channels, self.height, self.width)

    def apply(self, data: Any) -> Array:
        table = as_table(data)
        if table is not None:
            data = _only_column(table, self.column, "image")
        if isinstance(data, str | Path):
            data = [data]
        rows = np.zeros((len(data), *self.shape), np.float32)
        for row, one in zip(rows, data, strict=True):
            row[:] = self._pixels(one)
        return standardized(rows, self.mean, self.deviation)

    def _pixels(self, one: Any) -> Array:
        """0..1, of a path, an image of Pillow's, or an array: (h, w), (h, w, channels) in bytes, or of the record's own shape."""
        if hasattr(one, "detach"):
            one = one.detach().cpu().numpy()
        if isinstance(one, np.ndarray) and one.shape == self.shape and one.dtype.kind == "f":
            return one
        try:
            from PIL import Image
        except ModuleNotFoundError as error:
            raise BadArgument("images need Pillow; run pip install 'clipwise[files]'") from error
        try:
            with Image.open(one) if isinstance(one, str | Path) else _pillow(Image, one) as image:
                image = image.convert("RGB" if self.channels == 3 else "L")
                if image.size != (self.width, self.height):
                    image = image.resize((self.width, self.height), Image.Resampling.BILINEAR)
                pixels = np.asarray(image, np.float32) / np.float32(255)
        except (OSError, ValueError, TypeError, Image.DecompressionBombError) as error:
            raise BadArgument(
                f"an image cannot be read ({type(error).__name__}); give files that Pillow opens, such as PNG or JPEG"
            ) from error
        return np.moveaxis(pixels, -1, 0) if self.channels == 3 else pixels[None]

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("kind", "features")}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Picture:
        return typed(cls, value)


@dataclass(frozen=True)
class Block:
    """A record is an array of a fixed shape: a range mapped to 0..1, or bytes divided by 255, or as it is; then
    standardised."""

    shape: tuple[int, ...]
    kind: str = "tabular"
    low: float | None = None
    high: float | None = None
    bytes: bool = False
    mean: float = 0.0
    deviation: float = 1.0
    features: tuple[str, ...] = ()

    def apply(self, data: Any) -> Array:
        if (table := as_table(data)) is not None:
            data = np.stack([read_numbers(name, values, gaps=False) for name, values in table.columns.items()], axis=1)
        rows = data.detach().cpu().numpy() if hasattr(data, "detach") else np.asarray(data)
        if rows.dtype.kind not in "biuf":
            raise BadArgument(f"x of type {rows.dtype}: give numbers")
        if rows.ndim == 3 and len(self.shape) == 3:
            rows = rows[:, None]
        if rows.shape[1:] != self.shape:
            raise BadArgument(f"x of shape {rows.shape}: give records of shape {self.shape}, one a row")
        if self.low is not None and self.high is not None:
            rows = (np.clip(rows.astype(np.float64), self.low, self.high) - self.low) / (self.high - self.low)
        elif self.bytes and rows.dtype == np.uint8:
            rows = rows / np.float32(255)
        with np.errstate(over="ignore"):
            return standardized(np.ascontiguousarray(rows, np.float32), self.mean, self.deviation)

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Block:
        return typed(cls, value)


Inputs = Row | Tokens | Picture | Block
_INPUTS: dict[str, Any] = {"row": Row, "tokens": Tokens, "picture": Picture, "block": Block}


def standardized(rows: Array, mean: float, deviation: float) -> Array:
    return rows if (mean, deviation) == (0.0, 1.0) else (rows - np.float32(mean)) / np.float32(deviation)


def _pillow(module: Any, one: Any) -> Any:
    return module.fromarray(one) if isinstance(one, np.ndarray) else one.copy()


def _only_column(table: Table, name: str | None, what: str) -> Values:
    name = str(name)
    if name not in table.columns and len(table.columns) == 1:
        name = table.names[0]
    if name not in table.columns:
        raise BadArgument(f"column {some([name])!r} is missing; give the {what} in it")
    return table.columns[name]


@dataclass(frozen=True)
class Classes:
    """The label is a class: a name of a public list, or (`numbered`) its place in it."""

    column: str | None
    names: tuple[str, ...]
    numbered: bool = False

    def __post_init__(self) -> None:
        if len(self.names) < 2:
            raise BadArgument(
                f"the label {some([str(self.column)])!r} has one class, and there is nothing to learn; give records of two, or all "
                "classes by name (--classes no,yes)"
            )
        Category(str(self.column), self.names)  # each once, none empty
        for name in self.names:
            if name[:1] in "=@\t\r" or (name[:1] in "+-" and not _is_number(name)):
                raise BadArgument(
                    f"classes: a name begins like a formula ({name[:1]!r}), and a spreadsheet that opens predictions would run "
                    "it; rename the class"
                )

    def encode(self, values: Values) -> Array:
        """int64; a label that is none of the classes is refused, without saying which."""
        if self.numbered:
            try:
                numbers = np.array(
                    [int(value) if isinstance(value, str) else _whole(value) for value in values], np.int64
                )
            except (ValueError, TypeError, OverflowError) as error:
                raise BadArgument(self._not_numbers()) from error
            if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(self.names):
                raise BadArgument(
                    f"labels lie outside 0..{len(self.names) - 1}; number the classes from 0, state how many there are "
                    f"(--classes, now {len(self.names)}), or give their names (--classes no,yes)"
                )
            return numbers
        places = {name: place for place, name in enumerate(self.names)}
        try:
            return np.array([places[as_text(value)] for value in values], np.int64)
        except KeyError:
            raise BadArgument(
                f"column {some([str(self.column)])!r} holds a label that is none of the {len(self.names)} classes; give all of "
                "them (--classes), or take such records out"
            ) from None

    def _not_numbers(self) -> str:
        name = some([str(self.column)])
        return (
            f"column {name!r} holds labels that are not whole numbers; give the classes by name, a public list "
            f"(--classes no,yes), or declare those in the column public (--public-categories {name}); for a number to be "
            f"predicted, --loss squared-error --range {name}=LOW:HIGH"
        )


@dataclass(frozen=True)
class Amount:
    """The label is a number of a public range, which training sees as -1..1; what lies outside is cut off."""

    column: str | None
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.high - self.low) and self.low < self.high):
            raise BadArgument(f"range of the label: {self.low!r}:{self.high!r} is no range; give low before high")

    names: tuple[str, ...] = ()

    def encode(self, values: Values) -> Array:
        """(records, 1), float32. A gap is refused: there is nothing to predict."""
        numbers = read_numbers(str(self.column), values, gaps=True)
        if not np.isfinite(numbers).all():
            raise BadArgument(
                f"column {some([str(self.column)])!r} has labels that are missing or not finite; take such records out"
            )
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return ((np.clip(numbers, self.low, self.high) - middle) / half).astype(np.float32)[:, None]

    def decode(self, outputs: Array) -> Array:
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return outputs.astype(np.float64) * half + middle


Target = Classes | Amount


@dataclass(frozen=True)
class Preprocessing:
    inputs: Inputs
    target: Target
    held_out: float | None = None  # the share of an own file that the split by content holds out
    learned: tuple[Mapping[str, Any], ...] = ()  # what was released to make this, as it was charged

    def to_json(self) -> str:
        kinds = {kind: name for name, kind in _INPUTS.items()}
        target = {key: value for key, value in asdict(self.target).items() if key != "names" or value}
        value = {
            "schema": SCHEMA,
            "inputs": {"is": kinds[type(self.inputs)], **self.inputs.to_json()},
            "target": {"is": "classes" if isinstance(self.target, Classes) else "amount", **target},
            "held_out": self.held_out,
            "learned": [dict(each) for each in self.learned],
        }
        return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "preprocessing.json") -> Preprocessing:
        try:
            value = files.parse_json(text)
            if value["schema"] != SCHEMA:
                raise BadArgument(
                    f"{where} is of schema {value['schema']!r}, and this version reads {SCHEMA}; use the version that wrote it"
                )
            inputs = {key: each for key, each in value["inputs"].items() if key != "is"}
            target = {key: each for key, each in value["target"].items() if key != "is"}
            made: Target = typed(Classes if value["target"]["is"] == "classes" else Amount, target)
            held = value["held_out"]
            if held is not None and not 0 <= held < 1:
                raise ValueError("no share")
            return cls(_INPUTS[value["inputs"]["is"]].from_json(inputs), made, held, tuple(value["learned"]))
        except (files.Malformed, LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, BadArgument):
                raise
            raise BadArgument(
                f"{where} is not what `clipwise train` writes ({type(error).__name__}); restore the file"
            ) from error


def _whole(value: Any) -> int:
    number = float(value)
    if isinstance(value, bool | np.bool_) or number != int(number):
        raise ValueError("not whole")
    return int(number)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
