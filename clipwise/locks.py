"""A lock on a file, held by a process for as long as it lives: nobody has to clean up after one that was killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system: no lock between processes
    fcntl = None  # type: ignore[assignment]


class Held(Exception):
    """Another process holds the lock."""


@contextmanager
def holding(path: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock on this file, which is made if it is missing; after `wait` seconds of trying, `Held`."""
    deadline = time.monotonic() + wait
    with path.open("a") as file:
        while fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise Held(str(path)) from error
            time.sleep(0.05)
        yield
