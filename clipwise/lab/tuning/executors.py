"""Where the runs of a search are executed. One function each: tasks, a command for a task, how many at once -> their ends.

What is run, what is charged and what is written down is decided in `runner.py`, for all of them alike.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from clipwise import validate
from clipwise.lab.processes import Ended, side_by_side
from clipwise.types import BadArgument


class Executor(Protocol):
    def __call__(
        self, tasks: Sequence[Any], command: Callable[[Any], list[str]], jobs: int | None
    ) -> Iterator[tuple[Any, Ended]]:
        """Each task with its end, in the order in which they end. `command` prepares a task just before it starts."""


def local(tasks: Sequence[Any], command: Callable[[Any], list[str]], jobs: int | None) -> Iterator[tuple[Any, Ended]]:
    """Processes on this machine, by default one a core."""
    return side_by_side(tasks, command, jobs or os.cpu_count() or 1)


def ray(tasks: Sequence[Any], command: Callable[[Any], list[str]], jobs: int | None) -> Iterator[tuple[Any, Ended]]:
    """Tasks of a Ray cluster, by default one a core of it."""
    from clipwise.lab.tuning.on_ray import side_by_side_on_ray  # an extra

    return side_by_side_on_ray(tasks, command, jobs)


def forks(tasks: Sequence[Any], command: Callable[[Any], list[str]], jobs: int | None) -> Iterator[tuple[Any, Ended]]:
    """As `local`, without the seconds that a process takes to start: for runs that all have a seed."""
    return side_by_side(tasks, command, jobs or os.cpu_count() or 1, seeded=sys.platform == "linux")


EXECUTORS: dict[str, Executor] = {"local": local, "ray": ray}


def get_executor(name: str) -> Executor:
    """The executor by its name; one whose extra is not installed is refused now, before anything is made."""
    if name == "ray" and find_spec("ray") is None:
        raise BadArgument("executor='ray' needs Ray; pip install 'clipwise[ray]' brings it, or use 'local'")
    return EXECUTORS[validate.choice("executor", name, EXECUTORS)]
