"""A run that is planned but not taken: its sampling, its length and its schedule, and from these its events.

Formal guarantee: `PlannedRun.events(sigma_0)` dominate what the run would release, for the neighbours that its sampling
goes with, and never more than 512 levels stand for its steps (see `coarsen.py`: a ledger of the same steps has the same
epsilon). The three ways of making batches each have a bound of their own:

| sampling            | a batch is                                   | neighbours differ by       | bound             |
| ------------------- | -------------------------------------------- | -------------------------- | ----------------- |
| poisson             | each record with chance q, independently     | one record added, removed  | rdp, pld          |
| without-replacement | m = q n records, drawn anew each step        | one record replaced        | rdp, noise halved |
| none                | the next of the data, shuffled for each pass | one record's part set to 0 | exact             |

With `none` nothing is amplified: a record is in one batch of each pass, so a run is one plain Gaussian release a pass,
with the least noise that the pass has. To set a record's part to 0 is the add/remove of batches whose sizes are fixed,
and moves a sum by the bound. (Replacing a record moves it by twice that: account for half the noise multiplier.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from clipwise import validate
from clipwise.accounting.calibrate import calibrate_shape
from clipwise.accounting.coarsen import MOST_LEVELS, scheduled
from clipwise.accounting.events import Event, FixedSizeEvent, StepEvent, accountable_steps
from clipwise.schedules import Schedule

NEIGHBOURS = {
    "poisson": "add or remove one record",
    "without-replacement": "replace one record",
    "none": "set one record's part to zero",
}
SAMPLING = tuple(NEIGHBOURS)
_ROUGH_LEVELS = 48  # to find the neighbourhood of an answer with


def planned_steps(epochs: float, sample_rate: float, sampling: str = "poisson") -> int:
    """The steps that make up so many passes over the data.

    Sampled batches have no pass to end: the steps are those whose expected sizes add up to it, epochs / sample_rate,
    rounded (100 epochs at 64 / 60000 are 93,750). Shuffled ones do: a pass takes ceil(1 / sample_rate) of them.
    """
    epochs = validate.positive("epochs", epochs, "give the number of passes over the data")
    rate = StepEvent(sample_rate, 1.0).sample_rate  # checks it
    validate.choice("sampling", sampling, SAMPLING)
    return max(1, round(epochs * _batches_of_a_pass(rate) if sampling == "none" else epochs / rate))


@dataclass(frozen=True)
class PlannedRun:
    sample_rate: float
    steps: int
    schedule: Schedule = field(default_factory=Schedule)
    sampling: str = "poisson"

    def __post_init__(self) -> None:
        StepEvent(self.sample_rate, 1.0)  # checks the rate
        accountable_steps("steps", self.steps, least=1)
        validate.choice("sampling", self.sampling, SAMPLING)

    @property
    def neighbours(self) -> str:
        return NEIGHBOURS[self.sampling]

    @property
    def levels(self) -> int:
        """How many different noise multipliers there are."""
        return len(np.unique(_factors(self, self._settled(1.0))[0]))

    def events(self, noise_multiplier: float, most_levels: int = MOST_LEVELS) -> tuple[Event, ...]:
        """What the run costs if it starts with this noise multiplier."""
        first = validate.non_negative("noise_multiplier", noise_multiplier, "give noise std / l2 bound")
        factors, counts = _factors(self, self._settled(first))
        kind: type[Event] = FixedSizeEvent if self.sampling == "without-replacement" else StepEvent
        rate = 1.0 if self.sampling == "none" else self.sample_rate
        return scheduled(kind, rate, first * factors, counts, most_levels)

    def calibrate(self, target_epsilon: float, delta: float, accountant: str = "best") -> float:
        """The smallest first noise multiplier with which the whole run stays within (target_epsilon, delta)."""

        def rough(noise_multiplier: float) -> tuple[Event, ...]:
            return self.events(noise_multiplier, _ROUGH_LEVELS)

        many = self.levels > 2 * _ROUGH_LEVELS
        return calibrate_shape(target_epsilon, delta, self.events, accountant, rough=rough if many else None)

    def _settled(self, first: float) -> Schedule:
        return self.schedule.settled(first, self.steps * self.sample_rate)


@lru_cache(maxsize=8)  # a calibration asks for the same again and again
def _factors(run: PlannedRun, schedule: Schedule) -> tuple[np.ndarray, list[int]]:
    """The factors of the run's schedule, settled, and how many releases have each."""
    if run.sampling != "none":
        runs = schedule.runs(run.steps, run.sample_rate)
        return np.array([factor for factor, _ in runs]), [count for _, count in runs]
    batches = _batches_of_a_pass(run.sample_rate)
    passes = math.ceil(run.steps / batches)
    least = np.full(passes, np.inf)
    step = 0
    for factor, count in schedule.runs(run.steps, 1 / batches):
        touched = slice(step // batches, (step + count - 1) // batches + 1)
        least[touched] = np.minimum(least[touched], factor)
        step += count
    return least, [1] * passes


def _batches_of_a_pass(sample_rate: float) -> int:
    return math.ceil(1 / sample_rate - 1e-9)
