"""The contract of a tuning strategy: what a search costs in all, which runs it makes, and how it chooses.

Formal guarantee: `total(candidates, delta)` is an upper bound on epsilon, at delta, of everything that a search with these
candidates may show: the chosen run and its options, and all other runs as well if `losers_are_public`. A run's events
hold for add/remove neighbours, and so does the total. The candidates are fixed before the data is looked at, and a
run's score is a function of what the run released and of public data (or is itself noised and charged, see
`planning.py`).

A strategy is a frozen dataclass in a file of its own, and one line of the registry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from clipwise.accounting import StepEvent

Events = Sequence[StepEvent]  # what one run releases
Uniform = Callable[[int], np.ndarray]  # so many numbers in [0, 1), independent and secret


class Strategy(ABC):
    name: ClassVar[str]
    summary: ClassVar[str]
    losers_are_public: ClassVar[bool] = True  # whether runs that were not chosen may be shown, and how many there were
    charged: ClassVar[bool] = True
    parts: ClassVar[bool] = False  # whether each candidate trains on a part of the data of its own
    scores: ClassVar[tuple[str, ...]] = ("public", "held-out")  # what may choose: see `planning.py`

    @abstractmethod
    def total(self, candidates: Sequence[Events], delta: float, accountant: str = "best") -> float:
        """Epsilon of the whole search at delta; infinity where no bound holds."""

    def expected_runs(self, candidates: int) -> float:
        """How many runs on the protected data there are, on average."""
        return float(candidates)

    def most_runs(self, candidates: int) -> int | None:
        """How many there can be; None where there is no limit."""
        return candidates

    def draw(self, candidates: int, uniform: Uniform) -> list[int]:  # noqa: ARG002
        """Which candidate each run trains: by default every one, once."""
        return list(range(candidates))

    def select(self, scores: Sequence[float], epsilon: float, uniform: Uniform) -> int:  # noqa: ARG002
        """Which run is chosen, by the scores (larger is better): by default the best, and the first of equals."""
        return int(np.argmax(np.asarray(scores)))


def distinct(candidates: Sequence[Events]) -> list[tuple[StepEvent, ...]]:
    """Candidates that cost the same are looked at once: most searches have one kind."""
    return list(dict.fromkeys(tuple(events) for events in candidates))


def of_one_run(candidates: Sequence[Events], delta: float, accountant: str = "best") -> float:
    """Epsilon of the dearest candidate."""
    from clipwise.accounting import epsilon

    return max(epsilon(events, delta, accountant).value for events in distinct(candidates))
