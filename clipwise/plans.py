"""The plan: one frozen value from which sampler, noise, event and split are made together.

The joint guarantee. A step releases the weighted gradient sum and the method's side queries, all on one batch, each with
Gaussian noise of std = (its multiplier) x (its l2 bound). Divide each by its std: one record moves the stacked vector by
at most sqrt(sum_k sigma_k^-2), so the step is one Gaussian release with multiplier sigma_eff = (sum_k sigma_k^-2)^(-1/2),
subsampled *once*, as the plan's sampler draws. The plan gives each side query the multiplier it asks for and the gradient
the rest, so that sigma_eff is the total that was stated or calibrated, times the schedule's factor for the step. The event
depends on the plan alone: what a run will cost is known before it begins.

A sampler and its event are a pair (`SAMPLING`): nothing draws batches in one way and accounts for another.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from clipwise import validate
from clipwise.accounting import ACCOUNTANTS, Event, FixedSizeEvent, StepEvent, within
from clipwise.accounting.calibrate import calibrate, calibrate_shape
from clipwise.accounting.joint import gradient_share
from clipwise.clipping import Context, Method, Unclipped, make_method
from clipwise.mechanism import Mechanism
from clipwise.sampling import FixedSizeSampler, PoissonSampler, Sampler
from clipwise.schedules import Schedule, make_schedule
from clipwise.types import BadArgument, SideQuery


class Pair(NamedTuple):
    """How batches are drawn, and what a step on such a batch costs."""

    sampler: type[Sampler]
    event: type[Event]
    neighbours: str
    words: str


SAMPLING = {
    "poisson": Pair(
        PoissonSampler,
        StepEvent,
        "add or remove one record",
        "Poisson: each record joins each batch with probability q, independently",
    ),
    "fixed-size": Pair(
        FixedSizeSampler,
        FixedSizeEvent,
        "replace one record",
        "of a fixed size, without replacement: q of the records, drawn anew for each batch, all subsets alike",
    ),
}


# Of a private number of records: the count alone may cost this share of the target epsilon. Noise adds up in squares, so
# that it takes little of the budget: with 50,000 records, batches of 256, 10 epochs and delta 1e-5 the training's noise grows by
# 0.4 % at epsilon 1 and by 0.2 % at 3 and 8, and the count is off by 31, 11 and 5 records (one standard deviation).
COUNT_SHARE = 0.1
COUNT_NOISE = 20.0  # its std in records where no epsilon is stated: it costs 0.16 by itself, at delta 1e-5


class Counted(NamedTuple):
    """A private number of records, as it was released: with Gaussian noise, and charged."""

    records: int
    event: Event


class Phase(NamedTuple):
    """What comes before the first step, on the same records and from the same budget: one release on all of them, or so many
    steps on sampled batches at so many times the noise of the run's own."""

    name: str
    noise_multiplier: float  # noise std / l2 bound of a release; of steps, over the run's own noise multiplier
    steps: int = 0  # none: one release on all records
    part: float = 1.0  # of steps: their batches over the run's own


class Facts(NamedTuple):
    """What the mechanism meets, all of it public or treated as such: the records, the model and the loop."""

    size: int  # records
    parameters: int  # numbers that are trained
    batch_size: int | None = None  # the loader's, where the mechanism states none
    learning_rate: float = 0.0  # the optimizer's, where a method that learns it starts
    after: tuple[float, ...] = ()  # noise multipliers of releases on all records that follow the last step
    counted: Counted | None = None  # where the number of records is private, which `size` then is
    before: tuple[Phase, ...] = ()

    @property
    def records(self) -> int:
        """As far as it may be known."""
        return self.size if self.counted is None else self.counted.records


class Shares(NamedTuple):
    """Noise of one step: the joint multiplier, the gradient's, and the side queries with theirs."""

    total: float
    gradient: float
    sides: tuple[SideQuery, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    method: Method
    sampler: Sampler
    expected_batch_size: float
    noise_multiplier: float  # the total, noise std / joint l2 bound, before the schedule's factor
    parameters: int  # numbers that are trained
    sampling: str = "poisson"
    schedule: Schedule = field(default_factory=Schedule)
    steps: int | None = None  # planned; None where the user goes on as long as they like
    delta: float | None = None
    target_epsilon: float | None = None
    accountant: str = "best"
    learning_rate: float = 0.0  # the optimizer's, where a method that learns it starts
    size_is_public: bool = True
    counted: Counted | None = None  # where it is private, and rate and steps follow from a noisy count
    prepared: tuple[Event, ...] = ()  # what the records were prepared with, charged before this plan was made
    before: tuple[Event, ...] = ()  # what comes before the first step, an event a phase, and
    after: tuple[Event, ...] = ()  # releases that follow the last one, all paid for from the same budget
    unit: str = Mechanism.model_fields["unit"].default

    def __post_init__(self) -> None:
        validate.positive("expected_batch_size", self.expected_batch_size)
        validate.non_negative("noise_multiplier", self.noise_multiplier)
        validate.count("parameters", self.parameters)
        validate.choice("accountant", self.accountant, ACCOUNTANTS)
        validate.choice("sampling", self.sampling, SAMPLING)
        if self.steps is not None:
            validate.count("steps", self.steps)
        if self.method.sound:  # a side query that leaves the gradient nothing, at any step, is refused now
            try:
                gradient_share(self.context.noise_multiplier, [s.noise_multiplier for s in self.side_queries])
            except BadArgument as problem:
                raise BadArgument(
                    f"method={self.method.name!r} with expected_batch_size={self.expected_batch_size:g} and noise_multiplier="
                    f"{self.context.noise_multiplier:g}: what it releases beside the gradient would take all of the noise budget. Use a "
                    f"larger batch, a larger epsilon (less noise), or another method ({problem})"
                ) from problem
        if self.method.normalise and not self.method.sound:
            raise BadArgument(
                f"normalise=True: method {self.method.name!r} has no bound to divide by; leave normalise out"
            )
        self.method.init(self.context)  # what a method or a schedule cannot run with is refused before a ledger is made
        self.total(0)

    @property
    def private(self) -> bool:
        """Whether gradients are clipped and noised at all (by a sound method or not)."""
        return not isinstance(self.method, Unclipped)

    @property
    def sample_rate(self) -> float:
        return self.sampler.sample_rate

    @property
    def neighbours(self) -> str:
        return SAMPLING[self.sampling].neighbours

    @cached_property
    def context(self) -> Context:
        largest = self.noise_multiplier * self.schedule.largest
        return Context(
            self.expected_batch_size,
            largest,
            self.parameters,
            self.steps or 0,
            self.sample_rate,
            self.learning_rate,
            self.schedule,
        )

    @cached_property
    def side_queries(self) -> tuple[SideQuery, ...]:
        return self.method.side_queries(self.context)

    @property
    def steps_per_epoch(self) -> int:
        return _batches_of_a_pass(self.sample_rate)

    @cached_property
    def constant(self) -> bool:
        """Whether every step has the same noise, and so costs the same."""
        return type(self.method).noise_factor is Method.noise_factor and self.schedule.kind == "constant"

    @cached_property
    def _first(self) -> tuple[Shares, Event]:
        return self._shares(0), self._event(0)

    def total(self, step: int) -> float:
        """The noise multiplier of everything that this step releases."""
        return self.noise_multiplier * _factor(self.method, self.schedule, self.context, step)

    def shares(self, step: int) -> Shares:
        return self._first[0] if self.constant else self._shares(step)

    def _shares(self, step: int) -> Shares:
        total, sides = self.total(step), self.side_queries
        if not self.method.sound:  # no split of the noise would make it private
            return Shares(total, total, sides)
        return Shares(total, gradient_share(total, [side.noise_multiplier for side in sides]), sides)

    def event(self, step: int) -> Event:
        """What this step costs, known before it is taken: without bound for a method without a valid guarantee."""
        return self._first[1] if self.constant else self._event(step)

    def _event(self, step: int) -> Event:
        return SAMPLING[self.sampling].event(self.sample_rate, self.total(step) if self.method.sound else 0.0)

    def coming(self, first: int, count: int) -> list[Event]:
        """The cost of so many steps from the first on, equal neighbours as one."""
        if self.constant:
            return [SAMPLING[self.sampling].event(self.sample_rate, self.event(first).noise_multiplier, count)]
        return [self.event(first + i) for i in range(count)]


def make(mechanism: Mechanism, facts: Facts, *, spent: Sequence[Event] = (), taken: int = 0) -> Plan:
    """The plan of a mechanism on these facts, from a target epsilon (the noise is calibrated) or from a noise multiplier.
    Checks before anything is spent. `spent` has been charged already, and `taken` steps are done: of a run that goes on,
    whose remaining steps must fit into what is left."""
    method, pair = method_of(mechanism), SAMPLING[mechanism.sampling]
    sampler, batch = _sampler(mechanism, facts, pair)
    public = facts.counted is None and (mechanism.sample_rate is None or mechanism.expected_batch_size is None)
    if mechanism.delta is not None:
        check_delta(mechanism.delta, facts.size if public else None)
    steps = _planned_steps(mechanism, sampler)
    schedule = make_schedule(mechanism.schedule, epochs=mechanism.epochs)
    after = tuple(pair.event(1.0, noise) for noise in facts.after)
    noise = mechanism.noise_multiplier
    if not mechanism.private:
        noise = 0.0
    elif noise is None:
        context = Context(float(batch), 0.0, facts.parameters, steps or 0, sampler.sample_rate)
        left = functools.cache(
            functools.partial(_factors_left, method, context, taken)
        )  # asked for at every noise tried
        factors = lambda noise: left(schedule.settled(noise, mechanism.epochs))  # noqa: E731
        shape = _shape(mechanism, pair.event, sampler, factors, (*spent, *after), steps, facts.before)
        noise = calibrate_shape(mechanism.epsilon, mechanism.delta, shape, mechanism.accountant)  # type: ignore[arg-type]  # _shape refuses None
    return Plan(
        method=method,
        sampler=sampler,
        sampling=mechanism.sampling,
        expected_batch_size=float(batch),
        noise_multiplier=noise,
        parameters=facts.parameters,
        schedule=schedule.settled(noise, mechanism.epochs),
        steps=steps,
        delta=mechanism.delta,
        target_epsilon=mechanism.epsilon,
        accountant=mechanism.accountant,
        learning_rate=facts.learning_rate,
        size_is_public=public,
        counted=facts.counted,
        before=_events_before(facts.before, pair.event, sampler, noise),
        after=after,
        unit=mechanism.unit,
    )


def method_of(mechanism: Mechanism) -> Method:
    """The method that a mechanism names or holds, after refusing one without a guarantee."""
    method = mechanism.method
    if isinstance(method, str):
        method = make_method(method, **mechanism.method_options)
    if not mechanism.private:
        return Unclipped()
    if not isinstance(method, Method):
        raise BadArgument(f"method={method!r}: give a name with its options, or a method object that holds them")
    if not method.sound and not mechanism.allow_unsound:
        raise BadArgument(
            f"method {method.name!r} has no valid guarantee; give allow_unsound=True (--allow-unsound) to run it all "
            f"the same, with an infinite epsilon{'' if method.alternative is None else f', or use {method.alternative!r}'}"
        )
    return method


def _sampler(mechanism: Mechanism, facts: Facts, pair: Pair) -> tuple[Sampler, float]:
    """The sampler, and the expected batch size."""
    batch = facts.batch_size if mechanism.expected_batch_size is None else mechanism.expected_batch_size
    batch = validate.positive("expected_batch_size", batch, "give the expected number of records in a batch")
    rate = mechanism.sample_rate
    if facts.counted is not None:
        rate = min(1.0, batch / max(1, facts.counted.records))
    elif rate is None:
        rate = batch / facts.size
        if rate > 1:
            raise BadArgument(
                f"expected_batch_size={batch:g} is above the {facts.size} records of the data set; give at most that many"
            )
    return pair.sampler(facts.size, rate), batch


def count_event(mechanism: Mechanism) -> Event:
    """What the count of a private number of records costs: one Gaussian release on all of them, which one record moves by
    1. Refuses first what no count could make right, because the count is charged before the plan is made."""
    method_of(mechanism)
    make_schedule(mechanism.schedule, epochs=mechanism.epochs)
    noise = COUNT_NOISE
    if mechanism.noise_multiplier is None:
        target, delta = _target(mechanism, mechanism.epochs)
        noise = calibrate(COUNT_SHARE * target, delta, 1.0, 1, mechanism.accountant)
    return StepEvent(1.0, noise)


def _shape(
    mechanism: Mechanism,
    kind: type[Event],
    sampler: Sampler,
    factors: Callable[[float], Sequence[tuple[float, int]]],
    others: tuple[Event, ...],
    steps: int | None,
    before: tuple[Phase, ...] = (),
) -> Callable[[float], list[Event]]:
    """All that the run will have been charged, as a function of its noise multiplier."""
    target, delta = _target(mechanism, steps)
    releases = [*others, *_events_before(tuple(p for p in before if not p.steps), kind, sampler, 0.0)]
    if releases and not within(releases, delta, target, mechanism.accountant):
        raise BadArgument(
            f"epsilon={target!r}: the releases after training alone cost more, or what comes or was charged before; give "
            "them more noise, or state a larger epsilon"
        )
    return lambda noise: [
        *(kind(sampler.sample_rate, noise * factor, count) for factor, count in factors(noise)),
        *_events_before(before, kind, sampler, noise),
        *others,
    ]


def _events_before(before: tuple[Phase, ...], kind: type[Event], sampler: Sampler, noise: float) -> tuple[Event, ...]:
    return tuple(
        kind(sampler.smaller(phase.part).sample_rate, noise * phase.noise_multiplier, phase.steps)
        if phase.steps
        else kind(1.0, phase.noise_multiplier)
        for phase in before
    )


def length(mechanism: Mechanism, facts: Facts) -> tuple[float, int | None]:
    """Sample rate and planned steps of a run, before its noise is known."""
    sampler, _ = _sampler(mechanism, facts, SAMPLING[mechanism.sampling])
    return sampler.sample_rate, _planned_steps(mechanism, sampler)


def _planned_steps(mechanism: Mechanism, sampler: Sampler) -> int | None:
    if mechanism.epochs is None:
        return None
    return max(1, round(mechanism.epochs * _batches_of_a_pass(sampler.sample_rate)))


def _target(mechanism: Mechanism, steps: float | None) -> tuple[float, float]:
    """Epsilon and delta, after refusing a target without all that it needs."""
    if mechanism.epsilon is None:
        raise BadArgument("epsilon=None and noise_multiplier=None: give exactly one of the two, such as epsilon=3.0")
    if mechanism.delta is None:
        raise BadArgument(
            "delta=None: a target epsilon holds at some delta; give one well below 1 / size of the data set, such as 1e-5"
        )
    if steps is None:
        raise BadArgument(
            "epochs=None: the noise for a target epsilon depends on the number of steps; give the epochs that are planned"
        )
    return mechanism.epsilon, mechanism.delta


def _factor(method: Method, schedule: Schedule, context: Context, step: int) -> float:
    own = method.noise_factor(context, step)
    if not 0 < own <= 1:
        raise BadArgument(f"method {method.name!r}: noise_factor={own!r} at step {step} must lie in (0, 1]")
    return own * schedule.factor(step, sample_rate=context.sample_rate, steps=context.steps or None)


def _factors_left(method: Method, context: Context, taken: int, schedule: Schedule) -> list[tuple[float, int]]:
    """(factor, how many steps in a row have it) over the planned steps that are not taken yet."""
    left = []
    for factor, count in noise_runs(method, schedule, context):
        skipped = min(taken, count)
        taken -= skipped
        if count > skipped:
            left.append((factor, count - skipped))
    return left


def noise_runs(method: Method, schedule: Schedule, context: Context) -> list[tuple[float, int]]:
    """(factor, how many steps in a row have it) over the planned steps."""
    if type(method).noise_factor is Method.noise_factor:
        return schedule.runs(context.steps, context.sample_rate)
    factors = (_factor(method, schedule, context, step) for step in range(context.steps))
    return [(factor, sum(1 for _ in same)) for factor, same in groupby(factors)]


def _batches_of_a_pass(sample_rate: float) -> int:
    return math.ceil(1 / sample_rate - 1e-9)  # 1e-9 takes up the rounding of the rate


def check_delta(delta: float, size: int | None) -> float:
    validate.probability("delta", delta, one_allowed=False, remedy="give a small probability such as 1e-5")
    if size is not None and delta >= 1 / size:
        raise BadArgument(
            f"delta={delta!r} is not below 1 / {size}, the size of the data set: publishing one random record would satisfy it; "
            f"give at most {1 / (10 * size):.1g}"
        )
    return delta
