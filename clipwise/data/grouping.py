"""Which group a record belongs to: its class, a grouping that the data set brings (adult: sex, race), or a column of the
user's own table that holds categories of a public list, or group numbers.

A record's group is part of the record, and protected with it. The number of groups and their names are public.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from clipwise.data import Groups
from clipwise.data.columns import Category
from clipwise.data.preprocessing import Row
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from torch import Tensor

    from clipwise.data import DataSet

BY_CLASS = "class"
MOST_GROUPS = 100  # of a user's column: one of ids is no grouping


def find_grouping(dataset: DataSet, name: str) -> Groups:
    if name == BY_CLASS:
        test = None if dataset.test is None else dataset.test.tensors[1]
        if dataset.numbers:
            return _together(dataset)
        return Groups(dataset.class_names, dataset.train.tensors[1], test)
    if name in dataset.groups:
        return dataset.groups[name]
    for column in _categories(dataset):
        if column.name == name:
            return _category(dataset, column)
    if name in dataset.feature_names and not dataset.groups:  # a built-in table says itself what its groups are
        return _column(dataset, name)
    own = (*(column.name for column in _categories(dataset)), *dataset.feature_names)
    known = [BY_CLASS, *dataset.groups, *(() if dataset.groups else own)]
    raise BadArgument(f"group_by={name!r} is no grouping of {dataset.name}; choose one of {', '.join(known[:20])}")


def _categories(dataset: DataSet) -> list[Category]:
    """Columns of an own table whose values are a public list."""
    inputs = None if dataset.preprocessing is None else dataset.preprocessing.inputs
    return [column for column in inputs.columns if isinstance(column, Category)] if isinstance(inputs, Row) else []


def _together(dataset: DataSet) -> Groups:
    """Where a number is predicted there are no classes: all records are one group."""
    import torch

    test = None if dataset.test is None else torch.zeros(len(dataset.test), dtype=torch.int64)
    return Groups(("all",), torch.zeros(len(dataset.train), dtype=torch.int64), test)


def _category(dataset: DataSet, column: Category) -> Groups:
    """The values of a column of categories, by the places that they have in a record's tensor."""
    inputs = dataset.train.tensors[0], None if dataset.test is None else dataset.test.tensors[0]
    first = dataset.feature_names.index(column.features[0])

    def groups(x: Tensor) -> Tensor:
        own = x[:, first : first + len(column.features)]
        return own.argmax(1) + len(column.features) * (own.sum(1) == 0).long()

    names = (*column.values, "missing", "other")
    return Groups(names, groups(inputs[0]), None if inputs[1] is None else groups(inputs[1]))


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
