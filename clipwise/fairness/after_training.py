"""Counts by group on the training records, as releases that follow the last step of `fit`.

    after=[group_counts(20.0, groups=..., number_of_groups=2)]

See release.py for what is released and what it costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clipwise import validate
from clipwise.fairness.evaluate import judged
from clipwise.fairness.gradients import clipped_records
from clipwise.fairness.release import CLIPPED, RIGHT, GroupCounts, Question, release_group_counts
from clipwise.loop.fit import Trained
from clipwise.types import BadArgument

Groups = Callable[[Any], Tensor]


@dataclass(frozen=True)
class CountsByGroup:
    """A yes-or-no question, counted by group."""

    name: str
    noise_multiplier: float
    groups: Groups
    number_of_groups: int
    question: Question

    def __post_init__(self) -> None:
        validate.positive(self.name, self.noise_multiplier, "give noise std / 1, such as 20")
        if self.groups is None or self.number_of_groups is None:
            raise BadArgument(
                f"{self.name}: groups={self.groups!r}, number_of_groups={self.number_of_groups!r}; give the group of each "
                "record, and how many groups there are"
            )
        validate.count("number_of_groups", self.number_of_groups)

    def release(self, trained: Trained) -> GroupCounts:
        return release_group_counts(
            *self._answers(trained),
            self.number_of_groups,
            trained.event,
            question=self.question,
            ledger=trained.ledger,
            noise=trained.noise,
            step=trained.step,
        )

    def _answers(self, trained: Trained) -> tuple[Tensor, Tensor]:
        device: torch.device = next(trained.model.parameters()).device
        if self.question is RIGHT:
            return judged(trained.model, trained.train, self.groups, device)
        return clipped_records(
            trained.model,
            trained.train,
            self.groups,
            loss=trained.loss,
            method=trained.method,
            state=trained.method_state,
            device=device,
        )


def group_counts(noise_multiplier: float, *, groups: Groups, number_of_groups: int) -> CountsByGroup:
    """On how many training records of each group the model is right."""
    return CountsByGroup("group_counts", noise_multiplier, groups, number_of_groups, RIGHT)


def clipped_counts(noise_multiplier: float, *, groups: Groups, number_of_groups: int) -> CountsByGroup:
    """How many training records of each group have a gradient that the method would clip now."""
    return CountsByGroup("clipped_counts", noise_multiplier, groups, number_of_groups, CLIPPED)
