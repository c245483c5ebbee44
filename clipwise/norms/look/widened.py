"""A forward pass in float32, whatever the model computes in: what then differs between two runs is not rounding.

Half precision rounds by up to 1/256, and each layer of a deep model passes that on, so that no tolerance tells a model that masks its
padding from one that does not: an encoder whose padding counts came through at 3 %, one that masks it did not (tests/test_padding.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from clipwise.norms.kernels.kernel import HALF


@contextmanager
def in_float32(model: nn.Module) -> Iterator[Wide]:
    """Weights and buffers in half precision are float32 in this block, and so is all that would be made in half precision."""
    narrow = [t for t in chain(model.parameters(), model.buffers()) if t.dtype in HALF]
    values, mode = [t.data for t in narrow], Wide(found=bool(narrow))
    try:
        for t, value in zip(narrow, values, strict=True):
            t.data = value.float()
        with mode:
            yield mode
    finally:
        for t, value in zip(narrow, values, strict=True):
            t.data = value


def widened(tree: Any) -> Any:
    """Tensors, and dtypes that are asked for, in float32 where they are in half precision."""
    return tree_map(_wide, tree)


def _wide(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.float() if x.dtype in HALF else x
    return torch.float32 if isinstance(x, torch.dtype) and x in HALF else x


def _wide_dtype(x: Any) -> Any:
    return x if isinstance(x, Tensor) else _wide(x)


def has_half(tree: Any) -> bool:
    """Whether anything in it is in half precision, or asks for it."""
    return any(_dtype_of(x) in HALF for x in tree_flatten(tree)[0])


def _dtype_of(x: Any) -> torch.dtype | None:
    return x.dtype if isinstance(x, Tensor) else x if isinstance(x, torch.dtype) else None


class Wide(TorchDispatchMode):
    """Below autocast, whose casts come here as well. `found`: whether there was anything to widen."""

    def __init__(self, *, found: bool = False):
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = self.found or has_half((args, kwargs))
        # What is written to must stay itself.
        args, kwargs = tree_map(_wide_dtype if func._schema.is_mutable else _wide, (args, kwargs or {}))
        return func(*args, **kwargs)
