"""Data sets, one file each; the registry below is all that the rest of the house sees of them.

Looked for in $CLIPWISE_DATA, then ./data, then the user's cache folder. Importing this imports no torch; `load` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clipwise.data.digits import DIGITS
from clipwise.data.fashion_mnist import FASHION_MNIST
from clipwise.data.mnist import MNIST
from clipwise.data.own import Ranges, own_recipe, read_own
from clipwise.data.source import DataSet, Recipe, Source, Split, checked, roots
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

DATASETS: dict[str, Source] = {source.name: source for source in (DIGITS, MNIST, FASHION_MNIST)}


def is_file(name: str) -> bool:
    """Whether `--data NAME` means a user's own file rather than a registered data set."""
    return Path(name).suffix.lower() in (".npz", ".csv")


def load(
    name: str,
    *,
    label: str | None = None,
    classes: int | None = None,
    ranges: Ranges | None = None,
    test_fraction: float = 0.2,
) -> DataSet:
    """The data set by its name, or a user's own file by its path; checked, and ready to train on."""
    if is_file(name):
        train, test, classes, notes = read_own(Path(name), label, classes, ranges or {}, test_fraction)
        shape = train.x.shape[1:]
        return DataSet(
            name=Path(name).stem,
            train=_tensors(train),
            test=_tensors(test) if test else None,
            classes=classes,
            shape=shape,
            where=str(Path(name).resolve()),
            licence="the user's own",
            recipe=own_recipe(shape, len(train.y)),
            notes=notes,
        )
    if name not in DATASETS:
        raise BadArgument(
            f"data={name!r} is not known; choose one of {', '.join(DATASETS)}, or give the path of a .npz or .csv file"
        )
    for option, value in (("label", label), ("classes", classes), ("ranges", ranges)):
        if value:
            raise BadArgument(
                f"{option}={value!r} is for a file of your own; {name!r} is a fixed data set: leave it out"
            )
    source = DATASETS[name]
    root = source.find()
    if root is None:
        places = ", ".join(str(place) for place in roots())
        raise BadArgument(f"data={name!r} was not found in {places}; to get it: {source.how_to_get}")
    source.check(root)
    train, test = (
        checked(f"{name} ({part})", *split, source.classes)
        for part, split in zip(("train", "test"), source.read(root), strict=True)
    )
    return DataSet(
        name=name,
        train=_tensors(train),
        test=_tensors(test),
        classes=source.classes,
        shape=source.shape,
        where=str(root.resolve()) if source.files else source.how_to_get,
        licence=source.licence,
        recipe=source.recipe,
        tuning=source.tuning,
    )


def _tensors(split: Split) -> TensorDataset:
    import torch
    from torch.utils.data import TensorDataset

    return TensorDataset(torch.from_numpy(split.x), torch.from_numpy(split.y))


__all__ = ["DATASETS", "DataSet", "Recipe", "Source", "is_file", "load", "roots"]
