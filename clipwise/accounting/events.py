"""What one training step costs, as plain data.

Formal guarantee: a `StepEvent` stands for `count` releases, each of which draws its own Poisson sample (every record
joins with probability `sample_rate`, independently) and adds Gaussian noise of standard deviation `noise_multiplier`
times the l2 bound of *everything* the step reads from that sample. Neighbouring data sets differ by adding or removing
one record. All queries on one sample belong to one event (see `joint.py`): sampling is outside, once.

A `FixedSizeEvent` is the same with batches of a fixed size, drawn anew each step without replacement. Its neighbours
differ in *one record replaced*, so that the two kinds have no common bound, and are never composed.

Reference: Mironov, Talwar, Zhang, "Renyi differential privacy of the sampled Gaussian mechanism" (2019).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from clipwise import validate
from clipwise.types import BadArgument

# Noise multipliers and steps that an event may state: their squares and products stay finite in float64. Chosen, not measured.
LEAST_NOISE, MOST_NOISE, MOST_STEPS = 1e-12, 1e12, 10**15


def accountable_steps(name: str, value: object, least: int = 0) -> int:
    count = validate.count(name, value, least=least)
    if count > MOST_STEPS:
        raise BadArgument(f"{name}={count} is beyond what can be accounted for; give at most {MOST_STEPS}")
    return count


@dataclass(frozen=True, slots=True)
class Event:
    """`count` subsampled Gaussian releases; the classes below say how the sample is drawn."""

    sample_rate: float
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        # Plain floats, always: dp-accounting 0.6.0 takes an int or float32 multiplier for that of a whole composition.
        rate = validate.probability(
            "sample_rate", self.sample_rate, one_allowed=True, remedy="give the chance that a record joins a batch"
        )
        noise = validate.non_negative("noise_multiplier", self.noise_multiplier, "give noise std / joint l2 bound")
        if noise and not LEAST_NOISE <= noise <= MOST_NOISE:
            raise BadArgument(
                f"noise_multiplier={noise!r} is beyond what can be accounted for; give one from {LEAST_NOISE:g} to {MOST_NOISE:g}"
            )
        object.__setattr__(self, "sample_rate", rate)
        object.__setattr__(self, "noise_multiplier", noise)
        object.__setattr__(self, "count", accountable_steps("count", self.count))


@dataclass(frozen=True, slots=True)
class StepEvent(Event):
    """`count` Poisson-subsampled Gaussian releases; a noise multiplier of 0 is allowed, and is not private."""


@dataclass(frozen=True, slots=True)
class FixedSizeEvent(Event):
    """`count` releases on batches of sample_rate * n records, each drawn without replacement.

    The noise multiplier is noise std / l2 bound of one record's part, as everywhere. To replace a record moves the sum
    by up to twice that bound: the accountant sees to it.
    """


Kind = TypeVar("Kind", bound=Event)


def merge(events: Iterable[StepEvent]) -> tuple[StepEvent, ...]:
    """One event for each distinct (rate, noise), in a fixed order: composition ignores order, and caches hit."""
    return merge_as(StepEvent, events)


def merge_as(kind: type[Kind], events: Iterable[Kind]) -> tuple[Kind, ...]:
    totals: Counter[tuple[float, float]] = Counter()
    for event in events:
        if type(event) is not kind:
            raise BadArgument(f"events: {event!r} is not a {kind.__name__}; what is sampled otherwise is not composed")
        totals[event.sample_rate, event.noise_multiplier] += event.count
    return tuple(kind(rate, noise, count) for (rate, noise), count in sorted(totals.items()) if count)
