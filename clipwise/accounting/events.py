"""What one training step costs, as plain data.

Formal guarantee: a `StepEvent` stands for `count` releases, each of which draws its own Poisson sample (every record
joins with probability `sample_rate`, independently) and adds Gaussian noise of standard deviation `noise_multiplier`
times the l2 bound of *everything* the step reads from that sample. Neighbouring data sets differ by adding or removing
one record. All queries on one sample belong to one event (see `joint.py`): sampling is outside, once.

Reference: Mironov, Talwar, Zhang, "Renyi differential privacy of the sampled Gaussian mechanism" (2019).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from clipwise import validate


@dataclass(frozen=True, slots=True)
class StepEvent:
    """`count` Poisson-subsampled Gaussian releases; a noise multiplier of 0 is allowed, and is not private."""

    sample_rate: float
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        # Plain floats, always: dp-accounting 0.6.0 takes an int or float32 multiplier for that of a whole composition.
        rate = validate.probability(
            "sample_rate", self.sample_rate, one_allowed=True, remedy="give the chance that a record joins a batch"
        )
        noise = validate.non_negative("noise_multiplier", self.noise_multiplier, "give noise std / joint l2 bound")
        object.__setattr__(self, "sample_rate", rate)
        object.__setattr__(self, "noise_multiplier", noise)
        object.__setattr__(self, "count", validate.count("count", self.count, least=0))


def merge(events: Iterable[StepEvent]) -> tuple[StepEvent, ...]:
    """One event for each distinct (rate, noise), in a fixed order: composition ignores order, and caches hit."""
    totals: Counter[tuple[float, float]] = Counter()
    for event in events:
        totals[event.sample_rate, event.noise_multiplier] += event.count
    return tuple(StepEvent(rate, noise, count) for (rate, noise), count in sorted(totals.items()) if count)
