"""What a run tells while it trains, kept in its folder: a line an epoch, and the path of thresholds, noise and rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clipwise.training.folder import RunFolder, finite
from clipwise.training.tensorboard import Log

PATH_POINTS = 1000  # of path.jsonl, at most: more than a chart has dots


class Record:
    """Hears each step and epoch, passes them on, and keeps them; a checkpoint has its state. A full disk does not end a run:
    the lines are written again after the next epoch, and with the results."""

    def __init__(
        self,
        folder: RunFolder,
        logs: Sequence[Log],
        on_step: Callable[[dict[str, Any], int], None],
        on_epoch: Callable[[dict[str, Any]], None],
        notice: Callable[[str], None],
    ):
        self._folder, self._logs, self._notice = folder, logs, notice
        self._on_step, self._on_epoch = on_step, on_epoch
        self._lines: list[dict[str, Any]] = []
        self._path: list[dict[str, Any]] = []

    def step(self, values: dict[str, Any], planned: int) -> None:
        if values["step"] % math.ceil(planned / PATH_POINTS) == 0:
            self._path.append(finite(values))
            for log in self._logs:
                log.step(values)
        self._on_step(values, planned)

    def epoch(self, line: dict[str, Any]) -> None:
        self._lines.append(finite(line))
        try:
            self.write(self._folder)
        except OSError as error:
            self._notice(f"{self._folder.path} cannot be written ({error}); training goes on")
        for log in self._logs:
            log.epoch(line)
        self._on_epoch(line)

    def write(self, folder: RunFolder) -> None:
        folder.write_lines("metrics.jsonl", self._lines)
        folder.write_lines("path.jsonl", self._path)

    def state_dict(self) -> dict[str, Any]:
        return {"lines": self._lines, "path": self._path}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._lines[:], self._path[:] = state["lines"], state["path"]
