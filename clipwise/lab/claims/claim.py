"""One published figure, what its own formula gives, and what every step counted costs."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from clipwise.accounting.bound import epsilon
from clipwise.accounting.events import StepEvent
from clipwise.schedules import Schedule

Inputs = Mapping[str, float | int | str]


@dataclass(frozen=True)
class Claim:
    """`published` and `recomputed` are epsilons unless `inputs["published_is"]` names something else.

    `recomputed` is None where the paper does not print an input that its formula needs. The honest figures are
    always epsilons, at the claim's delta; infinity says that no guarantee holds.
    """

    paper: str
    table: str
    row: str
    inputs: Inputs
    published: float
    recomputed: float | None
    honest_rdp: float
    honest_pld: float
    why: str


class Honest(NamedTuple):
    rdp: float
    pld: float


NO_GUARANTEE = Honest(math.inf, math.inf)


@dataclass(frozen=True)
class Setting:
    """What a paper says of a run, apart from its noise."""

    dataset: str
    samples: int
    batch: int
    epochs: int
    delta: float

    @property
    def rate(self) -> float:
        return self.batch / self.samples

    @property
    def steps(self) -> int:
        """T = E / q."""
        return round(self.epochs / self.rate)

    def inputs(self) -> dict[str, float | int | str]:
        return {
            "dataset": self.dataset,
            "samples": self.samples,
            "batch": self.batch,
            "epochs": self.epochs,
            "steps": self.steps,
            "delta": self.delta,
        }

    def honest(self, noise: float, schedule: Schedule | None = None, *, runs: int = 1, extra_steps: int = 0) -> Honest:
        """Every step of the run counted, `runs` times over; noise levels follow the schedule from `noise` on."""
        return _every_step(schedule or Schedule(), noise, self.rate, self.steps + extra_steps, runs, self.delta)


@functools.lru_cache(maxsize=1024)
def _every_step(schedule: Schedule, noise: float, rate: float, steps: int, runs: int, delta: float) -> Honest:
    events = [StepEvent(rate, noise * factor, runs * count) for factor, count in _levels(schedule, steps, rate)]
    return Honest(epsilon(events, delta, "rdp").value, epsilon(events, delta, "pld").value)


@functools.lru_cache(maxsize=256)
def _levels(schedule: Schedule, steps: int, rate: float) -> tuple[tuple[float, int], ...]:
    return tuple(schedule.runs(steps, rate))


def differs_from_print(recomputed: float, published: float, decimals: int) -> bool:
    """Whether neither rounding nor cutting the recomputed figure to so many decimals gives the printed one."""
    return abs(recomputed - published) >= 10**-decimals
