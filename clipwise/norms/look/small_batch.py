"""A call's arguments cut to a few rows: what the engine looks at a model with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_unflatten

from clipwise.norms.look.ragged import Bags, Cut, Packed, Row, leaves_of
from clipwise.norms.record.units import Args, Kwargs

_LARGE = 1e4  # larger numbers could overflow, and say more of a record than of the model; chosen, not measured


def ways_to_cut(
    args: Args, kwargs: Kwargs, rows: int, batch_dim: int | None = None, bags: Mapping[int, Bags] = {}
) -> list[list[Cut]]:
    """For each argument, which of its first two dimensions are as long as the batch: the one that was declared alone, if it is one of
    them. `bags` are those without such a dimension, by their place."""

    def of(i: int, x: Any) -> list[Cut]:
        if isinstance(x, PackedSequence):
            return [Packed()]
        if not isinstance(x, Tensor):
            return []
        if i in bags:
            return [bags[i]]
        dims: list[Cut] = [d for d in range(min(2, x.dim())) if x.shape[d] == rows]
        return [batch_dim] if batch_dim in dims else dims

    return [of(i, x) for i, x in enumerate(leaves_of((args, kwargs))[0])]


def first(a: Tensor, b: Tensor) -> Tensor:  # noqa: ARG001
    return a


def second(a: Tensor, b: Tensor) -> Tensor:  # noqa: ARG001
    return b


def far(a: Tensor, b: Tensor) -> Tensor:
    """Below and beyond all else, so that a largest, a smallest or a mean would show it."""
    return -3 * (a.abs() + b.abs()) - 1 if is_float(a) else a


def huge(a: Tensor, b: Tensor) -> Tensor:  # noqa: ARG001
    """What a record may overflow with. Other rows must not know."""
    return torch.full_like(a, min(1e30, torch.finfo(a.dtype).max)).mul_(a.sign().add_(0.5)) if is_float(a) else a


def broken(a: Tensor, b: Tensor) -> Tensor:  # noqa: ARG001
    """Times zero it is not zero: a product with a matrix of rows would show it."""
    return torch.full_like(a, torch.nan) if is_float(a) else a


def short(a: Tensor, b: Tensor) -> Tensor:  # noqa: ARG001
    """The first half, then nothing, as a shorter text would be."""
    if a.dim() < 2:
        return a
    rest = a.shape[1] // 2
    return torch.cat([a[:, : a.shape[1] - rest], torch.zeros_like(a[:, :rest])], 1)


def small_batch(args: Args, kwargs: Kwargs, cuts: Sequence[Cut], rows: Sequence[Row]) -> tuple[Args, Kwargs]:
    """The call's arguments with these rows instead of its own, each as it is cut (None: left whole). Values are made
    finite; the first two rows differ where they can."""
    leaves, spec = leaves_of((args, kwargs))

    def resize(x: Any, dim: Cut) -> Any:
        if dim is None:
            return x
        if not isinstance(dim, int):
            return dim.made(x, rows, _tame)
        x = x.detach().movedim(dim, 0)
        a = _tame(x[:1])
        b = _tame(x[1:2]) if len(x) > 1 else a.flip(-1) if a.dim() > 1 else a
        return torch.cat([row(a, b) for row in rows]).movedim(0, dim)

    args, kwargs = tree_unflatten([resize(x, dim) for x, dim in zip(leaves, cuts, strict=True)], spec)
    return args, kwargs


def _tame(x: Tensor) -> Tensor:
    return x.nan_to_num(0.0, 1.0, -1.0).clamp(-_LARGE, _LARGE) if is_float(x) else x


def is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
