"""Stage 6: released gradients to the user's own torch.optim optimizer.

The denominator is the *expected* batch size, a public number, and for a method that normalises its bound beside: dividing
by the realised size would tell how many records were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
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
        p.grad = _as_gradient(p, total)
    for group in optimizer.param_groups:
        if learning_rate is not None:
            group["lr"] = learning_rate
        if "noise_std" in group:
            group["noise_std"] = released.noise_std / divide_by


def _as_gradient(p: nn.Parameter, total: Tensor) -> Tensor:
    """A released sum as it stands on p.grad: of a parameter that is cut, this process's part of it."""
    total = total if total.dtype is p.dtype else total.to(p.dtype)  # rounded after the noise: post-processing
    if not hasattr(p, "placements"):
        return total
    from torch.distributed.tensor import DTensor

    own: Any = p
    return DTensor.from_local(
        total.view(own.to_local().shape),
        own.device_mesh,
        own.placements,
        run_check=False,
        shape=p.shape,
        stride=p.stride(),
    )
