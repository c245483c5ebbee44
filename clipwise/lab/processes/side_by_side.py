"""Python modules side by side, each in a process of its own that prints one JSON value; none is left behind.

Each process is held by a pipe (see leash.py): it ends with this one, also where this one is killed outright.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
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
    tasks: Sequence[Task], command: Callable[[Task], list[str]], jobs: int, *, seeded: bool = False
) -> Iterator[tuple[Task, Ended]]:
    """Each task with its end, in the order in which they end. `command` prepares a task just before it starts, and gives
    the module that runs it, and its words. Tasks that are all `seeded` are forks of processes that have done the imports."""
    threads = _threads_each(jobs)
    living: set[subprocess.Popen[str]] = set()
    idle: list[_Warm] = []
    stop = threading.Event()
    pool = ThreadPoolExecutor(jobs)
    leash, held = os.pipe()  # `held` is never inherited, so that it closes with this process alone

    def run(task: Task) -> tuple[Task, Ended]:
        if stop.is_set():
            return task, Ended(None, "stopped", False, 0.0)
        module = command(task)
        if not seeded:
            return task, run_module(module, threads, leash, living)
        warm = idle.pop() if idle else _Warm(threads, leash, living)
        ended = warm.run(module)
        if warm.process.poll() is None:
            idle.append(warm)
        return task, ended

    try:
        waiting: set[Future[tuple[Task, Ended]]] = {pool.submit(run, task) for task in tasks}
        while waiting:
            ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ended:
                yield future.result()
    finally:  # Ctrl-C, or a consumer that went away: no process is left behind
        stop.set()
        for process in list(living):
            _terminate(process)
        pool.shutdown(cancel_futures=True)
        for warm in idle:
            warm.close()
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
    return _ended(process.returncode, output, messages, time.perf_counter() - start)


def _ended(code: int, output: str, messages: str, seconds: float) -> Ended:
    try:
        result = json.loads(output)
    except ValueError:
        result = {"error": (messages.strip() or f"the process ended with code {code}")[-2000:]}
    if code or "error" in result:
        return Ended(None, str(result.get("error")), code < 0, seconds)
    return Ended(result, None, False, seconds)


class _Warm:
    """A process of warm.py, in a group of its own, with the fork that it runs."""

    def __init__(self, threads: int, leash: int, living: set[subprocess.Popen[str]]) -> None:
        self._threads, self._living = threads, living
        self.process = subprocess.Popen(
            [sys.executable, "-m", "clipwise.lab.processes.warm", str(leash)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(leash,),
            process_group=0,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )

    def run(self, module: list[str]) -> Ended:
        start = time.perf_counter()
        self._living.add(self.process)
        with tempfile.TemporaryDirectory(prefix="clipwise-run-") as folder:
            output, messages = Path(folder, "output"), Path(folder, "messages")
            output.touch()
            messages.touch()
            code = self._code({"module": module, "output": str(output), "messages": str(messages)})
            said = [path.read_text(encoding="utf-8", errors="replace") for path in (output, messages)]
        self._living.discard(self.process)
        return _ended(code, said[0], said[1], time.perf_counter() - start)

    def _code(self, asked: dict[str, Any]) -> int:
        """The run's exit code; that of this process, where it has died."""
        to, answers = self.process.stdin, self.process.stdout
        if to is None or answers is None:
            raise ValueError("this process was started without pipes")
        with suppress(OSError):
            to.write(json.dumps({**asked, "threads": self._threads}) + "\n")
            to.flush()
        answer = answers.readline()
        return int(json.loads(answer)["code"]) if answer else self.process.wait() or 1

    def close(self) -> None:
        self.process.communicate()  # closes its standard input, at which it ends


def _terminate(process: subprocess.Popen[str]) -> None:
    """Its fork too, where it has one: that is in its group."""
    with suppress(ProcessLookupError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGTERM)
        else:
            process.terminate()
