"""What `fit` takes for records: a torch data set as it is, and whatever is a pair of inputs and targets beyond doubt.

Formal guarantee: nothing is computed over several records. A conversion is of types alone (float64 to the model's own type, whole
numbers to int64), and what could be meant in two ways is refused, before any record is looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from clipwise.types import BadArgument

_LABELS = ("label", "labels")  # names of a Hugging Face data set's target
_ROWS = "give a torch data set of (input, target), a pair (X, y), or prepare a file with `clipwise train --data FILE`"


def as_datasets(train: Any, test: Any, model: nn.Module) -> tuple[Dataset, Dataset | None]:
    """Torch data sets of (input, target)."""
    return _as_dataset("train", train, model), None if test is None else _as_dataset("test", test, model)


def _as_dataset(name: str, data: Any, model: nn.Module) -> Dataset:
    if hasattr(data, "column_names"):
        return _of_hugging_face(name, data, model)
    if isinstance(data, Dataset):
        return data
    if isinstance(data, tuple | list) and len(data) == 2 and all(map(_is_array, data)):
        x, y = (_tensor(f"{name}[{place}]", each) for place, each in enumerate(data))
        return _pair(name, x, y, model)
    if _is_array(data):
        raise BadArgument(
            f"{name} is one {type(data).__name__}, and which part of it is the target is not said; give the pair (X, y)"
        )
    if (
        hasattr(data, "__getitem__")
        and hasattr(data, "__len__")
        and (not isinstance(data, str | bytes | dict | list | tuple) or _is_list_of_pairs(data))
    ):
        return data  # a data set by its two methods, as torch takes it
    raise BadArgument(f"{name} of type {type(data).__name__} holds no records that fit can read; {_ROWS}")


def _is_list_of_pairs(data: Any) -> bool:
    """Records (input, target) one after the other, by the first of them."""
    return isinstance(data, list) and bool(data) and isinstance(data[0], tuple) and len(data[0]) == 2


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | Tensor) or (hasattr(value, "to_numpy") and hasattr(value, "shape"))


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    array = value if isinstance(value, np.ndarray) else value.to_numpy()
    if array.dtype.kind not in "biuf":
        raise BadArgument(
            f"{name} holds {array.dtype}, not numbers; encode words and categories first (`clipwise train --data FILE` does, by public "
            "rules), and number classes 0, 1, 2, ..."
        )
    return torch.from_numpy(np.array(array, order="C"))  # a copy: a frame's own may be read-only


def _pair(name: str, x: Tensor, y: Tensor, model: nn.Module) -> TensorDataset:
    if not x.dim() or not y.dim() or len(x) != len(y):
        raise BadArgument(
            f"{name}: X of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}; give one target a record"
        )
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if y.dim() == 2 and y.shape[1] == 1 and not y.is_floating_point():
        y = y[:, 0]  # a column of class numbers
    y = y.to(own) if y.is_floating_point() else y.long()
    if x.is_floating_point():
        x = x.to(own)
    elif not any(isinstance(each, nn.Embedding | nn.EmbeddingBag) for each in model.modules()):
        x = x.to(own)  # whole numbers, and the model looks none of them up
    else:
        x = x.long()
    return TensorDataset(x, y)


def _of_hugging_face(name: str, data: Any, model: nn.Module) -> Dataset:
    columns = data.column_names
    if not isinstance(columns, list):
        raise BadArgument(
            f"{name} is a DatasetDict of {', '.join(list(columns)[:20])}; give one part, such as data['train']"
        )
    labels = [column for column in columns if column in _LABELS]
    inputs = [column for column in columns if column not in labels]
    if len(labels) != 1 or len(inputs) != 1:
        raise BadArgument(
            f"{name} has the columns {', '.join(columns[:20])}: which are the input and the target is not said. Keep two, the target called "
            "label (data.select_columns([...]).rename_column(...)), or give the pair (X, y)"
        )
    plain = data.with_format("numpy")
    values = [np.asarray(plain[column][:]) for column in (*inputs, *labels)]
    x, y = (_tensor(f"{name}[{column!r}]", each) for column, each in zip((*inputs, *labels), values, strict=True))
    return _pair(name, x, y, model)
