"""How a study goes, while it goes: a table that fills up on a terminal, a line a run in a log file."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from clipwise.lab.study import Outcome, Study, Trial, Watcher, accuracy_so_far
from clipwise.lab.study.table import heading


class Estimate:
    """The time that is left, from how long runs took, those of earlier calls among them.

    A run is expected to take what runs on its data and model took on average, or all runs where there are none.
    """

    def __init__(self, jobs: int):
        self._jobs = jobs
        self._seconds: dict[tuple[str, str | None], list[float]] = {}

    def took(self, trial: Trial, seconds: float) -> None:
        self._seconds.setdefault(_kind(trial), []).append(seconds)

    def left(self, waiting: Sequence[Trial], running: Sequence[tuple[Trial, float]]) -> float | None:
        """Seconds; `running` says since when, too. None before any run has ended."""
        if not self._seconds:
            return None
        due = [self._expected(trial) for trial in waiting]
        due += [max(0.0, self._expected(trial) - age) for trial, age in running]
        return max(sum(due) / min(self._jobs, max(1, len(due))), max(due, default=0.0))

    def _expected(self, trial: Trial) -> float:
        everything = [seconds for some in self._seconds.values() for seconds in some]
        return statistics.fmean(self._seconds.get(_kind(trial), everything))


class Progress(Watcher):
    """What has ended, what runs, what waits; shown as it changes."""

    def __init__(self, study: Study, folder: Path, jobs: int, console: Console):
        self._study, self._folder, self._jobs, self._console = study, folder, jobs, console
        self._trials = {trial.id: trial for trial in study.trials}
        self._done: dict[str, Mapping[str, Any]] = {}
        self._failed: set[str] = set()
        self._running: dict[str, float] = {}  # id -> when it began
        self._estimate = Estimate(jobs)
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator[Progress]:
        """With a terminal, the table is there while this lasts; without one, there are only lines."""
        if not self._console.is_terminal:
            yield self
            return
        with Live(
            console=self._console, get_renderable=self.render, refresh_per_second=2, transient=True
        ) as self._live:
            yield self

    def start(self, done: Sequence[Mapping[str, Any]]) -> None:
        for line in done:
            self._done[line["id"]] = line
            if isinstance(line.get("seconds"), int | float):
                self._estimate.took(self._trials[line["id"]], line["seconds"])
        words = f"{len(self._trials)} runs, {len(done)} done before, {self._jobs} at once"
        self._say(f"{self._study.title or self._study.name}: {words}")

    def began(self, trial: Trial) -> None:
        with self._lock:
            self._running[trial.id] = time.monotonic()

    def ended(self, outcome: Outcome) -> None:
        trial, line = outcome.trial, outcome.line
        with self._lock:
            self._running.pop(trial.id, None)
            if line is None:
                self._failed.add(trial.id)
            else:
                self._done[trial.id] = line
                self._estimate.took(trial, outcome.seconds)
        if line is None or self._live is None:
            how = f"failed: {outcome.error}" if line is None else _figure(line)
            count = len(self._done) + len(self._failed)
            self._say(
                f"[{count}/{len(self._trials)}] {trial.variant}, {heading(_stated(trial), self._study.keyed)}, seed {trial.config.seed}: "
                f"{how} ({outcome.seconds:.0f} s; {self.left()})"
            )

    def left(self) -> str:
        with self._lock:
            now = time.monotonic()
            running = [(self._trials[id_], now - began) for id_, began in self._running.items()]
            ended = self._done.keys() | self._failed | self._running.keys()
            waiting = [trial for id_, trial in self._trials.items() if id_ not in ended]
        if not (running or waiting):
            return "all done"
        seconds = self._estimate.left(waiting, running)
        return "time left not known yet" if seconds is None else f"about {_minutes(seconds)} left"

    def render(self) -> Group:
        """The study's table as far as it is known, and a line below it."""
        kinds = list(dict.fromkeys(map(_kind, self._trials.values())))
        tables = [self._table(kind) for kind in kinds]
        with self._lock:
            done, running, failed = len(self._done), len(self._running), len(self._failed)
        counts = [f"{done} done", f"{running} running", f"{len(self._trials) - done - running - failed} waiting"]
        if failed:
            counts.append(f"{failed} failed")
        below = f"{', '.join(counts)} · {_minutes(time.monotonic() - self._began)} so far · {self.left()}"
        return Group(*tables, Text(below))

    def _table(self, kind: tuple[str, str | None]) -> Table:
        here = [trial for trial in self._trials.values() if _kind(trial) == kind]
        epsilons = sorted({_stated(trial) for trial in here}, key=lambda e: float("inf") if e is None else e)
        title = kind[0] if kind[1] is None else f"{kind[0]}, {kind[1]}"
        table = Table(title=title, title_justify="left")
        table.add_column("method", no_wrap=True)
        for epsilon in epsilons:
            table.add_column(heading(epsilon, self._study.keyed), justify="right", no_wrap=True)
        for variant in dict.fromkeys(trial.variant for trial in here):
            own = [trial for trial in here if trial.variant == variant]
            table.add_row(variant, *(self._cell([t for t in own if _stated(t) == e]) for e in epsilons))
        return table

    def _cell(self, trials: Sequence[Trial]) -> Text:
        """Mean accuracy of what has ended; what runs, with the accuracy of its last epoch; a dot a run that waits."""
        if not trials:
            return Text("")
        with self._lock:
            lines = [self._done[trial.id] for trial in trials if trial.id in self._done]
            running = [trial for trial in trials if trial.id in self._running]
            failed = sum(trial.id in self._failed for trial in trials)
        known = [line["accuracy"] for line in lines if line["accuracy"] is not None]
        parts = [(f"{100 * statistics.fmean(known):.2f}" if known else "ended", "bold green")] if lines else []
        if lines and len(lines) < len(trials):
            parts.append((f"{len(lines)}/{len(trials)}", "green"))
        for trial in running:
            so_far = accuracy_so_far(self._folder, trial)
            parts.append(("starting" if so_far is None else f"{100 * so_far[1]:.1f} @{so_far[0]}", "yellow"))
        if failed:
            parts.append(("failed" if failed == 1 else f"{failed} failed", "bold red"))
        waiting = len(trials) - len(lines) - len(running) - failed
        if waiting:
            parts.append(("·" * waiting, "dim"))
        return Text(" ").join(Text(text, style) for text, style in parts)

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def _kind(trial: Trial) -> tuple[str, str | None]:
    return trial.config.data, trial.config.model


def _stated(trial: Trial) -> float | None:
    """Its epsilon or its sigma_0; None without privacy."""
    epsilon = trial.config.epsilon
    return None if epsilon == float("inf") else trial.config.noise_multiplier if epsilon is None else epsilon


def _figure(line: Mapping[str, Any]) -> str:
    if line["accuracy"] is not None:
        return f"{line['accuracy']:.2%}"
    return f"squared error {line['test_loss']:.4f}" if line.get("test_loss") is not None else "no test data"


def _minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
