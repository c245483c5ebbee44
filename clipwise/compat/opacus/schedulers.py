"""Noise and clipping norms that change from epoch to epoch (`opacus.schedulers`).

A scheduler sets `optimizer.noise_multiplier` or `optimizer.max_grad_norm` between two steps; each step is charged with the
noise that it draws. The statement says that the values were the script's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch.optim import Optimizer

from clipwise.types import BadArgument

__all__ = ["ExponentialGradClip", "ExponentialNoise", "LambdaGradClip", "LambdaNoise", "StepGradClip", "StepNoise"]


class _Scheduler:
    """A value of the optimizer, times a factor an epoch; `step()` moves to the next epoch."""

    sets: ClassVar[str]

    def __init__(self, optimizer: Optimizer, *, last_epoch: int = -1):
        if not hasattr(optimizer, self.sets):
            raise BadArgument(
                f"optimizer={type(optimizer).__name__} has no {self.sets}; give the optimizer that make_private returned"
            )
        self.optimizer, self.last_epoch = optimizer, last_epoch
        self.step()

    def state_dict(self) -> dict[str, Any]:
        """Without functions, which are the script's own."""
        return {name: value for name, value in self.__dict__.items() if isinstance(value, int | float)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.__dict__.update(state_dict)

    def step(self) -> None:
        self.last_epoch += 1
        setattr(self.optimizer, self.sets, self._value(getattr(self.optimizer, self.sets)))

    def _value(self, current: float) -> float:
        raise NotImplementedError


class _Exponential(_Scheduler):
    def __init__(self, optimizer: Optimizer, *, gamma: float, last_epoch: int = -1):
        self.gamma = gamma
        super().__init__(optimizer, last_epoch=last_epoch)

    def _value(self, current: float) -> float:
        return current if self.last_epoch == 0 else current * self.gamma


class _Lambda(_Scheduler):
    def __init__(self, optimizer: Optimizer, *, function: Callable[[int], float], last_epoch: int = -1):
        self.base = float(getattr(optimizer, self.sets, 0.0))
        self.function = function
        super().__init__(optimizer, last_epoch=last_epoch)

    def _value(self, current: float) -> float:  # noqa: ARG002
        return self.base * self.function(self.last_epoch)


class _Step(_Scheduler):
    def __init__(self, optimizer: Optimizer, *, step_size: int, gamma: float, last_epoch: int = -1):
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch=last_epoch)

    def _value(self, current: float) -> float:
        changes = self.last_epoch > 0 and self.last_epoch % self.step_size == 0
        return current * self.gamma if changes else current


class ExponentialNoise(_Exponential):
    sets = "noise_multiplier"


class LambdaNoise(_Lambda):
    sets = "noise_multiplier"

    def __init__(self, optimizer: Optimizer, *, noise_lambda: Callable[[int], float], last_epoch: int = -1):
        super().__init__(optimizer, function=noise_lambda, last_epoch=last_epoch)


class StepNoise(_Step):
    sets = "noise_multiplier"


class ExponentialGradClip(_Exponential):
    sets = "max_grad_norm"


class LambdaGradClip(_Lambda):
    sets = "max_grad_norm"

    def __init__(self, optimizer: Optimizer, *, scheduler_function: Callable[[int], float], last_epoch: int = -1):
        super().__init__(optimizer, function=scheduler_function, last_epoch=last_epoch)


class StepGradClip(_Step):
    sets = "max_grad_norm"
