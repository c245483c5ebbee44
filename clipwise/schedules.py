"""Schedules: how the noise multiplier (or a bound) changes over a run, as a value that can be written down.

    constant      sigma_e   = sigma_0
    linear        sigma_e^2 = sigma_0^2 R^e                 R = 0.99   (the papers' name; it is geometric)
    time          sigma_e^2 = sigma_0^2 / (1 + R e)         R = 0.01
    step          sigma_e^2 = sigma_0^2 R^floor(e / D)      R = 0.5, D = 10
    exponential   sigma_e^2 = sigma_0^2 exp(-R e)           R = 0.1
    dynamic       sigma_t   = sigma_0 R^(t / T)             R = 0.8    (Du et al.: by step, over the T planned)
    levels        sigma_e   = sigma_0 * levels[e]           your own, one factor an epoch; the last one goes on

Epoch e of step t is floor(q t). A schedule is public and fixed before training, so that every step's cost is known in advance. References: Auto
DP-SGD (paper 000), Table 1; DP-SGD-Global-Adapt-V2 (001), Sec. 4.3; Du et al. 2021. The papers' tables define sigma *squared*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clipwise import validate
from clipwise.types import BadArgument

_DECAY = {
    "constant": None,
    "linear": 0.99,
    "time": 0.01,
    "step": 0.5,
    "exponential": 0.1,
    "dynamic": 0.8,
    "levels": None,
}
KINDS = tuple(_DECAY)
EVERY = 10


@dataclass(frozen=True)
class Schedule:
    """`factor(...)` is sigma at that time over sigma_0."""

    kind: str = "constant"
    decay: float | None = None  # R; None takes the kind's own
    every: int | None = None  # D, of the step schedule
    levels: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        validate.choice("schedule", self.kind, KINDS)
        if self.kind == "levels":
            if not self.levels:
                raise BadArgument("levels=(): give at least one factor, such as (1.0, 0.9, 0.8)")
            for level in self.levels:
                validate.positive("levels", level, "every factor is finite and above 0")
        elif self.levels:
            raise BadArgument(f"levels are for schedule='levels', not for {self.kind!r}; leave them out")
        default = _DECAY[self.kind]
        if default is None and self.decay is not None:
            raise BadArgument(f"decay={self.decay!r} has no meaning for schedule={self.kind!r}; leave it out")
        if default is not None:
            decay = validate.positive("decay", default if self.decay is None else self.decay)
            if self.kind in ("linear", "step", "dynamic") and decay > 1:
                raise BadArgument(f"decay={decay!r} would make the noise grow; give a factor of at most 1")
            object.__setattr__(self, "decay", decay)
        if self.kind == "step":
            object.__setattr__(self, "every", validate.count("every", EVERY if self.every is None else self.every))
        elif self.every is not None:
            raise BadArgument(f"every={self.every!r} has no meaning for schedule={self.kind!r}; leave it out")

    def factor(self, *, epoch: int, step: int, steps: int | None) -> float:
        r = self.decay or 0.0
        if self.kind == "linear":
            return r ** (epoch / 2)
        if self.kind == "time":
            return (1 + r * epoch) ** -0.5
        if self.kind == "step":
            return r ** (epoch // (self.every or 1) / 2)
        if self.kind == "exponential":
            return math.exp(-r * epoch / 2)
        if self.kind == "dynamic":
            if not steps:
                raise BadArgument("schedule='dynamic' runs over the planned steps; give epochs")
            return r ** (step / steps)
        if self.kind == "levels":
            return self.levels[min(epoch, len(self.levels) - 1)]
        return 1.0

    def to_dict(self) -> dict[str, Any]:
        """Only what this kind has, for config files, ledger and statement."""
        given = {"kind": self.kind, "decay": self.decay, "every": self.every, "levels": list(self.levels) or None}
        return {name: value for name, value in given.items() if value is not None}


def make_schedule(
    value: str | Schedule | Sequence[float] | Callable[[int], float] | None, *, epochs: float | None
) -> Schedule:
    """A schedule from its name, a list of factors, or a function of the epoch (written down here, for the planned epochs)."""
    if value is None:
        return Schedule()
    if isinstance(value, Schedule):
        return value
    if isinstance(value, str):
        return Schedule(value)
    if callable(value):
        if epochs is None:
            raise BadArgument("schedule: a function of the epoch is written down for the planned epochs; give epochs")
        return Schedule("levels", levels=tuple(float(value(epoch)) for epoch in range(math.ceil(epochs))))
    return Schedule("levels", levels=tuple(float(level) for level in value))
