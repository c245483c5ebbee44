"""Runs the trials of a study, several at once, each in a process of its own, and remembers every one that is done.

`results.jsonl` gets a line the moment a trial is finished (appended and fsynced): a study that is killed goes on from
there. A trial that was under way goes on from its last checkpoint; where there is none, it is run again: it is seeded, so
that both end as the same run. One that had ended, and was not yet written down, is. Failures are remembered in `failures.jsonl` and tried again the next time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from clipwise import __version__, validate
from clipwise.accounting import LedgerError
from clipwise.lab.processes import Ended
from clipwise.lab.results import append_line, only_one, read_results
from clipwise.lab.study.definition import Study
from clipwise.lab.study.shared import shared_plan
from clipwise.lab.study.trial import Trial
from clipwise.lab.tuning.executors import forks, get_executor
from clipwise.lab.tuning.share import one_of
from clipwise.training.folder import RunFolder


@dataclass(frozen=True)
class Outcome:
    """A trial that has ended: its line of results, or why it failed."""

    trial: Trial
    line: Mapping[str, Any] | None
    error: str | None
    seconds: float


class Watcher:
    """Hears how a study goes; this one does not listen. `began` is called from other threads."""

    def start(self, done: Sequence[Mapping[str, Any]]) -> None:
        """Before the first run, with the lines of those that were done before."""

    def began(self, trial: Trial) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...


def run_study(
    study: Study, folder: Path, *, jobs: int, watcher: Watcher | None = None, executor: str = "local"
) -> tuple[list[dict[str, Any]], list[Outcome]]:
    """Run what is missing. Returns the lines of all finished trials of this study, and the failures of this call. With the
    `executor` "ray" trials are tasks of a Ray cluster, each one process on one core."""
    validate.count("jobs", jobs)
    execute = get_executor(executor)
    if executor == "local":
        execute = forks  # every trial has a seed
    folder = folder.resolve()  # a worker may stand in another folder
    watcher = watcher or Watcher()
    folder.mkdir(parents=True, exist_ok=True)
    with only_one(folder, "study"):
        wanted = {trial.id: trial for trial in study.trials}
        done = {line["id"]: line for line in read_results(folder / "results.jsonl") if line["id"] in wanted}
        watcher.start([done[id_] for id_ in wanted if id_ in done])
        missing = [trial for id_, trial in wanted.items() if id_ not in done]
        failures = []
        for outcome in _side_by_side(missing, folder, partial(execute, jobs=jobs), watcher):
            if outcome.line is None:
                failures.append(outcome)
                append_line(folder / "failures.jsonl", {"id": outcome.trial.id, "error": outcome.error})
            else:
                done[outcome.trial.id] = dict(outcome.line)
                append_line(folder / "results.jsonl", outcome.line)
            watcher.ended(outcome)
    return [done[id_] for id_ in wanted if id_ in done], failures


def accuracy_so_far(folder: Path, trial: Trial) -> tuple[int, float] | None:
    """The last epoch that a run under way has ended, and its accuracy on test data."""
    try:
        line = json.loads((_run_folder(trial, folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        return int(line["epoch"]), float(line["accuracy"])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None  # no epoch has ended yet, or there is no test data


def _side_by_side(
    trials: list[Trial], folder: Path, execute: Callable[..., Iterator[tuple[Trial, Ended]]], watcher: Watcher
) -> Iterator[Outcome]:
    ended_before = {trial.id: result for trial in trials if (result := _result(_run_folder(trial, folder))) is not None}
    for trial in trials:
        if trial.id in ended_before:
            watcher.began(trial)
            yield _outcome(trial, ended_before[trial.id], 0.0)
    trials = [trial for trial in trials if trial.id not in ended_before]

    def command(trial: Trial) -> list[str]:
        watcher.began(trial)
        return _command(trial, folder)

    for trial, ended in execute(trials, command):
        if ended.result is None:
            yield Outcome(trial, None, ended.error, ended.seconds)
        else:
            _config_file(trial, folder).unlink(missing_ok=True)  # the run folder has its own
            yield _outcome(trial, ended.result, ended.seconds)


def _command(trial: Trial, folder: Path) -> list[str]:
    run = _run_folder(trial, folder)
    if _can_go_on(run):
        return ["clipwise.cli", "resume", str(run), "--json"]
    if run.exists():
        shutil.rmtree(run)  # it has no line of results, so it never ended
    config = _config_file(trial, folder)
    config.parent.mkdir(exist_ok=True)
    asked = trial.config if trial.share is None else one_of(shared_plan(trial))
    config.write_text(asked.to_toml(), encoding="utf-8")
    return ["clipwise.cli", "train", "--config", str(config), "--out", str(run), "--json"]


def _result(run: Path) -> dict[str, Any] | None:
    """Of a run that ended well."""
    from clipwise.training.unfinished import ended

    try:
        return json.loads((run / "result.json").read_text(encoding="utf-8")) if ended(RunFolder(run)) else None
    except (LedgerError, OSError, ValueError):
        return None


def _can_go_on(run: Path) -> bool:
    """Whether it has a whole checkpoint, of this version: another one need not end as the same run."""
    from clipwise.checkpoint import CheckpointCorrupt, Checkpoints

    try:
        kept = Checkpoints(run / "checkpoints").newest()
    except CheckpointCorrupt:
        return False
    return kept is not None and kept.facts["run"].get("clipwise") == __version__


def _run_folder(trial: Trial, folder: Path) -> Path:
    return folder / "runs" / trial.id


def _config_file(trial: Trial, folder: Path) -> Path:
    return folder / "runs" / f"{trial.id}.toml"


def _outcome(trial: Trial, result: Mapping[str, Any], seconds: float) -> Outcome:
    line = _line(trial, result, seconds)
    if trial.share is None:
        return Outcome(trial, line, None, seconds)
    plan = shared_plan(trial)
    if not result["epsilon"] <= plan.epsilon_per_run * (1 + 1e-6):
        error = (
            f"its ledger has epsilon {result['epsilon']}, and the search was planned with {plan.epsilon_per_run} a run"
        )
        return Outcome(trial, None, error, seconds)
    spent = {"epsilon": plan.epsilon_total, "epsilon_of_run": result["epsilon"], "tuning": plan.to_dict()}
    return Outcome(trial, line | spent, None, seconds)


def _line(trial: Trial, result: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    options = trial.config.model_dump(
        include={"schedule", "optimizer", "lr", "expected_batch_size", "method_options", "noise_multiplier"},
        by_alias=True,
    )
    return {
        "id": trial.id,
        "variant": trial.variant,
        "target_epsilon": None if trial.config.epsilon == float("inf") else trial.config.epsilon,
        **{f"asked_{name}": value for name, value in options.items()},
        **{name: value for name, value in result.items() if name != "run_dir"},
        "data": Path(result["data"]).name,  # of an own file its name: where it lies is the machine's
        "run": f"runs/{trial.id}",
        "seconds": round(seconds, 1),
        "clipwise": __version__,
    }
