"""Runs a comparison: one timing process a model with all methods in it, then one memory process for each method."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from clipwise import __version__, validate
from clipwise.devices import described
from clipwise.lab.bench import worker
from clipwise.lab.bench.machine import machine, version
from clipwise.lab.bench.peers import FAMILIES
from clipwise.lab.bench.release import NAME as RELEASE
from clipwise.lab.bench.workloads import Workload

OURS = worker.OURS
TESTED_OPACUS = "1.6.0"
BUSY = 0.1  # of the processors taken by others: above it, figures deserve a warning


@dataclass(frozen=True)
class Effort:
    """How long to measure. Without `rounds`, as many rounds as fit into `seconds` a model; where others kept the machine
    busy meanwhile, again, up to `attempts` times."""

    rounds: int | None = None
    seconds: float = 60.0
    most: int = 151
    least: int = 4
    attempts: int = 3
    release: str | None = None  # a checkout of an earlier one, whose step is timed in the same rounds
    cpu_time: bool = False  # of the process, for one thread on a machine that others keep busy; else by the wall


QUICK = Effort(seconds=4.0, most=9, least=3, attempts=1)


@dataclass
class Comparison:
    rows: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


Progress = Callable[[str, float], None]  # what runs now, share of the whole that is done


def methods_against(against: Iterable[str]) -> tuple[list[str], list[str]]:
    """The methods to run, the plain step always first, and a notice for each that cannot be."""
    asked = dict.fromkeys(validate.choice("against", name, FAMILIES) for name in against)
    notices = []
    if "opacus" in asked and importlib.util.find_spec("opacus") is None:
        del asked["opacus"]
        notices.append(
            "Opacus is not installed: only the plain step is compared. pip install 'clipwise[bench]' brings it."
        )
    elif "opacus" in asked and (found := importlib.metadata.version("opacus")) != TESTED_OPACUS:
        notices.append(f"Opacus {found} is installed; the comparison was written for {TESTED_OPACUS}.")
    peers = [method for name in asked for method in FAMILIES[name] if method != "plain"]
    return ["plain", OURS, *peers], notices


def compare(
    workloads: Sequence[Workload],
    methods: Sequence[str],
    effort: Effort,
    progress: Progress,
    on_model: Callable[[Comparison], None] | None = None,
    begun: Comparison | None = None,
) -> Comparison:
    """All rows. `on_model` gets what there is after each model, so that a long run that is broken off leaves something: given as `begun`,
    its rows are kept, and only the models that it lacks are measured."""
    comparison = begun or Comparison(versions=_versions(methods), machine=_machine(workloads[0].device))
    there = {row["model"] for row in comparison.rows}
    workloads = [workload for workload in workloads if workload.name not in there]
    turns = 1 + len(methods)
    for i, workload in enumerate(workloads):
        compared = [workload.base, *(m for m in methods if m != "plain")]

        def share(turn: float, i: int = i) -> float:
            return (i + turn / turns) / len(workloads)

        def timing(part: float, name: str = workload.name, share: Callable[[float], float] = share) -> None:
            progress(f"{name}: time", share(part))

        timing(0)
        results = _quietest(partial(_timed, workload, compared, effort, timing), effort.attempts)
        for turn, method in enumerate(compared, 1):
            progress(f"{workload.name}: memory of {method}", share(turn))
            if "failed" not in results[method] and method != RELEASE:  # of memory nothing is asked twice
                results[method].update(_memory(workload, method))
        comparison.rows += _rows(workload, results)
        if effort.cpu_time:
            comparison.machine["clock"] = "processor time of one thread"
        elif (others := _others(results)) > BUSY:
            comparison.notices.append(
                f"{workload.name}: other processes took {others:.0%} of the processors while it was timed, in the quietest of "
                f"{effort.attempts} attempts; run again on a quiet machine before trusting its times."
            )
        if on_model:
            on_model(comparison)
    progress("done", 1.0)
    return comparison


def started() -> Comparison:
    """One without rows, of our methods alone, on the host."""
    return Comparison(versions=_versions(()), machine=_machine(torch.device("cpu")))


def clocked(
    workload: Workload, methods: Sequence[str], effort: Effort, environment: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Times alone, of a process with that environment."""
    return _timed(workload, methods, effort, lambda _: None, environment)


def compare_clipping(models: Sequence[str], names: Sequence[str], rounds: int, progress: Progress) -> Comparison:
    """One row for each model and clipping method: its step over that of `fixed`."""
    comparison = started()
    for i, model in enumerate(models):
        spec = {"task": "clipping", "model": model, "names": list(names), "rounds": rounds}

        def show(part: float, i: int = i, model: str = model) -> None:
            progress(model, (i + part) / len(models))

        figures = _work(spec, worker.TIMING_MALLOC, show)
        for name, figure in figures.items():
            met = _met(figure.get("time_ratio"), figure["target"])
            comparison.rows.append({"model": model, "clipping": name, **figure, "met": met})
    progress("done", 1.0)
    return comparison


def _quietest(measure: Callable[[], dict[str, dict[str, Any]]], most: int) -> dict[str, dict[str, Any]]:
    """The measurement that others disturbed least; the first that they hardly did. Chosen without a look at the times."""
    attempts: list[dict[str, dict[str, Any]]] = []
    while not attempts or (_others(attempts[-1]) > BUSY and len(attempts) < most):
        attempts.append(measure())
    return min(attempts, key=_others)


def _others(results: Mapping[str, Mapping[str, Any]]) -> float:
    return results[OURS].get("others") or 0.0


def _timed(
    workload: Workload,
    methods: Sequence[str],
    effort: Effort,
    progress: Callable[[float], None],
    environment: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Figures for each method. Should a peer take the whole process down (out of memory), ours is timed without the
    peers."""
    malloc = {**worker.TIMING_MALLOC, **(environment or {})}
    how_long = {name: value for name, value in vars(effort).items() if name != "attempts"}
    spec = {"task": "time", "model": workload.name, "device": str(workload.device), **how_long}
    own = [m for m in methods if m in (workload.base, OURS)]
    try:
        return _work({**spec, "methods": list(methods)}, malloc, progress)
    except WorkerDied as death:
        failed: dict[str, dict[str, Any]] = {m: {"failed": str(death)} for m in methods}
        if len(own) == len(methods):
            return failed
    try:
        return {**failed, **_work({**spec, "methods": own}, malloc, progress)}
    except WorkerDied as death:
        return {**failed, **{m: {"failed": str(death)} for m in own}}


def _memory(workload: Workload, method: str) -> dict[str, Any]:
    try:
        device = str(workload.device)
        spec = {"task": "memory", "model": workload.name, "method": method, "device": device}
        return _work(spec, worker.MEMORY_MALLOC)
    except WorkerDied as death:
        return {"memory_failed": str(death)}


class WorkerDied(Exception):
    """A worker ended without a result."""


def _work(
    spec: Mapping[str, Any], environment: Mapping[str, str], progress: Callable[[float], None] | None = None
) -> Any:
    command = [sys.executable, "-m", "clipwise.lab.bench.worker", json.dumps(spec)]
    result = None
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **environment}
        )
        try:
            for text in child.stdout or ():
                line = json.loads(text)
                result = line.get("result", result)
                if progress and "total" in line:
                    progress(line["done"] / line["total"])
            code = child.wait()
        finally:
            child.kill()
            child.wait()
        if code == 0 and result is not None:
            return result
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    raise WorkerDied(f"the process ended with code {code}: {lines[-1] if lines else 'no message'}"[:200])


def _rows(workload: Workload, results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a method; ratios are None where a figure is missing, and the row says why."""
    rows = []
    base = results[workload.base].get("memory_mb")
    for method, figures in results.items():
        about = {"model": workload.name, "base": workload.base, "method": method}
        row = {**about, "time_ratio": None, "memory_ratio": None, **figures}
        if base and figures.get("memory_mb") is not None:
            row["memory_ratio"] = figures["memory_mb"] / base
            row["growth_ratio"] = figures["growth_mb"] / max(results[workload.base]["growth_mb"], 1e-3)
        rows.append(row)
    ours = next(row for row in rows if row["method"] == OURS)
    peers = [row["time_ratio"] for row in rows if row["method"] not in (workload.base, OURS, RELEASE)]
    rivals = [ratio for ratio in peers if ratio is not None]
    ours["time_target"], ours["memory_target"] = workload.time_target, workload.memory_target
    ours["time_met"] = _met(ours["time_ratio"], workload.time_target)
    ours["memory_met"] = _met(ours["memory_ratio"], workload.memory_target)
    ours["faster_than_peers"] = ours["time_ratio"] < min(rivals) if rivals and ours["time_ratio"] is not None else None
    return rows


def _met(value: float | None, target: float | None) -> bool | None:
    return None if value is None or target is None else value <= target


def _versions(methods: Sequence[str]) -> dict[str, str]:
    versions = {"clipwise": __version__, "python": platform.python_version()}
    names = ["torch", "cryptography", *(["opacus"] if any(m.startswith("opacus") for m in methods) else [])]
    return {**versions, **{name: version(name) for name in names}}


def _machine(device: torch.device) -> dict[str, Any]:
    load = {"load": os.getloadavg()[0]} if hasattr(os, "getloadavg") else {}
    return {**machine(), "threads": torch.get_num_threads(), "device": described(device), **load}
