"""Interleaved timing: every round runs each method once, and a method's figure is the median of its ratios to the
plain step *of the same round*.

Whatever slows the machine for a while slows both sides of a ratio. The order turns by one place each round, so that
no method always runs in the cache that the same other one left. Up to three rounds go unmeasured first: in the first,
Clipwise looks at the model, and torch builds its kernels; what that first step cost is
reported on its own.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

WARM_UP_ROUNDS = 3  # not counted: a model is looked at in the first, and caches fill
BASE = "plain"
Clock = Callable[[], float]  # seconds


class Stepper(Protocol):
    parts: int

    def prepare(self) -> None: ...
    def step(self) -> None: ...
    def tidy(self) -> None: ...


@dataclass
class Times:
    """Seconds of each method, round by round; a method that failed has a reason and no times."""

    first: dict[str, float] = field(default_factory=dict)
    rounds: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    others: float | None = None  # share of the processors that other processes took meanwhile

    def summary(self, name: str, base: str = BASE) -> dict[str, Any]:
        if name in self.failed:
            return {"failed": self.failed[name]}
        own = self.rounds[name]
        ratios = [a / b for a, b in zip(own, self.rounds[base], strict=True)]
        low, middle, high = quartiles(ratios)
        return {
            "time_ms": 1e3 * statistics.median(own),
            "time_ratio": middle,
            "time_ratio_quartiles": [low, high],
            "first_step_ms": 1e3 * self.first[name],
            "rounds": len(own),
            "others": self.others,
        }


class Others:
    """How busy other processes keep the machine, since this was made. On few cores a busy machine spoils every figure."""

    def __init__(self) -> None:
        self._start = self._read()

    def share(self) -> float | None:
        now = self._read()
        if self._start is None or now is None or now[0] <= self._start[0]:
            return None
        total, busy, own = (b - a for a, b in zip(self._start, now, strict=True))
        return max(0.0, busy - own) / total

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        """Seconds of all processors together, of them busy, of them ours."""
        try:
            ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return None
        hertz = os.sysconf("SC_CLK_TCK")
        idle = ticks[3] + ticks[4]
        return sum(ticks) / hertz, (sum(ticks) - idle) / hertz, time.process_time()


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def time_interleaved(
    makers: Mapping[str, Callable[[], Stepper]],
    *,
    rounds: int | None,
    seconds: float,
    most: int,
    least: int,
    progress: Callable[[int, int], None] | None = None,
    clock: Clock = time.perf_counter,
) -> tuple[Times, dict[str, Stepper]]:
    """Times, and the steppers that ran. Without `rounds`, as many as fit into `seconds`, between `least` and `most`."""
    times, alive = Times(), dict[str, Stepper]()
    for name, make in makers.items():
        try:
            alive[name] = make()
            times.first[name] = whole_step(alive[name], clock)
        except Exception as error:
            _fail(times, alive, name, error)
    cost = 0.0
    for _ in range(WARM_UP_ROUNDS - 1):
        cost = sum(_round(times, alive, list(alive), clock).values())
        if cost > seconds / 4:
            break  # steps of seconds: one round more would tell nothing
    neighbours = Others()
    planned = rounds or max(least, min(most, int(seconds / max(cost, 1e-9))))
    times.rounds = {name: [] for name in alive}
    for done in range(planned):
        if progress:
            progress(done, planned)
        names = list(alive)
        turn = done % max(1, len(names))
        for name, took in _round(times, alive, names[turn:] + names[:turn], clock).items():
            times.rounds[name].append(took)
    times.rounds = {name: values for name, values in times.rounds.items() if name in alive}
    times.others = neighbours.share()
    return times, alive


def _round(times: Times, alive: dict[str, Stepper], order: Sequence[str], clock: Clock) -> dict[str, float]:
    took = {}
    gc.collect()
    for name in order:
        try:
            took[name] = whole_step(alive[name], clock)
        except Exception as error:
            _fail(times, alive, name, error)
    return took


def whole_step(stepper: Stepper, clock: Clock = time.perf_counter) -> float:
    """Seconds of a logical step, the loading of its parts left out."""
    if (elsewhere := getattr(stepper, "whole_step", None)) is not None:  # in another process (release.py)
        return float(elsewhere())
    took = 0.0
    for _ in range(stepper.parts):
        stepper.prepare()
        gc.disable()  # as timeit does: a collection belongs to no single step
        try:
            start = clock()
            stepper.step()
            took += clock() - start
        finally:
            gc.enable()
    stepper.tidy()
    return took


def _fail(times: Times, alive: dict[str, Stepper], name: str, error: Exception) -> None:
    alive.pop(name, None)
    times.failed[name] = reason(error)


def reason(error: BaseException) -> str:
    """One line of an error."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:200]
