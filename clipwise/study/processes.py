"""Commands side by side, each in a process of its own that prints one JSON value; none is left behind.

A command's standard input is a pipe that nobody writes to: it ends when the process that waits for the command does,
also by SIGKILL. A command whose leftovers would do harm calls `end_with_parent`, and ends then too.
"""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import subprocess
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
    """Each task with its end, in the order in which they end. `command` prepares a task just before it starts."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    living: set[subprocess.Popen[str]] = set()
    stop = threading.Event()
    pool = ThreadPoolExecutor(jobs)

    def run(task: Task) -> tuple[Task, Ended]:
        if stop.is_set():
            return task, Ended(None, "stopped", False, 0.0)
        return task, run_command(command(task), threads, living)

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


def run_command(command: list[str], threads: int, living: set[subprocess.Popen[str]] | None = None) -> Ended:
    """Run one command to its end. `living` holds its process meanwhile."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    living = set() if living is None else living
    start = time.perf_counter()
    theirs, ours = os.pipe()
    try:
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=theirs, text=True, env=environment
            )
        finally:
            os.close(theirs)
        living.add(process)
        output, messages = process.communicate()
        living.discard(process)
    finally:
        os.close(ours)
    seconds = time.perf_counter() - start
    try:
        result = json.loads(output)
    except ValueError:
        result = {"error": (messages.strip() or f"the process ended with code {process.returncode}")[-2000:]}
    if process.returncode or "error" in result:
        return Ended(None, str(result.get("error")), process.returncode < 0, seconds)
    return Ended(result, None, False, seconds)


def end_with_parent() -> None:
    """Called in a command: end, at once and as if killed, when the process that started it is gone."""
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return  # started by hand

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock would be held when the interpreter shuts down
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    if select.select([0], [], [], 0)[0]:  # it is gone already
        watch()
    threading.Thread(target=watch, daemon=True).start()
