"""A run's public and released values for TensorBoard, MLflow or Weights & Biases: what metrics.jsonl and path.jsonl hold, and nothing
else.

Tags: `epsilon`, `noise_multiplier`, `lr`, `test/accuracy`, `test/loss`, and `method/NAME` for each number of
the method's state (its threshold, ...), which depends on the data only through released values. No loss, gradient or
batch of training records reaches this file.

Every point carries the time at which the run began: how long a step took would tell how many records its batch had.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clipwise.types import BadArgument
from clipwise.validate import finite_or_none

# The name of a value in a line of metrics, and its tag; positions have none.
TAGS: Mapping[str, str | None] = {
    "step": None,
    "epoch": None,
    "epsilon": "epsilon",
    "noise_multiplier": "noise_multiplier",
    "lr": "lr",
    "accuracy": "test/accuracy",
    "test_loss": "test/loss",
}


def require_tensorboard() -> None:
    """Refuse before anything is touched, where the package is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise BadArgument(
            "tensorboard: the package is not installed; run pip install 'clipwise[tensorboard]', or leave the option out"
        )


def require(name: str) -> None:
    """The same for `log_to`."""
    if importlib.util.find_spec(name) is None:
        raise BadArgument(
            f"log_to={name!r}: the package is not installed; run pip install 'clipwise[{name}]', or leave the option out"
        )


class Log:
    """Hears steps and epochs: `fit(..., on_step=log.step, on_epoch=log.epoch)`, then `log.close()`. A kind of log writes one figure."""

    def step(self, values: Mapping[str, Any], _planned: int = 0) -> None:
        """The values of a step, as `on_step` gives them; epsilon and test figures come once an epoch."""
        self._add(values, values["step"])

    def epoch(self, values: Mapping[str, Any]) -> None:
        self._add(
            {name: values[name] for name in ("epsilon", "accuracy", "test_loss") if name in values}, values["step"]
        )

    def close(self) -> None:
        raise NotImplementedError

    def _add(self, values: Mapping[str, Any], step: int) -> None:
        for name, value in values.items():
            tag = TAGS.get(name, f"method/{name}")
            entries = enumerate(value) if isinstance(value, list) else [(None, value)]
            for place, entry in entries:
                if tag is not None and (figure := finite_or_none(entry)) is not None:
                    self._write(tag if place is None else f"{tag}/{place}", figure, step)

    def _write(self, tag: str, figure: float, step: int) -> None:
        raise NotImplementedError


class EventLog(Log):
    """Writes event files of TensorBoard's to a folder."""

    def __init__(self, folder: str | Path):
        require_tensorboard()
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadArgument(
                f"tensorboard={str(folder)!r} exists already, and two runs in one folder would be drawn as one; name another"
            )
        self._folder, self._began = folder, time.time()
        self._writer: Any = None  # made with the first point: a run that never starts leaves nothing behind

    def epoch(self, values: Mapping[str, Any]) -> None:
        super().epoch(values)
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _write(self, tag: str, figure: float, step: int) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            try:
                self._writer = SummaryWriter(str(self._folder))
            except OSError as error:
                raise BadArgument(
                    f"tensorboard={str(self._folder)!r} cannot be written ({error}); name a folder that you may write to"
                ) from error
        self._writer.add_scalar(tag, figure, global_step=step, walltime=self._began)


class MLflowLog(Log):
    """A run of MLflow's, where its own settings (MLFLOW_TRACKING_URI, ...) say."""

    def __init__(self, name: str):
        require("mlflow")
        self._name, self._began, self._run = name, int(time.time() * 1000), ""
        self._client: Any = None

    def close(self) -> None:
        if self._client is not None:
            self._client.set_terminated(self._run)

    def _write(self, tag: str, figure: float, step: int) -> None:
        if self._client is None:
            import mlflow

            self._client = mlflow.MlflowClient()
            found = self._client.get_experiment_by_name("clipwise")
            experiment = self._client.create_experiment("clipwise") if found is None else found.experiment_id
            self._run = self._client.create_run(experiment, run_name=self._name).info.run_id
        self._client.log_metric(self._run, tag, figure, timestamp=self._began, step=step)


class WandbLog(Log):
    """A run of Weights & Biases', sent when all is over: it puts the time beside each point itself. Nothing of the machine is sent."""

    def __init__(self, name: str):
        require("wandb")
        self._name, self._points = name, dict[int, dict[str, float]]()

    def close(self) -> None:
        if not self._points:
            return
        import wandb

        settings = wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True)
        with wandb.init(project="clipwise", name=self._name, settings=settings) as run:
            for step, figures in sorted(self._points.items()):
                run.log(figures, step=step)

    def _write(self, tag: str, figure: float, step: int) -> None:
        self._points.setdefault(step, {})[tag] = figure


LOGS = {"mlflow": MLflowLog, "wandb": WandbLog}
