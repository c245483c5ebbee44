"""`fit`: model, data and epsilon in; trained model, history and privacy statement out. The loop, and no privacy
logic."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from clipwise import validate
from clipwise.accounting import AnyLedger, Event, LedgerError
from clipwise.automatic.choice import Choice, Stated, choose
from clipwise.automatic.pilot import adam
from clipwise.automatic.prepare import accompany, begin
from clipwise.automatic.task import of_outputs
from clipwise.clipping import METHODS, Method
from clipwise.guards import trained
from clipwise.loop.evaluation import check_class_targets, device_of, shape_of_output
from clipwise.loop.keeping import Keeper, Keeping, NoKeeper, make_keeper
from clipwise.loop.lr_schedules import LrSchedule, make_lr_schedule, refuse_double_rate
from clipwise.loop.records import as_datasets
from clipwise.loop.reporting import Reporter
from clipwise.losses import Loss, make_loss
from clipwise.mechanism import Mechanism, Performance, chosen, takes_options
from clipwise.modes import to_training
from clipwise.noise import Noise
from clipwise.optim import check_decay
from clipwise.run import Run
from clipwise.state import Part
from clipwise.statement import Statement
from clipwise.types import BadArgument

_RATE = 0.5  # of SGD with momentum, where none is given: what the digits were trained with before method='auto'

LossLike = str | Loss | Callable[[Any, Tensor], Tensor]


class Trained(NamedTuple):
    """What a release after training is made from; `step` numbers it in ledger and noise."""

    model: nn.Module
    train: Dataset
    loss: Any
    method: Method
    method_state: Any
    ledger: AnyLedger
    noise: Noise
    event: Event  # what it costs, as planned
    step: int


class AfterTraining(Protocol):
    """A release on all training records that follows the last step, charged in the same ledger, from the same budget.
    (For one, see clipwise/fairness/after_training.py.)"""

    @property
    def name(self) -> str: ...

    @property
    def noise_multiplier(self) -> float: ...

    def release(self, trained: Trained) -> Any: ...


@dataclass(frozen=True, repr=False)
class Fit:
    """A finished run. Everything in it is public, or a function of released values and of the test set."""

    model: nn.Module
    history: list[dict[str, Any]]
    statement: Statement
    accuracy: float | None = None
    released: Mapping[str, Any] = field(default_factory=dict)  # after training, by name, where it was asked for
    method: Method | None = None  # that clipped, and
    method_state: Any = None  # its state after the last step; None without privacy
    test_loss: float | None = None  # instead of accuracy, for a loss that does not compare classes

    def __repr__(self) -> str:
        found = f", accuracy {self.accuracy:.1%}" if self.accuracy is not None else ""
        found += f", loss on the test records {self.test_loss:.4g}" if self.test_loss is not None else ""
        return f"<Fit: {self.statement.short()}{found}; .model, .statement, .history>"

    @property
    def epsilon(self) -> float:
        return self.statement.epsilon

    @property
    def delta(self) -> float | None:
        return self.statement.delta

    @property
    def accountant(self) -> str:
        return self.statement.accountant

    @property
    def noise_multiplier(self) -> float:
        return self.statement.noise_multiplier

    @property
    def sample_rate(self) -> float:
        return self.statement.sample_rate

    @property
    def steps(self) -> int:
        return self.statement.steps


@takes_options
def fit(
    model: nn.Module,
    train: Any,
    *,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    lr: float | str | None = None,
    loss: LossLike | None = None,
    loss_declared: str | None = None,
    lr_schedule: str | LrSchedule | None = None,
    average_weights: float | None = None,
    test: Any = None,
    groups: Callable[[Any], Tensor] | None = None,
    prepared: Sequence[Event] = (),
    after: Sequence[AfterTraining] = (),
    ledger: str | Path | None = None,
    earlier: Sequence[str | Path] = (),
    checkpoints: str | Path | Keeping | None = None,
    resume: str | Path | None = None,
    finish: bool = False,
    parts: Mapping[str, Part] | None = None,
    mechanism: Mechanism | None = None,
    performance: Performance | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    on_step: Callable[[dict[str, Any], int], None] | None = None,
    on_end: Callable[[Fit], Mapping[str, Any]] | None = None,
    **options: Any,
) -> Fit:
    """Train privately, to a target epsilon or with a given noise multiplier; epsilon=inf trains without privacy, for
    comparison.

        clipwise.fit(model, data, epsilon=3.0)

    Whatever is not stated is found or follows from public facts, and the statement lists it (docs/methods/auto.md).

    The training:
        model, train, test: the model, and data sets of (input, target): a torch data set, a pair (X, y) of arrays, tensors or
            DataFrames, or a Hugging Face data set of two columns, one of them called label or labels.
        optimizer: a function that makes the optimizer from the parameters; by default Adam with method='auto', and SGD
            with momentum with any other.
        lr: the learning rate, where no optimizer is given; 'auto' finds that of one that is.
        loss: the text of one (see clipwise/losses.py), or a function loss(output, target): one loss a row, or a mean over
            the rows, which is proved to be one or refused. By default cross-entropy for whole-number targets, and
            squared-error for real ones.
        loss_declared: see `attach`.
        lr_schedule: how the rate moves (see clipwise/loop/lr_schedules.py).
        average_weights: decay of a moving average of the weights, which is then the trained model; 0 for none. By default
            method='auto' averages, and no other does.
        groups: for a method that treats groups apart, a function of a batch: the group (0, 1, ...) of each row.
        prepared: what the ledger has been charged with already, to prepare these records; it is part of the same budget.
        after: releases on the training records that follow the last step, paid for from the same budget.
        ledger: a file for the privacy ledger; an existing one goes on, and what it holds counts.
        earlier: ledgers of earlier runs on the same data, whose charges count in this budget.
        checkpoints: a folder to keep the run's state in, every 5 minutes (or as a `Keeping` says).
        resume: such a folder; the run goes on from its last whole checkpoint, with the same ledger.
        finish: with `resume`, take no more steps: the run ends with the weights as they were kept, and releases nothing else.
        parts: what else has a state that checkpoints must keep, by name.
        mechanism, performance: the options below, each as one value.
        on_epoch: gets each line of the history.
        on_step: gets the public values of each step, and the number of steps planned.
        on_end: gets the finished run before its ledger is closed; what it returns goes into the closing line.
    """
    mechanism, performance = chosen(mechanism, performance, options)
    _check_ends(after, mechanism, average_weights or 0.0, finish and resume is None)
    train, test = as_datasets(train, test, model)
    compare = _loss(loss, train, model)
    own = _own_optimizer(optimizer, model)
    choice = choose(mechanism, performance, Stated(_records(train), own, lr))
    epochs = validate.count("epochs", choice.mechanism.epochs)
    batch = validate.count("expected_batch_size", choice.mechanism.expected_batch_size)
    made = own or _default_optimizer(model, choice)
    rate_schedule = _checked_rates(lr_schedule, choice, made, test)
    _check_targets(model, train, compare)
    loader = DataLoader(train, batch_size=batch, shuffle=True)
    run = begin(
        *(model, made, loader, choice, partial(of_outputs, model, compare, loader)),
        loss_declared=loss_declared,
        groups=groups,
        prepared=prepared,
        after=tuple(release.noise_multiplier for release in after),
        notify=lambda message: warnings.warn(message, stacklevel=2),
        ledger=ledger,
        earlier=earlier,
        resume=resume,
        finish=finish,
    )
    try:
        average, pilot = accompany(run, made, choice, average_weights)
        report = Reporter(model, made, test, compare, on_epoch, on_step, average)
        to_training(model)
        per_epoch = run.plan.steps_per_epoch
        rates = rate_schedule.start(made, epochs, per_epoch, higher_is_better=report.higher_is_better)
        keeper = make_keeper(checkpoints, run)
        run.engine.install()
        run.restore(average=average, rates=rates, report=report, **_parts(pilot, parts))
        keeper.begin()
        for epoch in range(1 + run.state.step // per_epoch, 1 if finish else epochs + 1):
            left = epoch * per_epoch - run.state.step
            affordable = run.affordable(left)
            run.engine.begin_epoch()
            for _ in run.take_steps(affordable, _loss_of(model, compare)):
                average.update()
                report.step(run.state.step, epochs * per_epoch, **run.public_values())
                rates.after_step()
                if run.state.step < epoch * per_epoch:
                    keeper.after_step()
            run.engine.end_epoch()
            report.epoch(epoch, run.state.step, epsilon=run.epsilon_or_none(), **run.public_values())
            rates.after_epoch(report.figure)
            if affordable < left:
                raise run.exhausted()
            keeper.after_step()
        _end(run, report, keeper, finish=finish)
        _conclude(average, pilot)
        run.engine.remove()
        done = _finished(run, report, _release(run, train, compare, after, finish), (compare, rate_schedule))
        run.close(on_end(done) if on_end else None)
    except BaseException:
        with suppress(LedgerError):  # on a full disk, say: the first error is the one to show
            run.close()
        raise
    return done


def _end(run: Run, report: Reporter, keeper: Keeper | NoKeeper, *, finish: bool) -> None:
    """After the last step its state is kept. A run that took none, to `finish`, has it where it came from: it gets figures of its
    weights, and a word in its statement."""
    if not finish:
        keeper.end()
        return
    step = run.state.step
    if not report.history or report.history[-1]["step"] != step:
        epoch = -(-step // run.plan.steps_per_epoch)
        report.epoch(epoch, step, epsilon=run.epsilon_or_none(), **run.public_values())
    run.note(f"the run was ended after {step} of {run.plan.steps} planned steps, at its user's wish")


def _conclude(average: Any, pilot: Any) -> None:
    """The averaged weights are the model's; a run that found its rate says what it was limited by."""
    average.finish()
    if pilot is not None:
        pilot.conclude()


def _parts(pilot: Part | None, more: Mapping[str, Part] | None) -> dict[str, Part]:
    return {**({} if pilot is None else {"pilot": pilot}), **(more or {})}


def _finished(run: Run, report: Reporter, released: Mapping[str, Any], noted: tuple[Any, LrSchedule]) -> Fit:
    return Fit(
        run.model,
        report.history,
        _with_notes(run.statement(), *noted),
        report.accuracy,
        released=released,
        method=run.plan.method if run.plan.private else None,
        method_state=run.state.method if run.plan.private else None,
        test_loss=report.loss,
    )


def _loss_of(model: nn.Module, loss: Callable[[Any, Tensor], Tensor]) -> Callable[[Any], Tensor]:
    device = device_of(model)
    compare = _rows_of(loss)

    def loss_of(batch: Any) -> Tensor:
        inputs, targets = (x.to(device) for x in batch[:2])  # the group may follow
        return compare(model(inputs), targets)

    return loss_of


def _rows_of(loss: Any) -> Callable[[Any, Tensor], Tensor]:
    """One loss a row where it is known how; a function of the user's own as it is."""
    return loss.each if isinstance(loss, Loss) else loss


def _release(run: Run, train: Dataset, loss: Any, after: Sequence[AfterTraining], finish: bool) -> dict[str, Any]:
    """What follows the last step, each with a line of its own in the ledger; nothing where the run is ended before."""
    if finish:
        return {}
    state = run.state
    return {
        one.name: one.release(
            Trained(
                run.model,
                train,
                _rows_of(loss),
                run.plan.method,
                state.method,
                run.ledger,
                run.noise,
                event,
                state.step + number,
            )
        )
        for number, (one, event) in enumerate(zip(after, run.plan.after, strict=True))
    }


def _with_notes(statement: Statement, loss: Any, schedule: LrSchedule) -> Statement:
    more = (loss.note if isinstance(loss, Loss) else None, schedule.note)
    return dataclasses.replace(statement, notes=(*statement.notes, *(note for note in more if note)))


def rate_setting_method(method: str | Method) -> str | None:
    """The method's name, if it learns the learning rate."""
    kind = METHODS.get(method) if isinstance(method, str) else type(method)
    return kind.name if kind is not None and kind.learning_rate is not Method.learning_rate else None


def _check_ends(after: Sequence[AfterTraining], mechanism: Mechanism, decay: float, nothing_to_end: bool) -> None:
    check_decay(decay)
    if nothing_to_end:
        raise BadArgument("finish=True ends a run that was kept; give resume=, the folder of its checkpoints")
    if after and not mechanism.private:
        names = ", ".join(one.name for one in after)
        raise BadArgument(
            f"{names} with epsilon=inf: training without privacy keeps no ledger to pay from; leave it out"
        )


def _loss(loss: Any, train: Dataset, model: nn.Module) -> Any:
    """By its text; where none is given, by the first record, whose types and shapes are treated as public: real targets of the
    output's shape (or without its last dimension, of one number) are values, anything else must be classes."""
    if loss is None:
        inputs, targets = next(iter(DataLoader(train, batch_size=1)))[:2]
        real = isinstance(targets, Tensor) and targets.is_floating_point()
        values = real and shape_of_output(model, inputs) in (targets.shape, (*targets.shape, 1))
        loss = "squared-error" if values else "cross-entropy"
    return make_loss(loss) if isinstance(loss, str) else loss


def _records(train: Dataset) -> int:
    records = len(train)  # type: ignore[arg-type]
    return validate.count("train", records, least=1, remedy="the data set must have at least one record")


def _own_optimizer(make: Any, model: nn.Module) -> Optimizer | None:
    if make is None:
        return None
    if not callable(make):
        raise BadArgument(
            f"optimizer={make!r} is not a function; give one that makes the optimizer from the parameters, such as torch.optim.Adam"
        )
    made: Optimizer = make(iter(trained(model.parameters())))
    return made


def _default_optimizer(model: nn.Module, choice: Choice) -> Optimizer:
    if choice.averages:
        return adam(model.parameters(), *(() if choice.rate is None else (choice.rate,)))
    rate = _RATE if choice.rate is None else choice.rate
    return torch.optim.SGD(trained(model.parameters()), lr=rate, momentum=0.9)


def _checked_rates(
    lr_schedule: str | LrSchedule | None, choice: Choice, optimizer: Optimizer, test: Dataset | None
) -> LrSchedule:
    schedule = make_lr_schedule(lr_schedule)
    mechanism = choice.mechanism
    name = rate_setting_method(mechanism.method) if mechanism.private else None
    refuse_double_rate(
        schedule,
        method="auto" if choice.finds_rate else name,
        optimizer=type(optimizer).__name__ if "noise_std" in optimizer.param_groups[0] else None,
    )
    if schedule.kind == "plateau" and test is None:
        raise BadArgument("lr_schedule='plateau' watches a figure on public test records; give test data")
    return schedule


def _check_targets(model: nn.Module, train: Dataset, loss: Any) -> None:
    if loss is F.cross_entropy or (isinstance(loss, Loss) and loss.wants_classes):
        classes = check_class_targets(model, train)
        if isinstance(loss, Loss):
            loss.check_classes(classes)
