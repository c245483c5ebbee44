"""Which group a record belongs to: its class, a grouping that the data set brings (adult: sex, race), or a column of the
user's own table that holds group numbers.

A record's group is part of the record, and protected with it. The number of groups and their names are public.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from clipwise.data import Groups
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from torch import Tensor

    from clipwise.data import DataSet

BY_CLASS = "class"
MOST_GROUPS = 100  # of a user's column: one of ids is no grouping


def find_grouping(dataset: DataSet, name: str) -> Groups:
    if name == BY_CLASS:
        test = None if dataset.test is None else dataset.test.tensors[1]
        return Groups(dataset.class_names, dataset.train.tensors[1], test)
    if name in dataset.groups:
        return dataset.groups[name]
    if name in dataset.feature_names and not dataset.groups:  # a built-in table says itself what its groups are
        return _column(dataset, name)
    known = [BY_CLASS, *dataset.groups, *(() if dataset.groups else dataset.feature_names)]
    raise BadArgument(f"group_by={name!r} is no grouping of {dataset.name}; choose one of {', '.join(known[:20])}")


def groupings(dataset: DataSet, asked: str) -> Mapping[str, Groups]:
    """All groupings to report on: the one that was asked for, the class, and those of the data set."""
    names = dict.fromkeys((BY_CLASS, *dataset.groups, asked))
    return {name: find_grouping(dataset, name) for name in names}


def group_index(names: tuple[str, ...], group: str, name: str) -> int:
    if group not in names:
        raise BadArgument(f"groups={group!r} is no group of {name!r}; choose of {', '.join(names)}")
    return names.index(group)


def _column(dataset: DataSet, name: str) -> Groups:
    import torch

    place = dataset.feature_names.index(name)
    parts: list[Tensor] = []
    for part in (dataset.train, dataset.test):
        values = part.tensors[0][:, place] if part is not None else torch.zeros(0)
        if not bool(torch.isfinite(values).all()) or bool(((values != values.round()) | (values < 0)).any()):
            raise BadArgument(
                f"group_by={name!r}: the column holds more than whole numbers from 0; number the groups 0, 1, 2, ... and "
                "state no --range that would scale them"
            )
        parts.append(values.long())
    number = 1 + max(int(values.max()) for values in parts if len(values))
    if number > MOST_GROUPS:
        raise BadArgument(f"group_by={name!r} has numbers above {MOST_GROUPS - 1}; number the groups 0, 1, 2, ...")
    return Groups(tuple(map(str, range(number))), parts[0], None if dataset.test is None else parts[1])
