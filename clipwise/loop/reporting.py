"""The history of a run as the loop goes: public values, released values, and the figure on the public test set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from clipwise.loop.evaluation import accuracy, device_of, mean_loss
from clipwise.losses import Loss
from clipwise.optim import WeightAverage


class Reporter:
    """Collects the history: public values, released values and the figure on the test set."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        test: Dataset | None,
        loss: Any,
        on_epoch: Callable[[dict[str, Any]], None] | None,
        on_step: Callable[[dict[str, Any], int], None] | None,
        average: WeightAverage,
    ):
        self._average = average
        self.history: list[dict[str, Any]] = []
        self.accuracy: float | None = None
        self.loss: float | None = None
        self.higher_is_better = not isinstance(loss, Loss) or loss.wants_classes  # accuracy, or a loss
        self._compare = loss
        self._model, self._optimizer, self._test = model, optimizer, test
        self._on_epoch, self._on_step = on_epoch, on_step

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history, "accuracy": self.accuracy, "loss": self.loss}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.history[:] = state["history"]
        self.accuracy, self.loss = state["accuracy"], state["loss"]

    @property
    def figure(self) -> float | None:
        return self.accuracy if self.higher_is_better else self.loss

    def step(self, done: int, planned: int, **values: Any) -> None:
        if self._on_step:
            self._on_step({"step": done, "lr": self._optimizer.param_groups[0]["lr"], **values}, planned)

    def epoch(self, epoch: int, step: int, **values: Any) -> None:
        with self._average.in_place():
            if self._test is not None and self.higher_is_better:
                self.accuracy = accuracy(self._model, self._test, device_of(self._model))
            elif self._test is not None:
                self.loss = mean_loss(self._model, self._test, self._compare, device_of(self._model))
        line = {
            "epoch": epoch,
            "step": step,
            "accuracy": self.accuracy,
            **({} if self.loss is None else {"test_loss": self.loss}),
            "lr": self._optimizer.param_groups[0]["lr"],
            **values,
        }
        self.history.append(line)
        if self._on_epoch:
            self._on_epoch(line)
