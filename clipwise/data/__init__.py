"""Data sets, one file each; the registry below is all that the rest of the house sees of them.

Looked for in $CLIPWISE_DATA, then ./data, then the user's cache folder. Importing this imports no torch; `load` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clipwise import validate
from clipwise.data.adult import ADULT
from clipwise.data.ag_news import AG_NEWS
from clipwise.data.cifar10 import CIFAR10
from clipwise.data.cifar100 import CIFAR100
from clipwise.data.described import OwnData
from clipwise.data.digits import DIGITS
from clipwise.data.fashion_mnist import FASHION_MNIST
from clipwise.data.glue import QNLI, SST2
from clipwise.data.mnist import MNIST, UNBALANCED_MNIST
from clipwise.data.names import NAMES
from clipwise.data.own import load_own
from clipwise.data.preprocessing import Block, Classes, Inputs, Preprocessing, Tokens
from clipwise.data.source import TOKEN_KINDS, Array, DataSet, Found, Groups, Recipe, Source, Split, checked, roots
from clipwise.data.svhn import SVHN, SVHN_SUBSET
from clipwise.data.table import TABLES
from clipwise.data.text import Encoder, make_encoder
from clipwise.data.thinwall import THINWALL
from clipwise.files import is_folder
from clipwise.mechanism import make
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

DATASETS: dict[str, Source] = {
    source.name: source
    for source in (
        *(DIGITS, MNIST, UNBALANCED_MNIST, FASHION_MNIST, CIFAR10, CIFAR100, SVHN, SVHN_SUBSET, THINWALL),
        *(AG_NEWS, SST2, QNLI, NAMES, ADULT),
    )
}


def is_file(name: str) -> bool:
    """Whether `--data NAME` means a user's own file or folder rather than a registered data set."""
    path = Path(name)
    return path.suffix.lower() in (".npz", *TABLES) or (name not in DATASETS and is_folder(name))


def load(
    name: Any,
    *,
    vocabulary: str | Encoder | None = None,
    standardize: Sequence[float] | None = None,
    regression: bool = False,
    records: int | None = None,
    **words: Any,
) -> DataSet:
    """The data set by its name, or a user's own data (a path, a DataFrame, a Hugging Face data set, columns by name); checked,
    and ready to train on.

    `words` say what an own file is: `label`, `ranges`, `categories`, ... (clipwise/data/described.py); `regression`: its label
    is a number to be predicted.

    `vocabulary` is for texts: `hashed` (the default), `training`, or the path of a public text, each perhaps with a size
    (`hashed:8192`); or an `Encoder` of your own. See clipwise/data/text.py for what each means for privacy.

    `standardize` is for images: a mean and a standard deviation of pixels, as public figures.

    `records` trains on so many records of a data set by name, the same ones in every run; its test part stays whole.
    """
    scale = None if standardize is None else validate.mean_and_deviation("standardize", standardize)
    own = make(OwnData, {name: value for name, value in words.items() if value is not None})
    if not isinstance(name, str) or is_file(name):
        if vocabulary is not None and not isinstance(vocabulary, str):
            raise BadArgument(
                "vocabulary: an encoder of your own is for a data set of texts by name; give hashed, or a path"
            )
        _leave_out("is for a data set by name; cut your own file before", records=records)
        return load_own(name, own, regression=regression, vocabulary=vocabulary, standardize=scale)
    source = get_source(name)
    refuse_unless_images(source, scale)
    _leave_out(f"is for a file of your own; {name!r} is a fixed data set", **own.given)
    if source.encoder is None or source.fixed_encoder:
        _leave_out(f"is for a data set of words; {name!r} has none", vocabulary=vocabulary)
    dataset = _load_found(source, find_checked(source), vocabulary)
    dataset = dataset if records is None else _some(dataset, records)
    return dataset if scale is None else _standardized(dataset, *scale)


def find_checked(source: Source) -> Found:
    """Its files, which are what they should be, or an error that says where they were looked for and how to get them."""
    found = source.find()
    if found is None:
        places = ", ".join(str(place) for place in roots())
        raise BadArgument(
            f"data={source.name!r} was not found in {places}; to get it: {source.how_to_get}; or name the folder that has it "
            "in CLIPWISE_DATA"
        )
    source.check(found)
    return found


def get_source(name: str) -> Source:
    if name not in DATASETS:
        raise BadArgument(
            f"data={name!r} is not known; choose one of {', '.join(DATASETS)}, or give the path of a file (.csv, .parquet, .npz, ...) or a folder"
        )
    return DATASETS[name]


def _load_found(source: Source, found: Found, vocabulary: str | Encoder | None) -> DataSet:
    raw = found.edition.read(found.root)
    encoder = source.encoder
    if isinstance(vocabulary, str) and encoder is not None:
        encoder = make_encoder(vocabulary, encoder, raw[0].x)
    elif vocabulary is not None:
        encoder = vocabulary  # type: ignore[assignment]
    parts = []
    for part, split in zip(("train", "test"), raw, strict=True):
        x = split.x if encoder is None else encoder.encode(split.x)
        parts.append(
            checked(f"{source.name} ({part})", x, split.y, source.classes, None if encoder is None else encoder.size)
        )
    train, test = parts
    shape = source.shape if encoder is None else (encoder.length,)
    if {train.x.shape[1:], test.x.shape[1:]} != {shape}:
        raise BadArgument(f"{source.name}: records have shape {train.x.shape[1:]}, not {shape}; put a fresh copy there")
    edition = f"{source.name}: {found.edition.note}" if found.edition.note else None
    notes = (*source.notes, edition, None if encoder is None else encoder.note)
    return DataSet(
        name=source.name,
        train=_tensors(train),
        test=_tensors(test),
        classes=source.classes,
        shape=shape,
        where=str(found.root.resolve()) if found.edition.files else source.how_to_get,
        licence=source.licence,
        recipe=source.recipe,
        tuning=source.tuning,
        notes=tuple(note for note in notes if note),
        kind=source.kind,
        class_names=source.class_names,
        vocabulary_size=None if encoder is None else encoder.size,
        padding=None if encoder is None else encoder.padding,
        feature_names=source.feature_names,
        groups={
            name: _groups(names, raw[0].groups[name], raw[1].groups[name]) for name, names in source.groups.items()
        },
        preprocessing=Preprocessing(_inputs(source, shape, encoder), Classes(None, source.class_names, numbered=True)),
    )


def _some(dataset: DataSet, records: int) -> DataSet:
    """With a part of its train part: by an order that no record has a say in, so that every run has the same ones."""
    import torch
    from torch.utils.data import TensorDataset

    there = len(dataset.train)
    if validate.count("records", records) > there:
        raise BadArgument(f"records={records!r}: {dataset.name!r} has {there} to train on; give {there} or fewer")
    places = torch.from_numpy(np.random.default_rng(0).permutation(there)[:records])
    return replace(
        dataset,
        train=TensorDataset(*(each[places] for each in dataset.train.tensors)),
        groups={name: each._replace(train=each.train[places]) for name, each in dataset.groups.items()},
        notes=(*dataset.notes, f"{records} of the {there} records of {dataset.name}, the same in every run"),
    )


def _inputs(source: Source, shape: tuple[int, ...], encoder: Encoder | None) -> Inputs:
    """Of a data set by name: texts as they are, anything else in the form that the data set has here."""
    if encoder is None:
        return Block(shape, source.kind, bytes=source.kind == "image", features=source.feature_names)
    return Tokens(None, encoder.length, encoder.size, encoder.padding, encoder, source.kind == "sequence")


def refuse_unless_images(data: DataSet | Source, standardize: Sequence[float] | None) -> None:
    if standardize is not None and data.kind != "image":
        _leave_out(f"is for images; {data.name!r} has none", standardize=list(standardize))


def _standardized(dataset: DataSet, mean: float, deviation: float) -> DataSet:
    from torch.utils.data import TensorDataset

    refuse_unless_images(dataset, (mean, deviation))

    def part(data: TensorDataset) -> TensorDataset:
        x, *rest = data.tensors
        return TensorDataset((x - mean) / deviation, *rest)

    note = f"pixels: less {mean:g}, divided by {deviation:g}, figures of the user's that are treated as public"
    test = None if dataset.test is None else part(dataset.test)
    made = dataset.preprocessing
    if made is not None and isinstance(made.inputs, Block):
        made = replace(made, inputs=replace(made.inputs, mean=mean, deviation=deviation))
    return replace(dataset, train=part(dataset.train), test=test, notes=(*dataset.notes, note), preprocessing=made)


def _leave_out(why: str, **options: object) -> None:
    for option, value in options.items():
        if value:
            raise BadArgument(f"{option}={value!r} {why}: leave it out")


def _tensors(split: Split) -> TensorDataset:
    import torch
    from torch.utils.data import TensorDataset

    return TensorDataset(torch.from_numpy(split.x), torch.from_numpy(split.y))


def _groups(names: tuple[str, ...], train: Array, test: Array) -> Groups:
    import torch

    return Groups(names, torch.from_numpy(train.astype("int64")), torch.from_numpy(test.astype("int64")))


__all__ = [
    "DATASETS",
    "TOKEN_KINDS",
    "DataSet",
    "Encoder",
    "Groups",
    "Recipe",
    "Source",
    "find_checked",
    "get_source",
    "is_file",
    "load",
    "refuse_unless_images",
    "roots",
]
