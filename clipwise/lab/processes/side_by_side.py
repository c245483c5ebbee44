"""Python modules side by side, each in a process of its own that prints one JSON value; none is left behind.

Each process is held by a pipe (see leash.py): it ends with this one, also where this one is killed outright.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

Task = TypeVar("Task")


@dataclass(frozen=True)
class Ended:
    """What a process printed, or why it failed; `killed` if a signal ended it."""

    result: Mapping[str, Any] | None
    error: str | None
    killed: bool
    seconds: float


def side_by_side(
    tasks: Sequence[Task], command: Callable[[Task], list[str]], jobs: int
) -> Iterator[tuple[Task, Ended]]:
    """Each task with its end, in the order in which they end. `command` prepares a task just before it starts, and gives
    the module that runs it, and its words."""
    threads = _threads_each(jobs)
    living: set[subprocess.Popen[str]] = set()
    stop = threading.Event()
    pool = ThreadPoolExecutor(jobs)
    leash, held = os.pipe()  # `held` is never inherited, so that it closes with this process alone

    def run(task: Task) -> tuple[Task, Ended]:
        if stop.is_set():
            return task, Ended(None, "stopped", False, 0.0)
        return task, run_module(command(task), threads, leash, living)

    try:
        waiting: set[Future[tuple[Task, Ended]]] = {pool.submit(run, task) for task in tasks}
        while waiting:
            ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ended:
                yield future.result()
    finally:  # Ctrl-C, or a consumer that went away: no process is left behind
        stop.set()
        for process in list(living):
            process.terminate()
        pool.shutdown(cancel_futures=True)
        os.close(held)
        os.close(leash)


def _threads_each(jobs: int) -> int:
    """The cores shared among the processes, and no more than the caller's own OMP_NUM_THREADS allows."""
    share = max(1, (os.cpu_count() or 1) // jobs)
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(asked)) if asked.isdecimal() and int(asked) else share


def run_module(module: list[str], threads: int, leash: int, living: set[subprocess.Popen[str]] | None = None) -> Ended:
    """Run one to its end. `leash` is the reading end of a pipe that closes with this process; `living` holds the process."""
    living = set() if living is None else living
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    start = time.perf_counter()
    command = [sys.executable, "-m", "clipwise.lab.processes.leash", *module]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=leash, text=True, env=environment
    )
    living.add(process)
    output, messages = process.communicate()
    living.discard(process)
    seconds = time.perf_counter() - start
    try:
        result = json.loads(output)
    except ValueError:
        result = {"error": (messages.strip() or f"the process ended with code {process.returncode}")[-2000:]}
    if process.returncode or "error" in result:
        return Ended(None, str(result.get("error")), process.returncode < 0, seconds)
    return Ended(result, None, False, seconds)
