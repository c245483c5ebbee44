"""Whether the modules of a model train or evaluate: changed for a while, and each put back as it was.

`model.train(True)` afterwards would be another thing: it puts a frozen BatchNorm, which its user left in eval mode because its
statistics are public, back to computing statistics of the batch, and these mix records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from clipwise.types import BadArgument

Found = TypeVar("Found")


@contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """At the end of the block each module's mode is what it was."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In eval mode and without gradients for a block."""
    with kept(model), torch.no_grad():
        model.eval()
        yield


def to_training(model: nn.Module) -> None:
    """Every module trains, but for a BatchNorm in eval mode none of whose weights is trained: it stays as it is."""
    fixed = [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm)
        and not module.training
        and not any(p.requires_grad for p in module.parameters())
    ]
    model.train()
    for module in fixed:
        module.eval()


def tried(model: nn.Module, call: Callable[[], Found]) -> Found:
    """What `call` makes of a first record, as evaluation would; where that fails, what to look at."""
    try:
        with evaluating(model):
            return call()
    except BadArgument:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        own = next((str(p.dtype) for p in model.parameters() if p.is_floating_point()), "no floating-point type")
        raise BadArgument(
            f"model: a batch of the first record does not go through it ({type(error).__name__}: {error}). Its weights are {own}: give "
            f"inputs of the type and shape that it takes, such as x.to({own})"
        ) from error
