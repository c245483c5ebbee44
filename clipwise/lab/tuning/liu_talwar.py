"""Random stopping: after each run of a random candidate a coin decides whether to stop; only the best run is shown.

Formal guarantee (Liu and Talwar, "Private selection from private candidates", 2019, Theorem 1): if a run is (eps_1,
delta_1)-private, the coin stops with probability gamma and T = ln(1 / delta_2) / gamma is a hard limit on the runs, the
best of the runs so far is (3 eps_1 + 3 sqrt(2 delta_1), 3 sqrt(2 delta_1) T + delta_2)-private. The sources disagree
about the 3 before sqrt(2 delta_1) T: this is the larger form. gamma = 1 / (2 G) gives 2 G runs on average.

The number of runs and the runs that lost must stay secret. The price is three times the epsilon of one run, at a delta_1
of about (delta / 3T)^2 / 2 (1e-17 and less), however many candidates there are; beyond some dozens it beats the grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clipwise.lab.tuning.strategy import Events, Strategy, Uniform, of_one_run
from clipwise.types import BadArgument


@dataclass(frozen=True)
class LiuTalwar(Strategy):
    name: ClassVar[str] = "liu-talwar"
    summary: ClassVar[str] = "random candidates until a coin says stop; three times the epsilon of one run"
    losers_are_public: ClassVar[bool] = False

    delta_2: float = 1e-20

    def total(self, candidates: Sequence[Events], delta: float, accountant: str = "best") -> float:
        delta_1 = self.delta_of_one_run(len(candidates), delta)
        return 3 * of_one_run(candidates, delta_1, accountant) + 3 * math.sqrt(2 * delta_1)

    def delta_of_one_run(self, candidates: int, delta: float) -> float:
        """The delta_1 with which the theorem's delta is exactly the one that was asked for."""
        if delta <= self.delta_2:
            raise BadArgument(
                f"delta={delta!r} is not above delta_2={self.delta_2!r}, the chance that liu-talwar reaches its hard limit; "
                "give a larger delta"
            )
        return ((delta - self.delta_2) / (3 * self._limit(candidates))) ** 2 / 2

    def expected_runs(self, candidates: int) -> float:
        return 2.0 * candidates

    def most_runs(self, candidates: int) -> int | None:
        return math.floor(self._limit(candidates))

    def _limit(self, candidates: int) -> float:
        return 2 * candidates * math.log(1 / self.delta_2)

    def counts(self, candidates: int, uniform: Sequence[float]) -> list[int]:
        """How many runs there are, for each of the uniform numbers: geometric, cut at the hard limit."""
        keep_on = math.log1p(-1 / (2 * candidates))
        most = self.most_runs(candidates) or 1
        return [min(most, 1 + math.floor(math.log1p(-u) / keep_on)) for u in uniform]

    def draw(self, candidates: int, uniform: Uniform) -> list[int]:
        (runs,) = self.counts(candidates, [float(u) for u in uniform(1)])
        return [int(u * candidates) for u in uniform(runs)]
