"""Disjoint parts: G candidates train on G parts of the data, and a part that was kept back chooses between them.

Formal guarantee: a record is in one part, and the parts do not depend on what the records hold. One in a training part
is protected by that part's run; everything else is computed from what the run released. One in the part kept back is
protected by the exponential mechanism: the chance of a candidate is proportional to exp(-eps * its errors). To add a record
adds 0 or 1 to every count, never subtracts, so that the chances move by a factor of at most e^eps (scores that move one way
need no factor 2). The whole is private with the epsilon of the two cases, which is chosen to be one and the same.

All models may be shown, but not the error counts. Each candidate learns from 1 / (G + 1) of the data: with few records
that costs more than noise.

Reference: Chaudhuri, Monteleoni, Sarwate, "Differentially private empirical risk minimization" (2011), Algorithm 3;
McSherry and Talwar (2007).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clipwise.lab.tuning.strategy import Events, Strategy, Uniform, of_one_run


@dataclass(frozen=True)
class Exponential(Strategy):
    name: ClassVar[str] = "exponential"
    summary: ClassVar[str] = "a part of the data for each candidate; the exponential mechanism on the part kept back"
    parts: ClassVar[bool] = True
    scores: ClassVar[tuple[str, ...]] = ("held-out",)

    def total(self, candidates: Sequence[Events], delta: float, accountant: str = "best") -> float:
        return of_one_run(candidates, delta, accountant)

    def select(self, scores: Sequence[float], epsilon: float, uniform: Uniform) -> int:
        """`scores` are minus the numbers of errors on the part kept back."""
        (u,) = uniform(1)
        place = np.searchsorted(np.cumsum(chances(scores, epsilon)), u, side="right")
        return int(min(place, len(scores) - 1))


def chances(scores: Sequence[float], epsilon: float) -> np.ndarray:
    """The exponential mechanism's probabilities, for scores that one record moves by at most 1, all one way."""
    exponents = epsilon * np.asarray(scores, dtype=float)
    weights = np.exp(exponents - exponents.max())
    return weights / weights.sum()
