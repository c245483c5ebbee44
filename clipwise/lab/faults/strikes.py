"""Strikes: what happens to a run, at which point of it, and when it gets there for which time.

Installed in a child of the server, before it runs the command line. Every point counts its visits (`visits`), so that a
run that nothing strikes says how often each could have been struck. Each draw of noise is logged by a digest, outside of
what the library knows: `draws.log` is the witness against the ledger.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DRAWS = "draws.log"
ANYWHERE = "anywhere"  # a point that is visited by every call of a Python or C function
PRIVATE_FOLDER = "run"  # where the run writes, seen from the child's working folder


@dataclass(frozen=True)
class Strike:
    """At the `at`-th visit of `point`: kill, term, int (signals), pause (SIGSTOP), oom, full (this write fails), full-disk
    (every write from then on)."""

    point: str
    at: int
    action: str = "kill"


class Points:
    """The points of a child, and the strikes that wait for it there."""

    def __init__(self, strikes: list[Strike]):
        self.visits: Counter[str] = Counter()
        self._waiting = {(strike.point, strike.at): strike.action for strike in strikes}

    def visit(self, point: str, tear: Callable[[], object] | None = None) -> None:
        """`tear` leaves half of what the call would have done, for a kill that comes in the middle."""
        self.visits[point] += 1
        action = self._waiting.get((point, self.visits[point]))
        if action == "kill" and tear is not None:
            tear()
        if action is not None:
            _ACTIONS[action]()

    def install(self) -> None:
        import clipwise.step as step
        from clipwise.training.folder import RunFolder

        self._before(step.Stepper, "begin", "forward")
        self._before(step, "backward_pass", "backward")
        self._before(step, "charge", "before the charge")
        _log_draws(step)
        self._before(step, "add_noise", "between charge and noise")
        self._before(step, "hand_over", "between noise and update")
        self._before(RunFolder, "write", "results")
        self._before(os, "replace", "rename")
        self._writes()
        self._calls()

    def _before(self, owner: Any, name: str, point: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def struck(*args: Any, **options: Any) -> Any:
            self.visit(point)
            return original(*args, **options)

        setattr(owner, name, struck)

    def _writes(self) -> None:
        """The ledger writes with os.write; files that appear whole are flushed by os.fsync before they get their name."""
        write, fsync = os.write, os.fsync

        def torn_write(file: int, data: Any) -> int:
            self.visit("ledger line", tear=lambda: write(file, bytes(data)[: len(data) // 2]))
            return write(file, data)

        def torn_fsync(file: int) -> None:
            if os.readlink(f"/proc/self/fd/{file}").count(".part"):
                self.visit("checkpoint", tear=lambda: os.ftruncate(file, os.fstat(file).st_size // 2))
            else:
                self.visit("fsync")
            fsync(file)

        os.write, os.fsync = torn_write, torn_fsync

    def _calls(self) -> None:
        if not any(point == ANYWHERE for point, _ in self._waiting):
            return

        def profile(_frame: Any, event: str, _arg: Any) -> None:
            if event in ("call", "c_call"):
                self.visit(ANYWHERE)

        sys.setprofile(profile)


def _log_draws(step: Any) -> None:
    """Each release on record, by step and digest, in a file that a kill cannot take back."""
    add_noise = step.add_noise
    log = os.open(DRAWS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    write = os.write

    def logged(plan: Any, state: Any, *rest: Any) -> Any:
        released = add_noise(plan, state, *rest)
        digest = hashlib.sha256(b"".join(g.numpy().tobytes() for g in released.gradient)).hexdigest()[:16]
        write(log, f"{state.step} {digest} {plan.event(state.step).noise_multiplier!r}\n".encode())
        return released

    step.add_noise = logged


def _signal(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _out_of_memory() -> None:
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory (the fault rig says so)")


def _full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _full_disk() -> None:
    """No file can grow any more, by the kernel's own means."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


_ACTIONS: dict[str, Callable[[], None]] = {
    "kill": _signal(signal.SIGKILL),
    "term": _signal(signal.SIGTERM),
    "int": _signal(signal.SIGINT),
    "pause": _signal(signal.SIGSTOP),
    "oom": _out_of_memory,
    "full": _full,
    "full-disk": _full_disk,
}


def read_only(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook under which the run's folder is on a disk that was mounted to read."""
    paths = [os.fsdecode(arg) for arg in args[:2] if isinstance(arg, str | bytes | os.PathLike)]
    writes = event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree") or (
        event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    )
    if writes and any(PRIVATE_FOLDER in path.split(os.sep) for path in paths):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), paths[0])


def jumping_clock(seed: int) -> None:
    """Every look at a clock finds another time, days apart, also backwards."""
    chance = random.Random(seed)
    for name in ("time", "monotonic", "perf_counter"):
        real = getattr(time, name)
        setattr(time, name, lambda real=real: real() + chance.uniform(-1e6, 1e6))
