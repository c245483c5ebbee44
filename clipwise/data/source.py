"""What the house knows of a data set before and after reading it. Imports no torch: `clipwise data` answers at once.

A `Source` says what one data set is: one file makes one, and one line in `clipwise/data/__init__.py` registers it. Its
files may come in more than one form (as published, re-coded, a subset): each form is an `Edition`. Arrays are checked
here, once, for every source and for users' own files. A check names the kind of problem, never the record that has it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from clipwise.types import BadArgument

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import TensorDataset

    from clipwise.data.own import Unlearned
    from clipwise.data.preprocessing import Preprocessing
    from clipwise.data.text import Encoder

Array = np.ndarray[Any, np.dtype[Any]]
Values = Sequence[Any] | Array  # of a column
Kind = Literal["image", "tabular", "text", "sequence"]  # sequence: one token a character
TOKEN_KINDS = ("text", "sequence")  # records are rows of token numbers, int64


class Split(NamedTuple):
    """Records and their labels, row by row; of a text data set, the texts themselves."""

    x: Any  # an array, or a list of texts
    y: Array
    groups: Mapping[str, Array] = {}  # name of a grouping (sex, race, ...) -> each record's group


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
    average_weights: float = 0.0
    method: str = "fixed"
    packages: tuple[str, ...] = ()  # that hold what the model needs; nothing is fetched to follow a recipe
    for_others: bool = True  # a model that no recipe is for may take these settings
    instead: Recipe | None = None  # where a package is not installed, or for another model

    def chosen(self, model: str | None) -> Recipe:
        """For the model that was named, or else the first whose packages are installed. A model that no recipe is for
        takes the settings of the first that needs no package and is for others too."""
        known: list[Recipe] = [self]
        while (last := known[-1].instead) is not None:
            known.append(last)
        usable = [recipe for recipe in known if all(map(installed, recipe.packages))]
        of_model = [recipe for recipe in known if recipe.model == model]
        plain = [recipe for recipe in known if not recipe.packages and recipe.for_others]
        return (usable if model is None else of_model or plain)[0]


UNTUNED = "the default settings are cautious guesses; nothing was tuned on this data by Clipwise"


def tuned(runs: int) -> str:
    """How a recipe was found that took so many runs, for the privacy statement."""
    return (
        f"the default settings were chosen among about {runs} by trial runs on this same public data, test part included, and "
        "this was not charged; accuracy with them is optimistic"
    )


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


class File(NamedTuple):
    """One file of a data set: how its bytes are known, and where the publisher keeps it."""

    sha256: str | None  # as published; None: a folder of the user's own, whose bytes nobody published
    size: int | None = None  # bytes, of a file that can be fetched
    urls: tuple[str, ...] = ()  # mirrors, first to last; none: it cannot be fetched
    also: str | None = None  # sha256 of a re-compressed copy with the same content

    def accepts(self, sha256: str) -> bool:
        return sha256 in (self.sha256, self.also)


@dataclass(frozen=True)
class Edition:
    """One form in which a data set is found: its files, and the function that reads them from the folder above them."""

    files: Mapping[str, File]  # path under the folder; none: comes with a package
    read: Callable[[Path], tuple[Split, Split]]  # train, test
    train_count: int
    test_count: int
    note: str | None = None  # how it differs from what was published, for the privacy statement

    def is_in(self, root: Path) -> bool:
        return all((root / name).is_file() for name in self.files)

    @property
    def fetchable(self) -> bool:
        return bool(self.files) and all(file.urls for file in self.files.values())

    @property
    def key(self) -> str:
        """Names the bytes of this edition: what was computed from them is good as long as it stays the same."""
        lines = "".join(f"{name} {file.sha256}\n" for name, file in sorted(self.files.items()))
        return hashlib.sha256(lines.encode()).hexdigest()


class Found(NamedTuple):
    root: Path
    edition: Edition


@dataclass(frozen=True, kw_only=True)
class Source:
    """One data set: its public facts, and the editions in which it is found, best first."""

    name: str
    summary: str
    kind: Kind
    licence: str
    how_to_get: str
    shape: tuple[int, ...]  # of one record, channels first
    class_names: tuple[str, ...]
    recipe: Recipe
    tuning: str  # how the recipe was found, for the privacy statement
    editions: tuple[Edition, ...]
    notes: tuple[str, ...] = ()  # what is done to the data, and what about it is treated as public
    encoder: Encoder | None = None  # of texts, unless the user names another
    fixed_encoder: bool = False  # no other encoder makes sense
    feature_names: tuple[str, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # grouping -> names of its groups, in order

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def vocabulary_size(self) -> int | None:
        return None if self.encoder is None else self.encoder.size

    @property
    def padding(self) -> int | None:
        return None if self.encoder is None else self.encoder.padding

    @property
    def fetchable(self) -> Edition | None:
        """The edition that `clipwise data get` fetches, if any."""
        return next((edition for edition in self.editions if edition.fetchable), None)

    def find(self) -> Found | None:
        """The first folder that has all the files of an edition, and the best edition there."""
        for root in roots():
            for edition in self.editions:
                if edition.is_in(root):
                    return Found(root, edition)
        return None

    def check(self, found: Found) -> None:
        """Every file's sha256 against the one on record: a truncated or altered file never reaches training."""
        for name, file in found.edition.files.items():
            if file.sha256 is None:
                continue
            actual = sha256_of(found.root / name)
            if not file.accepts(actual):
                raise BadArgument(
                    f"{found.root / name} is damaged: its sha256 is {actual}, expected {file.sha256}; put a fresh copy "
                    f"there ({self.how_to_get})"
                )


class Groups(NamedTuple):
    """A grouping of the records that is not the label: each record's group, and the groups' names in order."""

    names: tuple[str, ...]
    train: Tensor
    test: Tensor | None


@dataclass(frozen=True)
class DataSet:
    """A data set that is ready to train on: labels are int64 in 0..classes-1, or with classes = 1 numbers; records are
    float32 features, or int64 token numbers where `kind` is text or sequence."""

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
    kind: Kind = "tabular"
    class_names: tuple[str, ...] = ()
    vocabulary_size: int | None = None  # token numbers lie in 0..vocabulary_size-1
    padding: int | None = None  # the token number that fills a record up to its fixed length
    feature_names: tuple[str, ...] = ()
    groups: Mapping[str, Groups] = field(default_factory=dict)
    preprocessing: Preprocessing | None = None  # how its records became tensors; None: a data set of a test's own
    unlearned: Unlearned | None = (
        None  # of an own file: what is to be released first, until which tensors are place-holders
    )
    warnings: tuple[str, ...] = ()  # for the user, before anything is spent

    @property
    def numbers(self) -> bool:
        """Whether a number is to be predicted (float32, one a record) rather than a class."""
        return self.classes == 1


def listed(text: str) -> tuple[str, ...]:
    """Names written one after another with blanks between them."""
    return tuple(text.split())


def sha256_of(path: Path) -> str:
    try:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise BadArgument(f"{path} cannot be read ({error.strerror or error}); put a readable copy there") from error


def cache_folder() -> Path:
    """The user's cache: what `clipwise data get` fetches and what is decoded once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clipwise"


def roots() -> list[Path]:
    """The folders to look in, first to last: $CLIPWISE_DATA, ./data, the user's cache."""
    named = os.environ.get("CLIPWISE_DATA")
    return [*([Path(named)] if named else []), Path("data"), cache_folder()]


def checked(what: str, x: Array, y: Array, classes: int, tokens: int | None = None) -> Split:
    """Features as float32 (or token numbers below `tokens` as int64) and labels as int64, or an error that says what is
    wrong with them.

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
    if tokens is not None:
        if x.dtype.kind not in "iu" or x.min() < 0 or x.max() >= tokens:
            raise BadArgument(
                f"{what}: token numbers lie outside 0..{tokens - 1}, or are not whole; correct the encoder that made them"
            )
        return Split(np.ascontiguousarray(x, np.int64), y.astype(np.int64))
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which passes as said above
        return Split(np.ascontiguousarray(x, np.float32), y.astype(np.int64))
