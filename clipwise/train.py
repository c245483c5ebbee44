"""`fit`: model, data and epsilon in; trained model, history and privacy statement out. The loop, and no privacy
logic."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from clipwise import __version__, validate
from clipwise.averaging import WeightAverage, check_decay
from clipwise.clipping import METHODS, Method
from clipwise.evaluation import accuracy, check_class_targets, mean_loss
from clipwise.fairness.evaluate import judged
from clipwise.fairness.gradients import clipped_records
from clipwise.fairness.release import CLIPPED, RIGHT, GroupCounts, Question, count_event, release_group_counts
from clipwise.keystream import Key
from clipwise.losses import Loss, make_loss
from clipwise.lr_schedules import LrSchedule, make_lr_schedule, refuse_double_rate
from clipwise.report import Statement
from clipwise.run import Run
from clipwise.sampling import PoissonLoader, PoissonSampler, check_loader
from clipwise.schedules import ScheduleLike
from clipwise.step import private_step
from clipwise.types import BadArgument


@dataclass(frozen=True)
class Fit:
    """A finished run. Everything in it is public, or a function of released values and of the test set."""

    model: nn.Module
    history: list[dict[str, Any]]
    statement: Statement
    accuracy: float | None = None
    group_counts: GroupCounts | None = None  # released after training, where they were asked for
    clipped_counts: GroupCounts | None = None
    method: Method | None = None  # that clipped, and
    method_state: Any = None  # its state after the last step; None without privacy
    test_loss: float | None = None  # instead of accuracy, for a loss that does not compare classes

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


def fit(
    model: nn.Module,
    train: Dataset,
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    epochs: int,
    expected_batch_size: int,
    method: str | Method = "fixed",
    method_options: Mapping[str, Any] | None = None,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    loss: str | Loss | Callable[[Any, Tensor], Tensor] = "cross-entropy",
    loss_declared: str | None = None,
    lr_schedule: str | LrSchedule | None = None,
    average_weights: float = 0.0,
    test: Dataset | None = None,
    seed: int | None = None,
    accountant: str = "best",
    ledger: str | Path | None = None,
    max_physical_batch: int | None = None,
    groups: Callable[[Any], Tensor] | None = None,
    number_of_groups: int | None = None,
    group_counts: float | None = None,
    clipped_counts: float | None = None,
    schedule: ScheduleLike = None,
    allow_unsound: bool = False,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    on_step: Callable[[dict[str, Any], int], None] | None = None,
) -> Fit:
    """Train privately, to a target epsilon or with a given noise multiplier; epsilon=inf trains without privacy, for
    comparison.

    `train` and `test` are data sets of (input, target); `loss` is the text of one (see losses.py), or a function
    `loss(output, target)`: one loss a row, or a mean over the rows, which is proved to be one or refused (`loss_declared`,
    see `attach`). `optimizer` makes the optimizer from the parameters (SGD with momentum
    by default), `lr_schedule` moves its rate (see lr_schedules.py). `average_weights` is the decay of a moving average of
    the weights: the trained model is that average (see averaging.py). `schedule` changes the noise over the run;
    `allow_unsound` runs a method without a valid guarantee (see `attach`). `on_epoch` gets each line of the history,
    `on_step` the public values of each step, and the number of steps planned.

    `groups` gives the group of each record of a batch. `group_counts` is the noise multiplier of one release after the
    training, from the same budget: on how many training records of each of the `number_of_groups` groups the model is
    right (see clipwise/fairness/release.py). `clipped_counts` is that of another one: how many have a gradient that the
    method would clip now (see clipwise/fairness/gradients.py).
    """
    validate.count("epochs", epochs)
    validate.count("expected_batch_size", expected_batch_size)
    check_decay(average_weights)
    asked = {"group_counts": group_counts, "clipped_counts": clipped_counts}
    after = tuple(count_event(noise, name) for name, noise in asked.items() if noise is not None)
    for name, value in asked.items():
        if value is not None:
            _check_counts(name, groups, number_of_groups, epsilon)
    if optimizer is not None and not callable(optimizer):
        raise BadArgument(
            f"optimizer={optimizer!r} is not a function; give one that makes the optimizer from the parameters, such as torch.optim.Adam"
        )
    loss = make_loss(loss) if isinstance(loss, str) else loss
    rate_schedule = make_lr_schedule(lr_schedule)
    made = (optimizer or _default_optimizer)(p for p in model.parameters() if p.requires_grad)
    loader = DataLoader(train, batch_size=expected_batch_size, shuffle=True)
    device = next(model.parameters()).device
    refuse_double_rate(
        rate_schedule,
        method=None if epsilon == math.inf else rate_setting_method(method),
        optimizer=type(made).__name__ if "noise_std" in made.param_groups[0] else None,
    )
    if rate_schedule.kind == "plateau" and test is None:
        raise BadArgument("lr_schedule='plateau' watches a figure on public test records; give test data")
    if loss is F.cross_entropy or (isinstance(loss, Loss) and loss.wants_classes):
        classes = check_class_targets(model, train, device)
        if isinstance(loss, Loss):
            loss.check_classes(classes)
    model.train()
    compare = loss.each if isinstance(loss, Loss) else loss

    def loss_of(batch: Any) -> Tensor:
        inputs, targets = (x.to(device) for x in batch[:2])  # the group may follow
        return compare(model(inputs), targets)

    average = WeightAverage(model.parameters(), average_weights)
    report = _Reporter(model, made, test, loss, on_epoch, on_step, device, average)
    if epsilon == math.inf:
        if noise_multiplier is not None:
            raise BadArgument(
                f"noise_multiplier={noise_multiplier!r} and epsilon=inf: training without privacy adds no noise; leave one out"
            )
        return _fit_plain(model, loader, made, loss_of, epochs, seed, max_physical_batch, report, rate_schedule)

    run = Run(
        model,
        made,
        loader,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        delta=delta,
        epochs=epochs,
        method=method,
        method_options=method_options or {},
        expected_batch_size=None,
        sample_rate=None,
        loss_reduction="mean",
        loss_declared=loss_declared,
        max_physical_batch=max_physical_batch,
        accountant=accountant,
        engine="fast",
        seed=seed,
        ledger=ledger,
        groups=groups,
        schedule=schedule,
        allow_unsound=allow_unsound,
        notify=lambda message: warnings.warn(message, stacklevel=2),
        after=after,
    )
    counts: dict[Question, GroupCounts] = {}
    run.engine.install()
    try:
        per_epoch = run.plan.steps_per_epoch
        rates = rate_schedule.start(made, epochs=epochs, steps_per_epoch=per_epoch)
        for epoch in range(1, epochs + 1):
            affordable = run.affordable(per_epoch)
            steps = range(run.state.step, run.state.step + affordable)
            for _, batches in groupby(run.batches.batches(steps), key=lambda pair: pair[0].step):
                run.state = private_step(
                    run.plan,
                    run.state,
                    batches,
                    loss=loss_of,
                    engine=run.engine,
                    noise=run.noise,
                    ledger=run.ledger,
                    optimizer=made,
                    groups=groups,
                )
                average.update()
                report.step(run.state.step, epochs * per_epoch, **run.public_values())
                rates.after_step()
            spent = run.epsilon() if run.plan.delta is not None else None
            report.epoch(
                epoch,
                run.state.step,
                epsilon=spent,
                **run.public_values(),
            )
            rates.after_epoch(report.figure, higher_is_better=report.higher_is_better)
            if affordable < per_epoch:
                raise run.exhausted()
        average.finish()
        if groups is not None:
            run.engine.remove()
            counts = _release_counts(run, model, train, groups, int(number_of_groups or 0), asked, compare, device)
    finally:
        run.close()
    return Fit(
        model,
        report.history,
        _with_notes(run.statement(), loss, rate_schedule),
        report.accuracy,
        group_counts=counts.get(RIGHT),
        clipped_counts=counts.get(CLIPPED),
        method=run.plan.method,
        method_state=run.state.method,
        test_loss=report.loss,
    )


def _release_counts(
    run: Run,
    model: nn.Module,
    train: Dataset,
    groups: Callable[[Any], Tensor],
    number_of_groups: int,
    noise_multipliers: Mapping[str, float | None],
    loss: Any,
    device: torch.device,
) -> dict[Question, GroupCounts]:
    """The releases after the last step, each with a line of its own in the ledger."""
    method, state = run.plan.method, run.state.method
    ways: dict[str, tuple[Question, Callable[[], tuple[Tensor, Tensor]]]] = {
        "group_counts": (RIGHT, lambda: judged(model, train, groups, device)),
        "clipped_counts": (
            CLIPPED,
            lambda: clipped_records(model, train, groups, loss=loss, method=method, state=state, device=device),
        ),
    }
    found: dict[Question, GroupCounts] = {}
    for name, noise_multiplier in noise_multipliers.items():
        if noise_multiplier is None:
            continue
        question, answer = ways[name]
        found[question] = release_group_counts(
            *answer(),
            number_of_groups,
            noise_multiplier,
            question=question,
            ledger=run.ledger,
            noise=run.noise,
            step=run.state.step + len(found),
        )
    return found


def _fit_plain(
    model: nn.Module,
    loader: DataLoader,
    optimizer: Optimizer,
    loss_of: Callable[[Any], Tensor],
    epochs: int,
    seed: int | None,
    max_physical_batch: int | None,
    report: _Reporter,
    rate_schedule: LrSchedule,
) -> Fit:
    """The same batches and optimizer without clipping or noise."""
    size = check_loader(loader)
    sampler = PoissonSampler(size, min(1.0, (loader.batch_size or 1) / size))
    key = Key.fresh() if seed is None else Key.from_seed(seed)
    batches = PoissonLoader(loader, sampler, key, max_physical_batch=max_physical_batch)
    per_epoch, done = math.ceil(1 / sampler.sample_rate - 1e-9), 0
    rates = rate_schedule.start(optimizer, epochs=epochs, steps_per_epoch=per_epoch)
    for epoch in range(1, epochs + 1):
        for _, group in groupby(batches.batches(range(done, done + per_epoch)), key=lambda pair: pair[0].step):
            optimizer.zero_grad()
            for info, batch in group:
                if not info.masked:
                    (loss_of(batch).mean() * (info.rows / (loader.batch_size or 1))).backward()
            optimizer.step()
            report.average.update()
            done += 1
            report.step(done, epochs * per_epoch, noise_multiplier=0.0)
            rates.after_step()
        report.epoch(epoch, done, epsilon=math.inf, noise_multiplier=0.0)
        rates.after_epoch(report.figure, higher_is_better=report.higher_is_better)
    report.average.finish()
    statement = Statement(
        private=False,
        epsilon=math.inf,
        delta=None,
        accountant="none",
        target_epsilon=math.inf,
        method="none",
        method_options={},
        reference="no clipping",
        sound=False,
        sample_rate=sampler.sample_rate,
        expected_batch_size=float(loader.batch_size or 1),
        steps=done,
        planned_steps=done,
        noise_multiplier=0.0,
        size_is_public=True,
        seeded=seed is not None,
        ledger="none",
        ledger_head="",
        versions=f"clipwise {__version__}, torch {torch.__version__}",
    )
    return Fit(model, report.history, statement, report.accuracy, test_loss=report.loss)


def _with_notes(statement: Statement, loss: Any, schedule: LrSchedule) -> Statement:
    more = (loss.note if isinstance(loss, Loss) else None, schedule.note)
    return dataclasses.replace(statement, notes=(*statement.notes, *(note for note in more if note)))


def rate_setting_method(method: str | Method) -> str | None:
    """The method's name, if it learns the learning rate."""
    kind = METHODS.get(method) if isinstance(method, str) else type(method)
    return kind.name if kind is not None and kind.learning_rate is not Method.learning_rate else None


class _Reporter:
    """Collects the history: public values, released values and the figure on the test set."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        test: Dataset | None,
        loss: Any,
        on_epoch: Callable[[dict[str, Any]], None] | None,
        on_step: Callable[[dict[str, Any], int], None] | None,
        device: torch.device,
        average: WeightAverage,
    ):
        self.average = average
        self.history: list[dict[str, Any]] = []
        self.accuracy: float | None = None
        self.loss: float | None = None
        self.higher_is_better = not isinstance(loss, Loss) or loss.wants_classes  # accuracy, or a loss
        self._compare = loss
        self._model, self._optimizer, self._test, self._device = model, optimizer, test, device
        self._on_epoch, self._on_step = on_epoch, on_step

    @property
    def figure(self) -> float | None:
        return self.accuracy if self.higher_is_better else self.loss

    def step(self, done: int, planned: int, **values: Any) -> None:
        if self._on_step:
            self._on_step({"step": done, "lr": self._optimizer.param_groups[0]["lr"], **values}, planned)

    def epoch(self, epoch: int, step: int, **values: Any) -> None:
        with self.average.in_place():
            if self._test is not None and self.higher_is_better:
                self.accuracy = accuracy(self._model, self._test, self._device)
            elif self._test is not None:
                self.loss = mean_loss(self._model, self._test, self._compare, self._device)
        line = {
            "epoch": epoch,
            "step": step,
            "accuracy": self.accuracy,
            **({} if self.loss is None else {"test_loss": self.loss}),
            "lr": self._optimizer.param_groups[0]["lr"],
            **values,
        }
        self.history.append(line)
        if self._on_epoch:
            self._on_epoch(line)


def _check_counts(name: str, groups: Any, number_of_groups: int | None, epsilon: float | None) -> None:
    if epsilon == math.inf:
        raise BadArgument(
            f"{name} with epsilon=inf: training without privacy keeps no ledger to pay from; leave it out"
        )
    if groups is None or number_of_groups is None:
        raise BadArgument(
            f"{name}: groups={groups!r}, number_of_groups={number_of_groups!r}; give the group of each record, and how "
            "many groups there are"
        )
    validate.count("number_of_groups", number_of_groups)


def _default_optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)
