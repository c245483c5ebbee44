"""A call's arguments cut to two or three rows: what the engine looks at a model with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

_LARGE = 1e4  # larger numbers could overflow, and say more of a record than of the model


def dimensions_of_rows(args: tuple, kwargs: dict, rows: int) -> list[list[int]]:
    """For each argument, which of its first two dimensions are as long as the batch."""
    leaves = tree_flatten((args, kwargs))[0]
    return [[d for d in range(min(2, x.dim())) if x.shape[d] == rows] if isinstance(x, Tensor) else [] for x in leaves]


def same(first: Tensor, second: Tensor) -> Tensor:  # noqa: ARG001
    return first


def far(first: Tensor, second: Tensor) -> Tensor:
    """Below and beyond all else, so that a largest, a smallest or a mean would show it."""
    return -3 * (first.abs() + second.abs()) - 1 if is_float(first) else first


def small_batch(
    args: tuple,
    kwargs: dict,
    cuts: list[int | None],
    n: int,
    *,
    second: Callable[[Tensor, Tensor], Tensor] = lambda _, own: own,
) -> tuple[tuple, dict]:
    """The call's arguments cut or stretched to n rows, each in its dimension (None: left whole). Values are made finite;
    the first two rows differ where they can, unless `second(first, second)` makes another second."""
    leaves, spec = tree_flatten((args, kwargs))

    def resize(x: Any, dim: int | None) -> Any:
        if dim is None:
            return x
        first = _tame(x.detach().narrow(dim, 0, 1))
        other = (
            _tame(x.detach().narrow(dim, 1, 1)) if x.shape[dim] > 1 else first.flip(-1) if first.dim() > 1 else first
        )
        # Rows a, b, a: no sorting of them by anything in which a and b differ leaves all three in place.
        return torch.cat([first, second(first, other), first][:n], dim)

    return tree_unflatten([resize(x, dim) for x, dim in zip(leaves, cuts, strict=True)], spec)


def _tame(x: Tensor) -> Tensor:
    return x.nan_to_num(0.0, 1.0, -1.0).clamp(-_LARGE, _LARGE) if is_float(x) else x


def is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
