"""Two strategies whose search is not on the protected data's bill: one rightly, one not.

`public`: the candidates train and are scored on public data; the chosen options then train once on the protected data, and
that run is all that is charged. `none`: the candidates train on the protected data, and only the chosen run is counted, as
most papers do. That is no guarantee for the choice, so that it takes `uncharged`, and every statement is stamped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clipwise.lab.tuning.strategy import Events, Strategy, of_one_run


@dataclass(frozen=True)
class Public(Strategy):
    name: ClassVar[str] = "public"
    summary: ClassVar[str] = "candidates train on public data; one run on the protected data"
    scores: ClassVar[tuple[str, ...]] = ("public",)

    def total(self, candidates: Sequence[Events], delta: float, accountant: str = "best") -> float:
        return of_one_run(candidates, delta, accountant)

    def expected_runs(self, candidates: int) -> float:  # noqa: ARG002
        return 1.0

    def most_runs(self, candidates: int) -> int | None:  # noqa: ARG002
        return 1


@dataclass(frozen=True)
class Uncharged(Strategy):
    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "every candidate once, only the chosen run counted: the search is NOT covered"
    charged: ClassVar[bool] = False
    scores: ClassVar[tuple[str, ...]] = ("public",)

    def total(self, candidates: Sequence[Events], delta: float, accountant: str = "best") -> float:
        return of_one_run(candidates, delta, accountant)
