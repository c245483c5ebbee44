"""Stage 6: released gradients to the user's own torch.optim optimizer.

The denominator is the *expected* batch size, a public number, and for a method that normalises its bound beside: dividing
by the realised size would tell how many records were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from clipwise.types import Released


def hand_over(
    optimizer: Optimizer,
    parameters: Sequence[nn.Parameter],
    released: Released,
    *,
    divide_by: float,
    learning_rate: float | None,
) -> None:
    """p.grad = released sum / `divide_by`, a public number (the sum's memory is re-used), and the public values of the step: the
    rate that a method has learned (None leaves the user's own rate and scheduler alone), and the std of the noise on
    p.grad, for an optimizer whose groups have a place for it."""
    torch._foreach_div_(list(released.gradient), divide_by)
    for p, total in zip(parameters, released.gradient, strict=True):
        p.grad = total if total.dtype is p.dtype else total.to(p.dtype)  # rounded after the noise: post-processing
    for group in optimizer.param_groups:
        if learning_rate is not None:
            group["lr"] = learning_rate
        if "noise_std" in group:
            group["noise_std"] = released.noise_std / divide_by
