"""Parts of a batch: what its containers hold, by paths; whatever a collate function returns."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

Path = tuple[Any, ...]  # of steps: ("key", k), ("item", i) or ("attribute", name)


def children(value: Any) -> list[tuple[Any, Any]] | None:
    """(step, part) for what a container holds; None for a leaf."""
    if isinstance(value, Mapping):
        return [(("key", k), v) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return [(("item", i), v) for i, v in enumerate(value)]
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict) and own and not callable(value) and not isinstance(value, Tensor):
        return [(("attribute", k), v) for k, v in own.items()]
    return None


def leaves(value: Any, path: Path = (), *, rows: bool = False) -> Iterator[tuple[Path, Any]]:
    """Every leaf; with `rows`, a list of numbers is one."""
    numbers = (
        rows and isinstance(value, list | tuple) and bool(value) and all(isinstance(v, int | float) for v in value)
    )
    inside = None if numbers else children(value)
    if inside is None:
        yield path, value
    for key, child in inside or []:
        yield from leaves(child, (*path, key), rows=rows)


def step_into(value: Any, key: Any) -> Any:
    kind, name = key
    return getattr(value, name) if kind == "attribute" else value[name]


def get(value: Any, path: Path) -> Any:
    for key in path:
        value = step_into(value, key)
    return value


def put(value: Any, path: Path, leaf: Any) -> Any:
    """The value with another leaf: changed in place where that can be, made anew where not (a tuple)."""
    if not path:
        return leaf
    (kind, name), *rest = path
    child = put(step_into(value, path[0]), tuple(rest), leaf)
    if kind == "attribute":
        setattr(value, name, child)
    elif isinstance(value, tuple):
        parts = [child if i == name else v for i, v in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    else:
        value[name] = child
    return value


def map_tensors(make: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """A batch of the same layout with other tensors."""
    made = copy.copy(batch)
    if isinstance(batch, Tensor):
        return make(batch)
    if isinstance(batch, np.ndarray) and batch.dtype.kind in "biuf":
        return make(torch.from_numpy(batch)).numpy()
    for key, child in children(batch) or []:
        made = put(made, (key,), map_tensors(make, child))
    return made


def tensor(x: Any) -> Tensor:
    if isinstance(x, np.ndarray):
        return torch.from_numpy(x) if x.dtype.kind in "biufc" else torch.zeros(x.shape)
    dense: Tensor = x.detach().to_dense() if x.layout != torch.strided else x.detach()
    return dense


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit; NaN is NaN."""
    if isinstance(a, Tensor | np.ndarray) and isinstance(b, Tensor | np.ndarray):
        if isinstance(a, np.ndarray) and a.dtype.kind not in "biufc":
            return isinstance(b, np.ndarray) and np.array_equal(a, b)
        a, b = tensor(a), tensor(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
    if type(a) is not type(b):
        return False
    one, other = children(a), children(b)
    if one is not None and other is not None:
        return [k for k, _ in one] == [k for k, _ in other] and all(
            same(v, w) for (_, v), (_, w) in zip(one, other, strict=True)
        )
    return bool(a == b) or (isinstance(a, float) and a != a and b != b)


def name_of(path: Path) -> str:
    shown = "".join(f".{name}" if kind == "attribute" else f"[{name!r}]" for kind, name in path)
    return f"batch{shown}" if shown else "the whole"
