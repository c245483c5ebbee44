"""What the house knows of a data set before and after reading it. Imports no torch: `clipwise data` answers at once.

A `Source` says how to find and read one data set: one file makes one, and one line in `clipwise/data/__init__.py`
registers it. Arrays are checked here, once, for every source and for users' own files. A check names the kind of
problem, never the record that has it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clipwise.types import BadArgument

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

Array = np.ndarray[Any, np.dtype[Any]]


class Split(NamedTuple):
    """Records and their labels, row by row."""

    x: Array
    y: Array


@dataclass(frozen=True)
class Recipe:
    """Settings that train well on a data set for a newcomer who tunes nothing.

    Those of a built-in data set come from runs on public data: that harms nobody, but `tuning` says it, since
    accuracy on the same test part is then optimistic. Those of a user's own data (`own_recipe`) look at nothing but its
    shape and its number of records, treated as public.
    """

    model: str
    expected_batch_size: int
    epochs: int
    lr: float  # of SGD with momentum


@dataclass(frozen=True)
class Source:
    """One data set: its public facts, its files with their sha256, and the function that reads them from a folder."""

    name: str
    summary: str
    licence: str
    how_to_get: str
    shape: tuple[int, ...]  # of one record, channels first
    classes: int
    train_count: int
    test_count: int
    recipe: Recipe
    tuning: str  # how the recipe was found, for the privacy statement
    read: Callable[[Path], tuple[Split, Split]]
    files: Mapping[str, str] = field(
        default_factory=dict
    )  # path under the folder -> sha256; none: comes with a package

    def find(self) -> Path | None:
        """The first folder that has all the files; for an embedded data set, the folder of this file stands in."""
        if not self.files:
            return Path(__file__).parent
        return next((root for root in roots() if all((root / name).is_file() for name in self.files)), None)

    def check(self, root: Path) -> None:
        """Every file's sha256 against the one on record: a truncated or altered file never reaches training."""
        for name, expected in self.files.items():
            with (root / name).open("rb") as handle:
                actual = hashlib.file_digest(handle, "sha256").hexdigest()
            if actual != expected:
                raise BadArgument(
                    f"{root / name} is damaged: its sha256 is {actual}, expected {expected}; put a fresh copy there "
                    f"({self.how_to_get})"
                )


@dataclass(frozen=True)
class DataSet:
    """A data set that is ready to train on: float32 features, int64 labels in 0..classes-1."""

    name: str
    train: TensorDataset
    test: TensorDataset | None
    classes: int
    shape: tuple[int, ...]
    where: str
    licence: str
    recipe: Recipe
    tuning: str | None = None  # how the recipe was found, where that took runs on data
    notes: tuple[str, ...] = ()  # what was done to the data, and what about it is treated as public


def roots() -> list[Path]:
    """The folders to look in, first to last: $CLIPWISE_DATA, ./data, the user's cache."""
    named = os.environ.get("CLIPWISE_DATA")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [*([Path(named)] if named else []), Path("data"), Path(cache) / "clipwise"]


def checked(what: str, x: Array, y: Array, classes: int) -> Split:
    """Features as float32 and labels as int64, or an error that says what is wrong with them.

    NaN and inf among the features pass: the step gives such a record no weight. Labels have no such safety net.
    """
    if x.dtype.kind not in "biuf":
        raise BadArgument(f"{what}: features are of type {x.dtype}, not numbers; store them as float32")
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise BadArgument(
            f"{what}: features have shape {x.shape}; store one record a row, as (records, features) or "
            "(records, channels, h, w)"
        )
    if y.ndim != 1 or len(y) != len(x):
        raise BadArgument(
            f"{what}: labels have shape {y.shape} for {len(x)} records; store one label a record, as ({len(x)},)"
        )
    if not len(x):
        raise BadArgument(f"{what}: there are no records; give a file with at least one")
    if y.dtype.kind not in "iu":
        problem = "missing (NaN)" if y.dtype.kind == "f" and np.isnan(y).any() else f"of type {y.dtype}"
        raise BadArgument(
            f"{what}: labels are {problem}, not whole numbers; store them as integers from 0 to {classes - 1}"
        )
    if y.min() < 0 or y.max() >= classes:
        raise BadArgument(
            f"{what}: labels lie outside 0..{classes - 1}; number the classes from 0, or state how many there are "
            f"(--classes, now {classes})"
        )
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which passes as said above
        return Split(np.ascontiguousarray(x, np.float32), y.astype(np.int64))
