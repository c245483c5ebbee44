"""Stage 6: released gradients to the user's own torch.optim optimizer.

The denominator is the *expected* batch size, a public number: dividing by the realised one would tell how many
records were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from clipwise.types import Released


def write_gradients(parameters: Sequence[nn.Parameter], released: Released, expected_batch_size: float) -> None:
    """p.grad = released sum / expected batch size; the sum's memory is re-used."""
    torch._foreach_div_(list(released.gradient), expected_batch_size)
    for p, total in zip(parameters, released.gradient, strict=True):
        p.grad = total


def set_learning_rate(optimizer: Optimizer, learning_rate: float | None) -> None:
    """The rate that a method has learned; None leaves the user's own rate and scheduler alone."""
    if learning_rate is not None:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
