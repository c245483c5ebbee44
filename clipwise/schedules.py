"""Schedules: how a noise multiplier or a bound changes over a run, as a value that can be written down.

    constant      x_e   = x_0
    linear        x_e^2 = x_0^2 R^e                 R = 0.99   (the papers' name; it is geometric)
    time          x_e^2 = x_0^2 / (1 + R e)         R = 0.01
    auto-time     the same, with R = x_0 / E        (Auto DP-SGD: from the noise and the planned epochs, see `settled`)
    step          x_e^2 = x_0^2 R^floor(e / D)      R = 0.5, D = 10
    exponential   x_e^2 = x_0^2 exp(-R e)           R = 0.1
    dynamic       x_t   = x_0 R^(t / T)             R = 0.8    (Du et al.: by step, over the T planned)
    levels        x_e   = x_0 * levels[e]           your own, one factor an epoch; the last one goes on

e counts epochs, floor(q t) at step t, or steps with `by="step"`. The papers' tables define sigma *squared*, hence the
squares; a bound that decays is scheduled by its own value (`square=False`). A schedule is public and fixed before training, so that the cost of every step is known in advance. As text
it reads `step:decay=0.5,every=10` or `levels:1,0.9,0.8`.

References: Auto DP-SGD (paper 000), Table 1; DP-SGD-Global-Adapt-V2 (001), Sec. 4.3; Du et al., "Dynamic Differential-
Privacy Preserving SGD" (2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from clipwise import validate
from clipwise.types import BadArgument

_DECAY = {
    "constant": None,
    "linear": 0.99,
    "time": 0.01,
    "auto-time": None,
    "step": 0.5,
    "exponential": 0.1,
    "dynamic": 0.8,
    "levels": None,
}
KINDS = tuple(_DECAY)
_EVERY = 10  # epochs between the steps of 'step', as papers 000 and 001 have it
_SMALLEST = 1e-9  # a factor is not taken below this: 0 would be no noise at all


@dataclass(frozen=True)
class Schedule:
    """`factor(t, ...)` is the scheduled value at step t over its first."""

    kind: str = "constant"
    decay: float | None = None  # R; None takes the kind's own
    every: int | None = None  # D, of the step schedule
    levels: tuple[float, ...] = ()
    by: str = "epoch"

    def __post_init__(self) -> None:
        validate.choice("schedule", self.kind, KINDS)
        validate.choice("by", self.by, ("epoch", "step"))
        if self.kind == "levels":
            if not self.levels:
                raise BadArgument("levels=(): give at least one factor, such as (1.0, 0.9, 0.8)")
            for level in self.levels:
                validate.positive("levels", level, "every factor is finite and above 0")
            object.__setattr__(self, "levels", tuple(float(level) for level in self.levels))
        elif self.levels:
            raise BadArgument(f"levels are for schedule='levels', not for {self.kind!r}; leave them out")
        if (default := _DECAY[self.kind]) is not None:
            decay = validate.positive("decay", default if self.decay is None else self.decay)
            if self.kind in ("linear", "step", "dynamic") and decay > 1:
                raise BadArgument(f"decay={decay!r} would make the value grow; give a factor of at most 1")
            object.__setattr__(self, "decay", decay)
        elif self.decay is not None:
            raise BadArgument(f"decay={self.decay!r} has no meaning for schedule={self.kind!r}; leave it out")
        if self.kind == "step":
            object.__setattr__(self, "every", validate.count("every", _EVERY if self.every is None else self.every))
        elif self.every is not None:
            raise BadArgument(f"every={self.every!r} has no meaning for schedule={self.kind!r}; leave it out")
        if self.kind == "dynamic":
            object.__setattr__(self, "by", "step")

    def settled(self, first: float, epochs: float | None) -> Schedule:
        """With its first value known: `auto-time` is then a `time` schedule, R = x_0 / E; every other one is what it was."""
        if self.kind != "auto-time":
            return self
        if epochs is None:
            raise BadArgument("schedule='auto-time' decays by R = sigma_0 / epochs; give epochs")
        return Schedule("time", decay=first / epochs, by=self.by) if first else Schedule()

    def factor(self, step: int, *, sample_rate: float, steps: int | None, square: bool = True) -> float:
        """The value at this step over the first one; `steps` are the planned ones. `square`: the formulas above give its
        square (of noise); otherwise itself (of a bound)."""
        e = step if self.by == "step" else epoch_of(step, sample_rate)
        return max(_SMALLEST, self._at(e, steps, 2 if square else 1))

    def _at(self, e: int, steps: int | None, root: int) -> float:
        r = self.decay or 0.0
        if self.kind == "linear":
            return float(r ** (e / root))
        if self.kind == "time":
            return float((1 + r * e) ** (-1 / root))
        if self.kind == "auto-time":
            raise BadArgument(
                "schedule='auto-time' follows from the noise: it is for the noise of a planned run alone. Give time:decay=R"
            )
        if self.kind == "step":
            return float(r ** (e // (self.every or 1) / root))
        if self.kind == "exponential":
            return math.exp(-r * e / root)
        if self.kind == "dynamic":
            if not steps:
                raise BadArgument("schedule='dynamic' runs over the planned steps; give epochs")
            return float(r ** (min(e, steps) / steps))
        if self.kind == "levels":
            return self.levels[min(e, len(self.levels) - 1)]
        return 1.0

    def runs(self, steps: int, sample_rate: float) -> list[tuple[float, int]]:
        """(factor, how many steps in a row have it) over `steps` steps."""
        if self.kind == "constant":
            return [(1.0, steps)]
        factors = (self.factor(step, sample_rate=sample_rate, steps=steps) for step in range(steps))
        return [(value, sum(1 for _ in same)) for value, same in groupby(factors)]

    @property
    def largest(self) -> float:
        """No factor is above this."""
        return max(self.levels, default=1.0)

    def __str__(self) -> str:
        if self.kind == "levels":
            options = [repr(level) for level in self.levels]
        else:
            options = [f"{key}={value!r}" for key, value in (("decay", self.decay), ("every", self.every)) if value]
        if self.by == "step" and self.kind != "dynamic":
            options.append("by=step")
        return f"{self.kind}:{','.join(options)}" if options else self.kind


ScheduleLike = Schedule | str | Mapping[str, Any] | Sequence[float] | Callable[[int], float] | None


def make_schedule(value: ScheduleLike, *, epochs: float | None = None) -> Schedule:
    """A schedule from its text, its fields, a list of factors (one an epoch), or a function of the epoch, which is
    written down here for the planned epochs."""
    if value is None:
        return Schedule()
    if isinstance(value, Schedule):
        return value
    if isinstance(value, str):
        return _parsed(value)
    if isinstance(value, Mapping):
        if unknown := value.keys() - Schedule.__dataclass_fields__.keys():
            raise BadArgument(f"schedule: {sorted(unknown)} unknown; it has kind, decay, every, levels and by")
        return Schedule(**{**value, "levels": tuple(value.get("levels", ()))})
    if callable(value):
        if epochs is None:
            raise BadArgument("schedule: a function of the epoch is written down for the planned epochs; give epochs")
        return Schedule("levels", levels=tuple(value(epoch) for epoch in range(math.ceil(epochs))))
    if not isinstance(value, Iterable):
        raise BadArgument(
            f"schedule={value!r} is no schedule; give a name such as 'step', or a list of factors, one an epoch"
        )
    return Schedule("levels", levels=tuple(value))


def _parsed(text: str) -> Schedule:
    kind, _, rest = text.partition(":")
    validate.choice("schedule", kind, KINDS)
    fields: dict[str, Any] = {}
    levels: list[float] = []
    for part in filter(None, (part.strip() for part in rest.split(","))):
        name, equals, word = part.rpartition("=")
        try:
            if not equals:
                levels.append(float(word))
            elif name in ("decay", "every"):
                fields[name] = float(word) if name == "decay" else int(word)
            elif name == "by":
                fields[name] = word
            else:
                raise ValueError
        except ValueError:
            raise BadArgument(
                f"schedule={text!r}: {part!r} is not understood; write step:decay=0.5,every=10 or levels:1,0.9,0.8"
            ) from None
    return Schedule(kind, levels=tuple(levels), **fields)


def written(text: str | None, decay: float | None, every: int | None) -> str | None:
    """The text of a schedule with the command line's --decay and --every in it; None where none was named."""
    if text is None:
        if decay is not None or every is not None:
            raise BadArgument(f"decay={decay!r}, every={every!r} belong to a schedule; give --schedule too")
        return None
    fields = asdict(make_schedule(text))
    for name, value in (("decay", decay), ("every", every)):
        if value is not None:
            fields[name] = value
    return str(Schedule(**fields))


def epoch_of(step: int, sample_rate: float) -> int:
    """Whole passes over the data before this step; 1e-9 takes up the rounding of sample_rate."""
    return int(step * sample_rate + 1e-9)
