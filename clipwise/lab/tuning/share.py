"""The share of a budget that one run gets when the budget pays for a search as well; for tables that compare at equal totals.

Nothing is searched here: the candidates are counted, all cost the same, and the noise of each follows from the strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clipwise import validate
from clipwise.lab.tuning import make_strategy
from clipwise.lab.tuning.candidates import MOST_CANDIDATES, Candidate
from clipwise.lab.tuning.planning import SearchPlan, Size, fits, make_search_plan, with_noise
from clipwise.lab.tuning.search import size_of_run
from clipwise.lab.tuning.strategy import Strategy
from clipwise.training.options import TrainConfig
from clipwise.types import BadArgument


@dataclass(frozen=True)
class Share:
    """Under which strategy a budget is shared, and among how many candidates."""

    strategy: str
    candidates: int
    uncharged: bool = False

    @staticmethod
    def read(values: Any, where: str) -> Share:
        """From a study file: { strategy = "grid-rdp", candidates = 10 }."""
        known = {"strategy", "candidates", "uncharged"}
        if not isinstance(values, Mapping) or not {"strategy", "candidates"} <= values.keys() <= known:
            raise BadArgument(
                f"{where}: tuning={values!r} does not say how the budget is shared; write "
                'tuning = { strategy = "grid-rdp", candidates = 10 }'
            )
        share = Share(values["strategy"], values["candidates"], values.get("uncharged", False))
        validate.count("tuning.candidates", share.candidates, least=2, remedy="without a search, leave tuning out")
        if share.candidates > MOST_CANDIDATES:
            raise BadArgument(f"{where}: tuning.candidates={share.candidates!r} is above {MOST_CANDIDATES}; give fewer")
        made = share.made()
        if made.parts or "public" not in made.scores or made.most_runs(share.candidates) == 1:
            raise BadArgument(
                f"{where}: tuning.strategy={share.strategy!r} does not share the budget of runs on all records; use grid-rdp, "
                "liu-talwar, repeat-select or none"
            )
        if made.charged == share.uncharged:
            raise BadArgument(
                f"{where}: tuning.uncharged={share.uncharged!r} with strategy {share.strategy!r}; say uncharged = true with "
                "strategy none, and with it alone: its search is not on the bill, and the table is stamped"
            )
        return share

    def made(self) -> Strategy:
        return make_strategy(self.strategy)

    def plan(self, config: TrainConfig, records: int) -> SearchPlan:
        """The plan of a search over runs like this (resolved) one, whose epsilon is the budget of all of it."""
        strategy, candidates, sizes, epsilon, delta = self._search(config, records)
        return make_search_plan(strategy, candidates, sizes, epsilon=epsilon, delta=delta, score="public")

    def check(self, config: TrainConfig, records: int) -> None:
        """Refuses a budget that is too small for so many candidates, in less time than a plan takes."""
        strategy, candidates, sizes, epsilon, delta = self._search(config, records)
        if not fits(strategy, candidates, sizes, epsilon=epsilon, delta=delta):
            self.plan(config, records)

    def _search(self, config: TrainConfig, records: int) -> tuple[Strategy, list[Candidate], list[Size], float, float]:
        one, size = Candidate({}, config), size_of_run(config, records)
        budget = float(config.epsilon or 0), float(config.delta or 0)
        return self.made(), [one] * self.candidates, [size] * self.candidates, *budget


def one_of(plan: SearchPlan) -> TrainConfig:
    """The options of one candidate of the search: its noise instead of the budget, its own seed."""
    config = plan.candidates[0].config
    return with_noise(config, plan.noise_multiplier, plan.delta, config.seed)
