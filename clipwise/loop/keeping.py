"""When a run is kept: at its start, every few minutes or steps, and when it is asked to stop.

A checkpoint that cannot be written (a full disk) does not end the run: it is said once, a place elsewhere is tried, and
the next one is tried again.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clipwise import validate
from clipwise.run import Run
from clipwise.types import ClipwiseError

MINUTES = 5.0  # between checkpoints: what a kill may cost, against a second or so to write a large model


class Stopped(ClipwiseError, RuntimeError):
    """The run was asked to stop; its state was kept, and it can go on."""


@dataclass(frozen=True)
class Keeping:
    """Where and how often the state of a run is kept. `stop` is asked after each step: a sentence ends the run."""

    folder: str | Path
    every_steps: int | None = None
    every_minutes: float = MINUTES
    rescue: str | Path | None = None  # where to, if the folder cannot be written; the system's temporary folder
    stop: Callable[[], str | None] = lambda: None
    notify: Callable[[str], None] = warnings.warn

    def __post_init__(self) -> None:
        if self.every_steps is not None:
            validate.count("every_steps", self.every_steps)
        validate.positive("every_minutes", self.every_minutes)


class Keeper:
    """A `Keeping` at work on one run."""

    def __init__(self, keeping: Keeping, run: Run):
        self._keeping, self._run = keeping, run
        self._kept_at = time.monotonic()
        self._kept_step = -1
        self._told = self._checked = False

    def begin(self) -> None:
        """The state before the first step, so that a run that dies early goes on as well. A run that goes on has it where it
        came from: to write it again would mean to remove the very file that it needs if it dies meanwhile."""
        if not self._run.resumed:
            self._keep()

    def end(self) -> None:
        """The state after the last step: a run that dies while its results are made redoes no step."""
        self._keep()

    def after_step(self) -> None:
        if not self._checked:  # an optimizer has a state from its first step on
            self._run.refuse_unkeepable()
            self._checked = True
        wants = self._keeping.stop()
        if self._run.world.any(wants is not None):  # all stop after the same step, though one alone was asked
            self._keep()
            raise Stopped(wants or "another process of this run was asked to stop; what was trained is kept")
        steps = self._keeping.every_steps
        by_steps = steps is not None and self._run.state.step % steps == 0
        if by_steps or time.monotonic() - self._kept_at >= 60 * self._keeping.every_minutes:
            self._keep()

    def _keep(self) -> None:
        step = self._run.state.step
        if step == self._kept_step:
            return
        try:
            self._run.save(self._keeping.folder)
        except OSError as error:
            self._elsewhere(error)
        self._kept_at, self._kept_step = time.monotonic(), step

    def _elsewhere(self, error: OSError) -> None:
        rescue = Path(self._keeping.rescue or tempfile.gettempdir()) / f"clipwise-rescue-{self._run.ledger.run_id[:12]}"
        try:
            self._run.save(rescue)
            where = f"it was kept in {rescue} instead"
        except OSError as second:
            where = f"nor could {rescue} ({second}); the run goes on without"
        if not self._told:
            self._told = True
            self._keeping.notify(
                f"clipwise: a checkpoint could not be written to {self._keeping.folder} ({error}); {where}"
            )


class NoKeeper:
    def begin(self) -> None: ...

    def after_step(self) -> None: ...

    def end(self) -> None: ...


def make_keeper(keeping: str | Path | Keeping | None, run: Run) -> Keeper | NoKeeper:
    if keeping is None:
        return NoKeeper()
    return Keeper(keeping if isinstance(keeping, Keeping) else Keeping(keeping), run)
