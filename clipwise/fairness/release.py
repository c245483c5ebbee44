"""Accuracy by group on *protected* records, released with noise and paid for.

One Gaussian release of 2K counts: how many records of each group the model is right on, and how many not. Each record is
in one group, and right or not: its row is one-hot, so that adding or removing it moves the counts by at most 1 in l2.
All records are read, so that the event has sample rate 1: `StepEvent(1, noise_multiplier)`, charged before the noise
exists. The model must be one that the same ledger has paid for (or public): the counts depend on the records through
it, and that is composition.

All that follows (shares, clamping, intervals) is post-processing of the noised counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from clipwise import validate
from clipwise.accounting import StepEvent
from clipwise.accounting.ledger import Ledger
from clipwise.fairness.metrics import Measure
from clipwise.noise import GaussianNoise
from clipwise.types import BadArgument

L2_BOUND = 1.0  # of a one-hot row


def count_event(noise_multiplier: float) -> StepEvent:
    """What the release costs, known before it is made."""
    return StepEvent(1.0, validate.positive("group_counts", noise_multiplier, "give noise std / 1, such as 20"))


@dataclass(frozen=True)
class GroupCounts:
    """Noised counts, and nothing else."""

    right: tuple[float, ...]
    wrong: tuple[float, ...]
    noise_multiplier: float

    def accuracy(self, group: int) -> Measure:
        """right / all of a group, kept within 0..1; None where the noise drowns the group."""
        everyone = self.right[group] + self.wrong[group]
        if everyone <= 2 * math.sqrt(2) * self.noise_multiplier:  # two standard deviations of the sum of two counts
            return Measure(None, "the group is too small for this noise")
        return Measure(min(1.0, max(0.0, self.right[group] / everyone)))

    def interval(self, group: int, level: float = 0.95) -> tuple[float, float] | None:
        """Where the exact accuracy lies, with this probability over the noise (to first order)."""
        accuracy = self.accuracy(group).value
        if accuracy is None:
            return None
        everyone = self.right[group] + self.wrong[group]
        half = NormalDist().inv_cdf((1 + level) / 2) * self.noise_multiplier / everyone
        half *= math.sqrt(accuracy**2 + (1 - accuracy) ** 2)
        return max(0.0, accuracy - half), min(1.0, accuracy + half)

    def to_list(self, names: tuple[str, ...]) -> list[dict[str, Any]]:
        rows = []
        for place, name in enumerate(names):
            accuracy, interval = self.accuracy(place), self.interval(place)
            rows.append(
                {
                    "group": name,
                    "right": self.right[place],
                    "wrong": self.wrong[place],
                    "accuracy": accuracy.value,
                    "interval": None if interval is None else list(interval),
                    **({"note": accuracy.note} if accuracy.note else {}),
                }
            )
        return rows


def release_group_counts(
    right: Tensor,
    groups: Tensor,
    number_of_groups: int,
    noise_multiplier: float,
    *,
    ledger: Ledger,
    noise: GaussianNoise,
    step: int,
) -> GroupCounts:
    """Charge, then count with noise. `right` says of each record whether the model is right; `step` numbers the release
    in ledger and noise, after all steps of the run."""
    event = count_event(noise_multiplier)
    validate.count("number_of_groups", number_of_groups)
    if right.dim() != 1 or groups.shape != right.shape:
        raise BadArgument(f"groups: shape {tuple(groups.shape)} for {tuple(right.shape)} answers; give one a record")
    place = groups.long().clamp(0, number_of_groups - 1)  # a strange label joins a neighbour, and stays one-hot
    place = place + number_of_groups * (~right.bool()).long()
    ledger.charge(step, event, note={"release": "counts right and wrong by group"})
    counts = torch.bincount(place, minlength=2 * number_of_groups).double()
    (noised,) = noise.add([counts], noise_multiplier * L2_BOUND, step=step)
    values = noised.tolist()
    return GroupCounts(tuple(values[:number_of_groups]), tuple(values[number_of_groups:]), float(noise_multiplier))
