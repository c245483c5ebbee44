"""What a run would be like, before anything is spent: `clipwise.plan(...)` and `clipwise plan`.

It reads public facts alone: the number of records, epsilon and delta, the options, and where they are given the model and the
shape of a record. No record is read and nothing is charged. The noise is that of the run itself: the same choice, the same plan
and the same accountants make it. Time comes from steps on made data of that shape, or is said to be unknown. Accuracy is not
forecast: it depends on the records, which are not read.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clipwise import plans, validate
from clipwise.accounting import epsilon as bound
from clipwise.automatic import rule
from clipwise.automatic.choice import Choice, Stated, choose
from clipwise.automatic.prepare import phases
from clipwise.mechanism import Mechanism, Performance, split, takes_options
from clipwise.plans import Facts, Plan
from clipwise.run import Run
from clipwise.step import private_step
from clipwise.types import BadArgument

_FACTORS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4)  # of the planned batch, that the picture shows
_TIMED_ROWS = 512  # of a step on made data, at most; more take longer in proportion
_WARM, _TIMED = 2, 5  # steps: the first look at the model, and those whose median is taken
_PARAMETERS = 1  # of a model that is not given: no method's cost depends on their number


class Part(NamedTuple):
    """One of the things that the budget pays for."""

    name: str
    steps: int  # on sampled batches; 0: one release on all records
    sample_rate: float  # of those batches; 1 for all records
    noise_multiplier: float
    epsilon_alone: float  # if it were all there is
    raises_noise: float | None  # of the training, over what it would be without this part; None for the training itself


class Change(NamedTuple):
    """What another setting would do to the noise."""

    what: str
    expected_batch_size: float
    steps: int
    noise_multiplier: float
    noise_on_the_mean: float  # noise multiplier / expected batch size: noise on the mean gradient, for a bound of 1
    delta: float  # another one for more records, where the stated one would no longer be below 1 / their number


class Timing(NamedTuple):
    seconds_a_step: float
    seconds: float  # of the whole run, measuring included
    how: str


@dataclass(frozen=True)
class Forecast:
    method: str
    records: int
    epsilon: float
    delta: float
    expected_batch_size: float
    sample_rate: float
    epochs: float
    steps: int
    noise_multiplier: float
    noise_on_the_mean: float
    accountant: str
    parts: tuple[Part, ...]
    changes: tuple[Change, ...]
    by_batch: tuple[Change, ...]
    timing: Timing | None  # None: unknown
    said: tuple[str, ...]  # what was left open, and how it was filled

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        lists = {name: [each._asdict() for each in getattr(self, name)] for name in ("parts", "changes", "by_batch")}
        timing = None if self.timing is None else self.timing._asdict()
        return {
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)},
            **lists,
            "timing": timing,
            "said": [*self.said],
        }


@takes_options
def plan(
    records: int,
    *,
    model: nn.Module | None = None,
    shape: Sequence[int] | None = None,
    classes: int | None = None,
    vocabulary: int | None = None,
    **options: Any,
) -> Forecast:
    """What a run on so many records would be like: noise, steps, batch, what each part costs, time, and what doubling the data, the
    epochs or epsilon would do. Nothing is spent, and no record is read.

        clipwise.plan(60_000, epsilon=3)
        clipwise.plan(60_000, epsilon=3, model=model, shape=(1, 28, 28), classes=10)

    records: the number of records, a public one.
    model, shape, classes, vocabulary: for the time: the model, the shape of one record, how many classes there are (none: it learns
        values), and, where a record holds token numbers, how many tokens there are. A copy of the model is timed on made data.
    """
    validate.count("records", records)
    mechanism, performance = split({"method": "auto", **options})
    if mechanism.epsilon is None or not mechanism.private:
        raise BadArgument(f"epsilon={mechanism.epsilon!r}: a plan is made for a budget; give one, such as epsilon=3.0")
    if mechanism.size == "private":
        raise BadArgument(
            "size='private': a plan is made from the number of records; leave size out to see about what a run costs"
        )
    chosen = _chosen(mechanism, performance, records)
    parameters = _PARAMETERS if model is None else sum(p.numel() for p in model.parameters() if p.requires_grad)
    made = _planned(chosen, records, parameters)
    steps = _steps(made)
    timing = None if model is None or shape is None else _timed(model, made, tuple(shape), classes, vocabulary)
    return Forecast(
        method=made.method.name,
        records=records,
        epsilon=mechanism.epsilon,
        delta=_delta(made),
        expected_batch_size=made.expected_batch_size,
        sample_rate=made.sample_rate,
        epochs=float(chosen.mechanism.epochs or 0),
        steps=steps,
        noise_multiplier=made.noise_multiplier,
        noise_on_the_mean=made.noise_multiplier / made.expected_batch_size,
        accountant=made.accountant,
        parts=_parts(chosen, made, records, parameters),
        changes=_changes(mechanism, performance, chosen, records, parameters),
        by_batch=_by_batch(chosen, made, records, parameters),
        timing=timing,
        said=(*chosen.said, *_few(chosen, made, records)),
    )


def _chosen(mechanism: Mechanism, performance: Performance, records: int) -> Choice:
    return choose(mechanism, performance, Stated(records))


def _few(chosen: Choice, made: Plan, records: int) -> list[str]:
    """What the rule says of records that are too few for its measuring."""
    if not chosen.finds_rate:
        return []
    few = rule.too_few(
        rule.measuring(rule.gaussian_mu(made.target_epsilon or 0.0, _delta(made)), _steps(made), records), records
    )
    return [] if few is None else [few]


def _planned(chosen: Choice, records: int, parameters: int, *, without: str | None = None) -> Plan:
    """The plan of the run; `without` leaves out a part of what is measured, to see what it costs."""
    facts = Facts(records, parameters)
    if chosen.finds_rate:
        facts = facts._replace(before=tuple(p for p in phases(chosen.mechanism, facts) if p.name != without))
    return plans.make(chosen.mechanism, facts)


def _parts(chosen: Choice, made: Plan, records: int, parameters: int) -> tuple[Part, ...]:
    """Each release before the training with its price, then the training."""
    delta, parts = _delta(made), []
    for phase, event in zip(_phases(chosen, records, parameters), made.before, strict=True):
        alone = bound([event], delta, made.accountant).value
        other = _planned(chosen, records, parameters, without=phase.name).noise_multiplier
        parts.append(
            Part(
                phase.name,
                phase.steps,
                event.sample_rate,
                event.noise_multiplier,
                alone,
                made.noise_multiplier / other - 1,
            )
        )
    training = bound(made.coming(0, _steps(made)), delta, made.accountant).value
    return (*parts, Part("training", _steps(made), made.sample_rate, made.noise_multiplier, training, None))


def _phases(chosen: Choice, records: int, parameters: int) -> tuple[plans.Phase, ...]:
    return phases(chosen.mechanism, Facts(records, parameters)) if chosen.finds_rate else ()


def _changes(
    mechanism: Mechanism, performance: Performance, chosen: Choice, records: int, parameters: int
) -> tuple[Change, ...]:
    """What was stated stays; what was left open is chosen anew, as a run would."""
    full = chosen.mechanism
    if full.epsilon is None or full.epochs is None:
        raise BadArgument("epochs=None: what a run costs depends on its length; give the epochs that are planned")
    twice = (
        mechanism
        if mechanism.delta is None or 2 * records * mechanism.delta < 1
        else mechanism.model_copy(update={"delta": None})
    )
    longer = {"epochs": 2 * full.epochs, "expected_batch_size": full.expected_batch_size}
    others = {
        "as planned": (mechanism, records),
        "twice the records": (twice, 2 * records),
        "twice the epochs, same batch": (mechanism.model_copy(update=longer), records),
        "twice epsilon": (mechanism.model_copy(update={"epsilon": 2 * full.epsilon}), records),
    }
    return tuple(
        _change(what, _planned(_chosen(other, performance, many), many, parameters))
        for what, (other, many) in others.items()
    )


def _by_batch(chosen: Choice, made: Plan, records: int, parameters: int) -> tuple[Change, ...]:
    """Other batches over the same epochs."""
    sizes = sorted({min(records, max(1, round(made.expected_batch_size * factor))) for factor in _FACTORS})
    found = []
    for size in sizes:
        mechanism = chosen.mechanism.model_copy(update={"expected_batch_size": size, "sample_rate": None})
        other = dataclasses.replace(chosen, mechanism=mechanism)
        try:
            found.append(_change(f"batch {size}", _planned(other, records, parameters)))
        except BadArgument:
            continue  # too few records in a batch for what the method releases beside
    return tuple(found)


def _change(what: str, made: Plan) -> Change:
    batch = made.expected_batch_size
    return Change(what, batch, _steps(made), made.noise_multiplier, made.noise_multiplier / batch, _delta(made))


def _steps(made: Plan) -> int:
    if made.steps is None:
        raise BadArgument("epochs=None: what a run costs depends on its length; give the epochs that are planned")
    return made.steps


def _delta(made: Plan) -> float:
    if made.delta is None:
        raise BadArgument("delta=None: a target epsilon holds at some delta; give one, such as 1e-5")
    return made.delta


def _timed(model: nn.Module, made: Plan, shape: tuple[int, ...], classes: int | None, vocabulary: int | None) -> Timing:
    """Private steps on made data, in proportion to the rows of a step of the run."""
    import copy

    rows = max(1, min(_TIMED_ROWS, round(made.expected_batch_size)))
    data = made_data(rows, shape, classes, vocabulary)
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=1e-6)

    def loss(batch: Any) -> torch.Tensor:
        inputs, targets = batch
        if classes is None:
            return nn.functional.mse_loss(model(inputs).reshape(targets.shape), targets)
        return nn.functional.cross_entropy(model(inputs), targets)

    loader = DataLoader(data, batch_size=rows)
    took = []
    mechanism = Mechanism(noise_multiplier=1.0, sample_rate=1.0, expected_batch_size=rows, seed=0)
    with Run(model, optimizer, loader, mechanism, notify=lambda _: None) as run:
        for batches in run.logical_batches(_WARM + _TIMED):
            start = time.perf_counter()
            private_step(run.stepper, batches, loss=loss)
            took.append(time.perf_counter() - start)
    a_step = statistics.median(took[_WARM:]) * max(1.0, made.expected_batch_size / rows)
    before = sum(event.count * event.sample_rate for event in made.before)  # in passes over the data, as its cost goes
    steps = _steps(made) + before / made.sample_rate
    how = f"median of {_TIMED} steps on {rows} made records, {torch.get_num_threads()} threads, times the records of a step; no evaluation"
    return Timing(a_step, a_step * steps, how)


def made_data(rows: int, shape: tuple[int, ...], classes: int | None, vocabulary: int | None) -> TensorDataset:
    """Records of a public shape that hold nothing: numbers in 0..1, or token numbers, and targets by chance."""
    chance = torch.Generator().manual_seed(0)
    if vocabulary is None:
        inputs = torch.rand(rows, *shape, generator=chance)
    else:
        inputs = torch.randint(vocabulary, (rows, *shape), generator=chance)
    targets = (
        torch.rand(rows, generator=chance) if classes is None else torch.randint(classes, (rows,), generator=chance)
    )
    return TensorDataset(inputs, targets)
