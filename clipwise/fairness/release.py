"""A yes-or-no question by group on *protected* records, released with noise and paid for: is the model right on a record
(accuracy by group), is the record's gradient clipped (clipped share by group)?

One Gaussian release of 2K counts: of how many records of each group it is true, and of how many not. Each record is
in one group, and one of the two: its row is one-hot, so that adding or removing it moves the counts by at most 1 in l2.
All records are read, so that the event has sample rate 1, and is of the kind that the run's own steps are; it is charged
before the noise exists. The model must be one that the same ledger has paid for (or public): the counts depend on the records through
it, and that is composition.

All that follows (shares, clamping, intervals) is post-processing of the noised counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clipwise import validate
from clipwise.accounting import AnyLedger, Event
from clipwise.fairness.metrics import Measure
from clipwise.noise import Noise
from clipwise.types import BadArgument

L2_BOUND = 1.0  # of a one-hot row


class Question(NamedTuple):
    """What is counted, in words: of a record it is true of, of any other, and of the share."""

    yes: str
    no: str
    share: str


RIGHT = Question("right", "wrong", "accuracy")
CLIPPED = Question("clipped", "not_clipped", "clipped_share")


@dataclass(frozen=True)
class GroupCounts:
    """Noised counts, and nothing else."""

    question: Question
    yes: tuple[float, ...]
    no: tuple[float, ...]
    noise_multiplier: float

    def share(self, group: int) -> Measure:
        """yes / all of a group, kept within 0..1; None where the noise drowns the group."""
        everyone = self.yes[group] + self.no[group]
        if everyone <= 2 * math.sqrt(2) * self.noise_multiplier:  # two standard deviations of the sum of two counts
            return Measure(None, "the group is too small for this noise")
        return Measure(min(1.0, max(0.0, self.yes[group] / everyone)))

    def interval(self, group: int, level: float = 0.95) -> tuple[float, float] | None:
        """Where the exact share lies, with this probability over the noise (to first order)."""
        share = self.share(group).value
        if share is None:
            return None
        everyone = self.yes[group] + self.no[group]
        half = NormalDist().inv_cdf((1 + level) / 2) * self.noise_multiplier / everyone
        half *= math.sqrt(share**2 + (1 - share) ** 2)
        return max(0.0, share - half), min(1.0, share + half)

    def to_list(self, names: tuple[str, ...]) -> list[dict[str, Any]]:
        rows = []
        for place, name in enumerate(names):
            share, interval = self.share(place), self.interval(place)
            rows.append(
                {
                    "group": name,
                    self.question.yes: self.yes[place],
                    self.question.no: self.no[place],
                    self.question.share: share.value,
                    "interval": None if interval is None else list(interval),
                    **({"note": share.note} if share.note else {}),
                }
            )
        return rows


def release_group_counts(
    answers: Tensor,
    groups: Tensor,
    number_of_groups: int,
    event: Event,
    *,
    question: Question = RIGHT,
    ledger: AnyLedger,
    noise: Noise,
    step: int,
) -> GroupCounts:
    """Charge, then count with noise. `answers` answers the question for each record; `step` numbers the release in ledger and
    noise, after all steps of the run."""
    validate.positive("group_counts", event.noise_multiplier, "give noise std / 1, such as 20")
    validate.count("number_of_groups", number_of_groups)
    if answers.dim() != 1 or groups.shape != answers.shape:
        raise BadArgument(f"groups: shape {tuple(groups.shape)} for {tuple(answers.shape)} answers; give one a record")
    place = groups.long().clamp(0, number_of_groups - 1)  # a strange label joins a neighbour, and stays one-hot
    place = place + number_of_groups * (~answers.bool()).long()
    ledger.charge(step, event, note={"release": f"counts {question.yes} and {question.no} by group"})
    counts = torch.bincount(place, minlength=2 * number_of_groups).double()
    (noised,) = noise.add([counts], event.noise_multiplier * L2_BOUND, step=step)
    values = noised.tolist()
    yes, no = values[:number_of_groups], values[number_of_groups:]
    return GroupCounts(question, tuple(yes), tuple(no), event.noise_multiplier)
