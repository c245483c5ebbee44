"""A run's public and released values as TensorBoard events: what metrics.jsonl and path.jsonl hold, and nothing else.

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


class EventLog:
    """Writes event files to a folder. `fit` takes its two functions: `fit(..., on_step=log.step, on_epoch=log.epoch)`."""

    def __init__(self, folder: str | Path):
        require_tensorboard()
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadArgument(
                f"tensorboard={str(folder)!r} exists already, and two runs in one folder would be drawn as one; name another"
            )
        self._folder, self._began = folder, time.time()
        self._writer: Any = None  # made with the first point: a run that never starts leaves nothing behind

    def step(self, values: Mapping[str, Any], _planned: int = 0) -> None:
        """The values of a step, as `on_step` gives them; epsilon and test figures come once an epoch."""
        self._add(values, values["step"])

    def epoch(self, values: Mapping[str, Any]) -> None:
        self._add(
            {name: values[name] for name in ("epsilon", "accuracy", "test_loss") if name in values}, values["step"]
        )
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _add(self, values: Mapping[str, Any], step: int) -> None:
        for name, value in values.items():
            tag = TAGS.get(name, f"method/{name}")
            entries = enumerate(value) if isinstance(value, list) else [(None, value)]
            for place, entry in entries:
                if tag is not None and (figure := finite_or_none(entry)) is not None:
                    self._write(tag if place is None else f"{tag}/{place}", figure, step)

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
