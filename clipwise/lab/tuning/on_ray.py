"""The same commands as `clipwise.lab.processes.side_by_side.side_by_side`, as tasks of a Ray cluster (an extra, `clipwise[ray]`).

The cluster is the one that RAY_ADDRESS names, or that runs on this machine; without one, a local Ray is started, and ended
with the search. Each worker needs this package in the same place, and sees the folder of the search and the data under the
same paths (a shared file system): results are files there, as they are for local processes. Ray itself never runs a command
twice: whether one that was killed may run again depends on what it had shown, which the search decides.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from clipwise.lab.processes import Ended, run_module
from clipwise.types import ClipwiseError

Task = TypeVar("Task")


def side_by_side_on_ray(
    tasks: Sequence[Task], command: Callable[[Task], list[str]], jobs: int | None
) -> Iterator[tuple[Task, Ended]]:
    """Each task with its end, in the order in which they end; at most `jobs` at once, by default one a core of the cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unasked
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's own plans
        import ray

        started = not ray.is_initialized()
        if started:
            try:
                ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            except Exception as error:  # Ray has no class of its own for it
                raise ClipwiseError(
                    f"executor='ray': Ray did not start ({error}); nothing was spent by this. Look at /tmp/ray, or at what "
                    "RAY_ADDRESS names, and give the same command again; or use executor='local'"
                ) from error
    remote = ray.remote(num_cpus=1, max_retries=0)(_on_worker)
    jobs = jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting = list(tasks)
    running: dict[Any, tuple[Task, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.pop(0)
                running[remote.remote(command(task), _environment())] = task, time.perf_counter()
            (reference,), _ = ray.wait(list(running), num_returns=1)
            task, start = running.pop(reference)
            try:
                ended = Ended(**ray.get(reference))
            except ray.exceptions.RayError as error:  # the worker was killed, or its machine is gone
                ended = Ended(None, str(error), True, time.perf_counter() - start)
            yield task, ended
    finally:
        for reference in running:  # its worker goes, and the command with it
            ray.cancel(reference, force=True)
        if started:
            ray.shutdown()


def _on_worker(command: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Runs in a worker, with the one core that Ray gives it; ends with it, by a leash of its own."""
    os.environ.update(environment)
    leash, held = os.pipe()
    try:
        return vars(run_module(command, threads=1, leash=leash))
    finally:
        os.close(held)
        os.close(leash)


def _environment() -> dict[str, str]:
    """What a command of ours reads from the environment."""
    return {name: value for name, value in os.environ.items() if name.startswith("CLIPWISE_") or name == "PYTHONPATH"}
