"""AdamWOSM: Adam without a second moment, whose learning rate is set by the noise instead of by tuning.

    rate = alpha / (sigma C / B + 1e-8)       m <- beta m + (1 - beta) g       theta <- theta - rate / (1 - beta^t) m

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
from clipwise.types import BadArgument, LoopMisuse


class AdamWOSM(Optimizer):
    """`lr` is alpha. The private step writes the noise's std, sigma C / B, into each group before every step."""

    def __init__(self, params: Iterable[nn.Parameter], *, lr: float = 1e-3, beta: float = 0.9):
        validate.positive("lr", lr)
        if not 0 <= beta < 1:
            raise BadArgument(f"beta={beta!r} must lie in [0, 1); give a momentum such as 0.9")
        super().__init__(params, {"lr": lr, "beta": beta, "noise_std": None})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        for group in self.param_groups:
            if group["noise_std"] is None:
                raise LoopMisuse("AdamWOSM sets its rate by the noise of a private step; attach it first")
            rate = group["lr"] / (group["noise_std"] + 1e-8)
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"], state["momentum"] = 0, torch.zeros_like(p)
                state["step"] += 1
                state["momentum"].lerp_(p.grad, 1 - group["beta"])
                p.add_(state["momentum"], alpha=-rate / (1 - group["beta"] ** state["step"]))
        return value
