"""The plan: one frozen value from which sampler, noise and ledger event are made together.

The joint guarantee. A step releases the weighted gradient sum and the method's side queries, all on one Poisson
batch, each with Gaussian noise of std = (its multiplier) x (its l2 bound). Divide each by its std: one record moves
the stacked vector by at most sqrt(sum_k sigma_k^-2), so the step is one Gaussian release with multiplier sigma_eff =
(sum_k sigma_k^-2)^(-1/2), subsampled *once* at the plan's rate (Poisson, add/remove-one neighbours). The plan gives
each side query the multiplier it asks for and the gradient the rest, so that sigma_eff is the total that was stated
or calibrated, times the schedule's factor for the step. The event depends on the plan alone: what a run will cost is
known before it begins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from clipwise import validate
from clipwise.accounting import ACCOUNTANTS, StepEvent, within
from clipwise.accounting.calibrate import calibrate_shape
from clipwise.accounting.joint import gradient_share
from clipwise.clipping import Context, Method
from clipwise.schedules import Schedule, ScheduleLike, make_schedule
from clipwise.types import BadArgument, SideQuery


class Shares(NamedTuple):
    """Noise of one step: the joint multiplier, the gradient's, and the side queries with theirs."""

    total: float
    gradient: float
    sides: tuple[SideQuery, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    method: Method
    sample_rate: float
    expected_batch_size: float
    noise_multiplier: float  # the total, noise std / joint l2 bound, before the schedule's factor
    parameters: int  # numbers that are trained
    schedule: Schedule = field(default_factory=Schedule)
    steps: int | None = None  # planned; None where the user goes on as long as they like
    delta: float | None = None
    target_epsilon: float | None = None
    accountant: str = "best"
    learning_rate: float = 0.0  # the optimizer's, where a method that learns it starts
    size: int | None = None  # of the data set, where it is treated as public
    after: tuple[StepEvent, ...] = ()  # releases that follow the last step, paid for from the same budget

    def __post_init__(self) -> None:
        validate.probability(
            "sample_rate", self.sample_rate, one_allowed=True, remedy="it is expected_batch_size / size of the data set"
        )
        validate.positive("expected_batch_size", self.expected_batch_size)
        validate.non_negative("noise_multiplier", self.noise_multiplier)
        validate.count("parameters", self.parameters)
        validate.choice("accountant", self.accountant, ACCOUNTANTS)
        if self.steps is not None:
            validate.count("steps", self.steps)
        if self.delta is not None:
            check_delta(self.delta, self.size)
        if self.method.sound:  # a side query that leaves no room, at any step, is refused now
            try:
                gradient_share(self.context.noise_multiplier, [s.noise_multiplier for s in self.side_queries])
            except BadArgument as problem:
                raise BadArgument(
                    f"method={self.method.name!r} with expected_batch_size={self.expected_batch_size:g} and noise_multiplier="
                    f"{self.context.noise_multiplier:g}: what it releases beside the gradient would take all of the noise budget. Use a "
                    f"larger batch, a larger epsilon (less noise), or another method ({problem})"
                ) from problem
        self.method.init(self.context)  # what a method or a schedule cannot run with is refused before a ledger is made
        self.total(0)

    @property
    def context(self) -> Context:
        largest = self.noise_multiplier * self.schedule.largest
        return Context(
            self.expected_batch_size,
            largest,
            self.parameters,
            self.steps or 0,
            self.sample_rate,
            self.learning_rate,
        )

    @property
    def side_queries(self) -> tuple[SideQuery, ...]:
        return self.method.side_queries(self.context)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(1 / self.sample_rate - 1e-9)

    def total(self, step: int) -> float:
        """The noise multiplier of everything that this step releases."""
        return self.noise_multiplier * _factor(self.method, self.schedule, self.context, step)

    def shares(self, step: int) -> Shares:
        total, sides = self.total(step), self.side_queries
        if not self.method.sound:  # no split of the noise would make it private
            return Shares(total, total, sides)
        return Shares(total, gradient_share(total, [side.noise_multiplier for side in sides]), sides)

    def event(self, step: int) -> StepEvent:
        """What this step costs, known before it is taken: without bound for a method without a valid guarantee."""
        return StepEvent(self.sample_rate, self.total(step) if self.method.sound else 0.0)


def make_plan(
    *,
    method: Method,
    parameters: int,
    sample_rate: float,
    expected_batch_size: float,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float | None,
    epochs: float | None,
    accountant: str,
    size: int | None,
    schedule: ScheduleLike = None,
    learning_rate: float = 0.0,
    after: tuple[StepEvent, ...] = (),
) -> Plan:
    """A plan from a target epsilon (the noise is calibrated) or from a noise multiplier. Checks before anything is
    spent."""
    validate.choice("accountant", accountant, ACCOUNTANTS)
    validate.probability(
        "sample_rate", sample_rate, one_allowed=True, remedy="it is expected_batch_size / size of the data set"
    )
    validate.positive("expected_batch_size", expected_batch_size)
    if (epsilon is None) == (noise_multiplier is None):
        raise BadArgument(f"epsilon={epsilon!r} and noise_multiplier={noise_multiplier!r}: give exactly one of the two")
    if epochs is not None:
        validate.positive("epochs", epochs, "give the number of passes over the data that are planned")
    if delta is not None:
        check_delta(delta, size)
    steps = None if epochs is None else max(1, round(epochs * math.ceil(1 / sample_rate - 1e-9)))
    made_schedule = make_schedule(schedule, epochs=epochs)
    if epsilon is not None:
        validate.positive("epsilon", epsilon, "give a finite target above 0, such as 3.0")
        if delta is None:
            raise BadArgument(
                "delta=None: a target epsilon holds at some delta; give one well below 1 / size of the data set, such as 1e-5"
            )
        if steps is None:
            raise BadArgument(
                "epochs=None: the noise for a target epsilon depends on the number of steps; give the epochs that are planned"
            )
        context = Context(expected_batch_size, 0.0, parameters, steps, sample_rate)
        if after and not within(list(after), delta, epsilon, accountant):
            raise BadArgument(
                f"epsilon={epsilon!r}: the releases after training alone cost more; give them more noise, or a larger epsilon"
            )
        runs = noise_runs(method, made_schedule, context)
        noise_multiplier = calibrate_shape(
            epsilon, delta, lambda noise: [*(StepEvent(sample_rate, noise * f, n) for f, n in runs), *after], accountant
        )
    return Plan(
        method=method,
        sample_rate=sample_rate,
        expected_batch_size=expected_batch_size,
        noise_multiplier=noise_multiplier,  # type: ignore[arg-type]  # one of the two is given
        parameters=parameters,
        schedule=made_schedule,
        steps=steps,
        delta=delta,
        target_epsilon=epsilon,
        accountant=accountant,
        learning_rate=learning_rate,
        size=size,
        after=after,
    )


def _factor(method: Method, schedule: Schedule, context: Context, step: int) -> float:
    own = method.noise_factor(context, step)
    if not 0 < own <= 1:
        raise BadArgument(f"method {method.name!r}: noise_factor={own!r} at step {step} must lie in (0, 1]")
    return own * schedule.factor(step, sample_rate=context.sample_rate, steps=context.steps or None)


def noise_runs(method: Method, schedule: Schedule, context: Context) -> list[tuple[float, int]]:
    """(factor, how many steps in a row have it) over the planned steps."""
    if type(method).noise_factor is Method.noise_factor:
        return schedule.runs(context.steps, context.sample_rate)
    factors = (_factor(method, schedule, context, step) for step in range(context.steps))
    return [(factor, sum(1 for _ in same)) for factor, same in groupby(factors)]


def check_delta(delta: float, size: int | None) -> float:
    validate.probability("delta", delta, one_allowed=False, remedy="give a small probability such as 1e-5")
    if size is not None and delta >= 1 / size:
        raise BadArgument(
            f"delta={delta!r} is not below 1 / {size}, the size of the data set: publishing one random record would satisfy it; "
            f"give at most {1 / (10 * size):.1g}"
        )
    return delta
