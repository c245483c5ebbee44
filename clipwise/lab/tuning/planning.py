"""The plan of a search: how many runs, the noise that each gets, and what all of it costs. Nothing is spent yet.

What chooses is charged like everything else. A score on *public* data is free. A score on *held-out* records, which are
protected too, is a count of errors with Gaussian noise: a record either trains or scores, so that the noise of the scores is
calibrated by the same strategy, with one Gaussian release a run, to the same total. (`exponential` needs no noise: its
choice itself is random.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clipwise import validate
from clipwise.accounting import StepEvent
from clipwise.accounting.joint import gradient_share
from clipwise.lab.tuning.calibrate import MOST_NOISE, Shape, smallest_noise
from clipwise.lab.tuning.candidates import Candidate
from clipwise.lab.tuning.grid import GridRdp
from clipwise.lab.tuning.strategy import Strategy, of_one_run
from clipwise.training.options import TrainConfig
from clipwise.types import BadArgument


@dataclass(frozen=True)
class Size:
    """Of one run: records that train, expected batch size, steps, and the passes over the data that they make."""

    records: int
    batch: int
    steps: int
    epochs: float

    @property
    def sample_rate(self) -> float:
        return min(1.0, self.batch / self.records)


@dataclass(frozen=True)
class SearchPlan:
    strategy: Strategy
    candidates: tuple[Candidate, ...]
    score: str  # "public" or "held-out"
    noise_multiplier: float
    score_noise: float | None  # standard deviation on a count of errors
    target_epsilon: float
    delta: float
    epsilon_per_run: float  # of one run, as if there had been no search
    epsilon_total: float  # of everything that may be shown
    epsilon_composed: float  # if all runs on the protected data, as many as expected, were shown
    noise_multiplier_untuned: float  # with which a single run would spend the target

    @property
    def runs(self) -> float:
        return self.strategy.expected_runs(len(self.candidates))

    @property
    def runs_at_most(self) -> int | None:
        return self.strategy.most_runs(len(self.candidates))

    def to_dict(self) -> dict[str, Any]:
        runs = self.runs
        return {
            "strategy": self.strategy.name,
            "candidates": len(self.candidates),
            "runs": int(runs) if runs == int(runs) else runs,
            "runs_at_most": self.runs_at_most,
            "runs_are_secret": not self.strategy.losers_are_public,
            "noise_multiplier": self.noise_multiplier,
            "noise_multiplier_without_search": self.noise_multiplier_untuned,
            "score": self.score,
            "score_noise": self.score_noise,
            "epsilon_per_run": self.epsilon_per_run,
            "epsilon_total": self.epsilon_total,
            "epsilon_if_all_were_shown": self.epsilon_composed,
            "target_epsilon": self.target_epsilon,
            "delta": self.delta,
            "charged": self.strategy.charged,
        }


def make_search_plan(
    strategy: Strategy,
    candidates: Sequence[Candidate],
    sizes: Sequence[Size],
    *,
    epsilon: float,
    delta: float,
    score: str,
) -> SearchPlan:
    """`sizes` belong to the candidates, one by one."""
    target = validate.positive("epsilon", epsilon, "give the budget of the whole search, such as 3")
    delta = validate.probability("delta", delta, one_allowed=False, remedy="give one well below 1 / number of records")
    if score not in strategy.scores:
        raise BadArgument(
            f"score={score!r} does not go with strategy={strategy.name!r}; use {' or '.join(strategy.scores)}"
        )
    shapes, most_noise = _shapes(candidates, sizes)
    noise = smallest_noise(strategy, shapes, target, delta, most_noise)
    events = [shape(noise) for shape in shapes]
    score_noise = None
    total = strategy.total(events, delta)
    if score == "held-out" and not strategy.parts:
        one_release: Shape = lambda std: [StepEvent(1.0, std)]  # noqa: E731
        score_noise = smallest_noise(strategy, [one_release] * len(events), target, delta)
        total = max(total, strategy.total([one_release(score_noise)] * len(events), delta))
    runs = math.ceil(strategy.expected_runs(len(events)))
    composed = total
    if not strategy.parts:
        composed = GridRdp().total([events[i % len(events)] for i in range(runs)], delta)
    return SearchPlan(
        strategy=strategy,
        candidates=tuple(candidates),
        score=score,
        noise_multiplier=noise,
        score_noise=score_noise,
        target_epsilon=target,
        delta=delta,
        epsilon_per_run=of_one_run(events, delta),
        epsilon_total=total,
        epsilon_composed=composed,
        noise_multiplier_untuned=max(
            smallest_noise(GridRdp(), [shape], target, delta) for shape in dict.fromkeys(shapes)
        ),
    )


def fits(
    strategy: Strategy, candidates: Sequence[Candidate], sizes: Sequence[Size], *, epsilon: float, delta: float
) -> bool:
    """Whether there is a plan, by the quick accountant: if this says no, `make_search_plan` may still find one."""
    shapes, most_noise = _shapes(candidates, sizes)
    events = {shape: shape(most_noise) for shape in dict.fromkeys(shapes)}
    return strategy.total([events[shape] for shape in shapes], delta, "rdp") <= epsilon


def _shapes(candidates: Sequence[Candidate], sizes: Sequence[Size]) -> tuple[list[Shape], float]:
    """What each candidate releases, and the most noise with which all of them learn."""
    known: dict[Any, Shape] = {}  # candidates that cost the same share a shape, and so are computed once
    same: dict[Any, tuple[Shape, float]] = {}  # by the objects themselves: a share has one candidate, many times
    for candidate, size in zip(candidates, sizes, strict=True):
        key = id(candidate), id(size)
        if key not in same:
            same[key] = _shape(candidate.config, size, known), _most_noise(candidate.config, size)
    pairs = [same[id(candidate), id(size)] for candidate, size in zip(candidates, sizes, strict=True)]
    return [shape for shape, _ in pairs], min(most for _, most in pairs)


def _shape(config: TrainConfig, size: Size, known: dict[Any, Shape]) -> Shape:
    from clipwise.plans import noise_runs
    from clipwise.schedules import make_schedule

    rate = size.sample_rate
    schedule = make_schedule(config.schedule, epochs=size.epochs)
    runs = tuple(noise_runs(_method(config), schedule, _context(size, 0.0)))
    return known.setdefault(
        (rate, runs), lambda noise: [StepEvent(rate, noise * factor, steps) for factor, steps in runs]
    )


def _most_noise(config: TrainConfig, size: Size) -> float:
    """The most noise with which anything is learnt. At the batch size, the noise in each coordinate of the mean gradient is as
    large as the longest mean gradient there can be; and a method's side queries, whose noise may be fixed, leave no room for
    the gradient above some total."""
    from clipwise.schedules import make_schedule

    method, largest = _method(config), make_schedule(config.schedule, epochs=size.epochs).largest

    def leaves_noise(log_noise: float) -> bool:
        total = math.exp(log_noise) * largest
        sides = method.side_queries(_context(size, total))
        try:
            gradient_share(total, [side.noise_multiplier for side in sides])
        except BadArgument:
            return False
        return True

    low, high = math.log(1e-2), math.log(min(MOST_NOISE, max(1, size.batch)))
    if leaves_noise(high):
        return math.exp(high)
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if leaves_noise(middle) else (low, middle)
    return math.exp(low)


def _method(config: TrainConfig) -> Any:
    from clipwise.clipping import METHODS, make_method

    options = config.method_options
    if METHODS[config.method].needs_groups:  # as many as there are classes; the cost does not depend on how many
        options = {"number_of_groups": 2, **options}
    return make_method(config.method, **options)


def _context(size: Size, noise: float) -> Any:
    from clipwise.clipping import Context

    return Context(float(size.batch), noise, 1, size.steps, size.sample_rate)


def with_noise(config: TrainConfig, noise_multiplier: float, delta: float, seed: int | None) -> TrainConfig:
    """The options of one run of the search."""
    return config.model_copy(
        update={"epsilon": None, "noise_multiplier": noise_multiplier, "delta": delta, "seed": seed}
    )
