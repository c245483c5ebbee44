"""An average of the weights over the last steps: free post-processing of a private run, which takes much of the noise out
of the model that is released.

    average <- d * average + (1 - d) * weights,  d = min(decay, (1 + t) / (10 + t)) after step t

so that the first weights, which are worth nothing, are soon forgotten. Another rule (`weight`) may say how far the average
moves at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clipwise.types import BadArgument


def check_decay(decay: float) -> float:
    if not 0 <= decay < 1:
        raise BadArgument(
            f"average_weights={decay!r} must lie in [0, 1); give a decay such as 0.99, or 0 for no average"
        )
    return float(decay)


class WeightAverage:
    """Watches the trainable parameters; with a decay of 0 the average is the weights themselves."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], decay: float = 0.0, *, weight: Callable[[int], float] | None = None
    ):
        """`weight(steps taken)` in 0..1, in the place of a decay: how far the average moves towards the weights."""
        self._decay, self._weight = check_decay(decay), weight
        averaged = bool(decay) or weight is not None
        self.weights: list[Tensor] = [p for p in parameters if p.requires_grad] if averaged else []
        self._average = [p.detach().clone() for p in self.weights]
        self._steps = 0

    @torch.no_grad()
    def update(self) -> None:
        if self.weights:
            self._steps += 1
            torch._foreach_lerp_(self._average, self.weights, self._share())

    def _share(self) -> float:
        if self._weight is not None:
            return self._weight(self._steps)
        return 1 - min(self._decay, self._steps / (9 + self._steps))

    def away(self) -> list[Tensor]:
        """Weights minus average, of each parameter: empty where nothing is averaged."""
        return [p.detach() - mean for p, mean in zip(self.weights, self._average, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "average": list(self._average)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for mean, saved in zip(self._average, state["average"], strict=True):
            mean.copy_(saved)
        self._steps = int(state["steps"])

    @torch.no_grad()
    def _swap(self) -> None:
        for p, mean in zip(self.weights, self._average, strict=True):
            last = p.detach().clone()
            p.copy_(mean)
            mean.copy_(last)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the averaged weights meanwhile."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def finish(self) -> None:
        """The model has the averaged weights from now on."""
        self._swap()
        self.weights, self._average = [], []
