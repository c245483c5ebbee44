"""AdamWOSM: Adam without a second moment, whose learning rate is set by the noise instead of by tuning.

    lr = alpha / (sigma C / B + 1e-8)       m <- beta m + (1 - beta) g       theta <- theta - lr / (1 - beta^t) m

Under privacy the second moment of Adam mostly measures the noise, whose size is known: so the known size is used. Takes public numbers and
released gradients only. Reference: Mohapatra et al., "The Role of Adaptive Optimizers for Honest Private Hyperparameter Selection", AAAI 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from clipwise import validate
from clipwise.types import BadArgument


class AdamWOSM(Optimizer):
    """`noise_std` is sigma C / B: the std of the noise on the mean gradient, a public number."""

    def __init__(self, params: Iterable[nn.Parameter], *, noise_std: float, alpha: float = 1e-3, beta: float = 0.9):
        validate.positive("alpha", alpha)
        validate.non_negative("noise_std", noise_std)
        if not 0 <= beta < 1:
            raise BadArgument(f"beta={beta!r} must lie in [0, 1); give a momentum such as 0.9")
        super().__init__(params, {"lr": learning_rate(noise_std, alpha), "beta": beta})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"], state["momentum"] = 0, torch.zeros_like(p)
                state["step"] += 1
                state["momentum"].lerp_(p.grad, 1 - group["beta"])
                p.add_(state["momentum"], alpha=-group["lr"] / (1 - group["beta"] ** state["step"]))
        return value


def learning_rate(noise_std: float, alpha: float) -> float:
    return alpha / (noise_std + 1e-8)
