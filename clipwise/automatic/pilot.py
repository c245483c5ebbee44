"""What an automatic run does at each step beside the step itself: the rate of the step, and the average of the weights.

Guarantee: it reads the *released* gradient that is on p.grad when the optimizer steps, the weights and their average, all of which
are post-processing of released values, and public numbers of the plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import SGD, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from clipwise import guards
from clipwise.automatic import rule
from clipwise.automatic.inputs import Seen
from clipwise.optim import WeightAverage
from clipwise.run import Run
from clipwise.types import BadArgument

# Optimizers that divide a gradient by its own size, so that one rate serves them all.
_NORMALISING = (Adam, AdamW, NAdam, RAdam, Adamax, RMSprop)


class Pilot:
    """Sets the rate of an optimizer before each of its steps."""

    def __init__(self, run: Run, optimizer: Optimizer, average: WeightAverage, rate: float, seen: Seen):
        check_optimizer(optimizer)
        self._run, self._optimizer, self._average = run, optimizer, average
        self._rate, self.rise = rate, 0.0
        self._hook = optimizer.register_step_pre_hook(lambda *_: self._set_rate())
        self._concluded, self._seen = False, seen
        run.on_close(self._hook.remove)
        run.on_close(self.conclude)
        self._write(rate)

    def state_dict(self) -> dict[str, Any]:
        return {"rate": self._rate, "rise": self.rise, "inputs": self._seen.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rate, self.rise = float(state["rate"]), float(state["rise"])
        self._seen.load_state_dict(state.get("inputs", {}))

    @torch.no_grad()
    def _set_rate(self) -> None:
        plan, taken = self._run.plan, self._run.state.step  # this step is counted
        if plan.private and plan.steps and taken > rule.AFTER * plan.steps:
            self.rise = rule.next_rise(self.rise, self._downhill(), taken, plan.steps)
        self._write(self._rate * math.exp(self.rise))

    def _write(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate if _normalises(self._optimizer) else self._of_sgd(rate, group)
            if isinstance(self._optimizer, RMSprop):  # a buffer that adds up, as SGD's
                group["lr"] *= 1 - group["momentum"]

    def _of_sgd(self, rate: float, group: Mapping[str, Any]) -> float:
        return rule.sgd_rate(rate, self._noise_std(), group["momentum"])

    def _noise_std(self) -> float:
        """Of the noise on p.grad at this step."""
        run, method = self._run, self._run.plan.method
        std = run.plan.shares(max(0, run.state.step - 1)).gradient * method.l2_bound(run.state.method)
        return std / method.unit(run.state.method) / run.plan.expected_batch_size

    def signal(self) -> float | None:
        """What moved the weights beside the noise, over the noise, as energies over the whole run: the mean square of released gradients
        that Adam keeps, over the known one of their noise, less 1, times the steps. None before the first step, and of an
        optimizer that keeps none."""
        squares = numbers = 0.0
        for group in self._optimizer.param_groups:
            beta = group["betas"][1] if isinstance(self._optimizer, Adam) else 0.0
            for state in (self._optimizer.state[p] for p in group["params"]):
                if "exp_avg_sq" in state and beta:
                    kept = state["exp_avg_sq"]
                    squares += float(kept.sum()) / (1 - beta ** float(state["step"]))
                    numbers += kept.numel()
        return max(0.0, squares / (numbers * self._noise_std() ** 2) - 1) * self._run.state.step if numbers else None

    def conclude(self) -> None:
        """The weights that are released take inputs as they are. Of a run that took all of its steps, say once what held it back: from
        released and public values alone."""
        self._seen.fold()
        plan, signal = self._run.plan, self.signal()
        if (
            plan.private
            and plan.steps
            and self._run.state.step >= plan.steps
            and signal is not None
            and not self._concluded
        ):
            self._run.automatic.append(rule.limited_by(signal, self.rise))
            self._concluded = True

    def _downhill(self) -> float:
        """<released gradient, weights - average> over the deviation that its noise alone would have."""
        along = length = 0.0
        for p, away in zip(self._average.weights, self._average.away(), strict=True):
            if p.grad is not None:
                along += float((p.grad * away).sum())
                length += float(away.square().sum())
        return along / (math.sqrt(length) * self._noise_std()) if length > 0 else 0.0


def adam(parameters: Any, rate: float = rule.PLAIN_RATE) -> Adam:
    """The optimizer of an automatic run; the pilot sets its rate."""
    return Adam(guards.trained(parameters), lr=rate, betas=rule.BETAS, eps=rule.ADAM_EPS)


def check_optimizer(optimizer: Optimizer) -> None:
    if not isinstance(optimizer, (*_NORMALISING, SGD)):
        known = ", ".join(kind.__name__ for kind in (*_NORMALISING, SGD))
        raise BadArgument(
            f"lr='auto' with optimizer={type(optimizer).__name__}: it is not known how its rate follows from the noise; use one of "
            f"{known}, or set the rate yourself"
        )


def _normalises(optimizer: Optimizer) -> bool:
    return isinstance(optimizer, _NORMALISING)
