"""The child process of one measurement: `python -m clipwise.lab.bench.worker '{"task": "time", ...}'`.

A process of its own, because glibc reads its malloc settings once, when a process starts: for timing, big buffers are
kept for re-use (page faults would otherwise cost more than many a kernel, and not the same for every method); for
memory, they are given back at once. Lines of JSON on stdout: {"done", "total"} as it goes, {"result"} at the end.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from clipwise.devices import wait_for
from clipwise.lab.bench import memory, timing
from clipwise.lab.bench.clipping import time_clipping
from clipwise.lab.bench.peers import METHODS, Peer
from clipwise.lab.bench.release import NAME, Release
from clipwise.lab.bench.workloads import WORKLOADS

OURS = "clipwise"
_LARGE = str(1 << 34)
TIMING_MALLOC = {"MALLOC_MMAP_THRESHOLD_": _LARGE, "MALLOC_TRIM_THRESHOLD_": _LARGE}
MEMORY_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 17), "MALLOC_TRIM_THRESHOLD_": str(1 << 17)}


def time_methods(
    model: str,
    methods: Sequence[str],
    *,
    rounds: int | None,
    seconds: float,
    most: int,
    least: int,
    device: str = "cpu",
    cpu_time: bool = False,
    release: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """Method -> its figures and facts on one model."""
    workload = replace(WORKLOADS[model], device=torch.device(device))
    makers: dict[str, Callable[[], Any]] = {name: partial(METHODS[name], workload) for name in methods if name != NAME}
    if release is not None and NAME in methods:
        makers[NAME] = partial(Release, workload, Path(release), cpu_time=cpu_time)
    clock = time.process_time if cpu_time else partial(_when_done, workload.device)
    times, alive = timing.time_interleaved(
        makers, rounds=rounds, seconds=seconds, most=most, least=least, progress=progress, clock=clock
    )
    if workload.base in times.failed:
        raise RuntimeError(f"the {workload.base} step failed: {times.failed[workload.base]}")
    results = {name: times.summary(name, workload.base) for name in methods}
    if NAME in alive:
        results[NAME]["ours_over_it"] = times.summary(OURS, NAME)["time_ratio"]
    for name, stepper in alive.items():
        if isinstance(stepper, Peer | Release):
            results[name].update(stepper.facts())
            stepper.close()
    return results


def _when_done(device: torch.device) -> float:
    """The time once the device has nothing left to do."""
    wait_for(device)
    return time.perf_counter()


def measure_memory(model: str, method: str, device: str = "cpu") -> dict[str, Any]:
    """The memory figures of one method on one model."""
    workload = replace(WORKLOADS[model], device=torch.device(device))
    if not memory.can_measure(workload.device):
        return {"memory_failed": "this system has no /proc/self/status"}
    kind = METHODS[method]
    importlib.import_module("opacus" if method.startswith("opacus") else "clipwise.dropin")
    try:
        return memory.measure(partial(kind, workload), workload.device)
    except Exception as error:
        return {"memory_failed": timing.reason(error)}


def main() -> None:
    spec = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not come between the lines

    def say(**line: Any) -> None:
        print(json.dumps(line), file=out, flush=True)

    warnings.simplefilter("ignore")
    task = spec.pop("task")
    if task == "clipping":
        say(result=time_clipping(**spec, progress=lambda done, total: say(done=done, total=total)))
    elif task == "time":
        say(result=time_methods(**spec, progress=lambda done, total: say(done=done, total=total)))
    else:
        say(result=measure_memory(**spec))


if __name__ == "__main__":
    main()
