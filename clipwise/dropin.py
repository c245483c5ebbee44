"""The drop-in for an existing training loop: model, optimizer and loader in; the same three out, private.

    private = clipwise.attach(model, loader=loader, epsilon=3.0)
    for epoch in private.epochs():
        for x, y in private.loader:
            private.optimizer.zero_grad()
            losses = criterion(model(x), y)  # reduction="none": one loss a row
            private.backward(losses)  # or loss.backward() on their mean
            private.optimizer.step()
    private.detach()
    print(private.epsilon(), private.statement().to_markdown())

Model and optimizer stay the objects they were. The backward pass leaves no gradient on the parameters;
`optimizer.step()` clips, sums, charges, adds noise, puts the *released* gradient on p.grad, and then takes the
optimizer's own step.

Guarantee: the parameters change only by released gradients, one noise draw and one ledger line a logical step,
however it is split; a loop that does anything out of order gets an error and changes nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import is_
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from clipwise import validate
from clipwise.automatic.choice import Choice, Stated, choose
from clipwise.automatic.pilot import adam
from clipwise.automatic.prepare import accompany, begin
from clipwise.automatic.task import OfBatch, Task, inferred, of_batches
from clipwise.mechanism import split, takes_options
from clipwise.norms import OTHER_PARAMETERS
from clipwise.prepared import as_it_was
from clipwise.run import Run
from clipwise.sampling import check_loader
from clipwise.statement import Statement
from clipwise.types import BadArgument, LoopMisuse

OUTSIDE = (
    "private.outside() was used: gradients through the model that this run did not train on. What the training loop made of such "
    "gradients of training records is not covered"
)


class PrivateLoader:
    """Poisson batches of the user's data set; one pass is one epoch's number of steps."""

    def __init__(self, private: Private, dataset: Dataset[Any], most: int | None = None):
        self._private, self._most = private, most
        self.dataset = dataset

    def __len__(self) -> int:
        """Logical batches in an epoch, as the user's own loader would have."""
        return self._private.run.plan.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        return self._private._epoch(self._most)

    def in_parts(self, most: int) -> PrivateLoader:
        """The same batches, at most so many records in memory at once: `max_physical_batch` for one loop."""
        if (
            self._private.run.mechanism.seed is not None
        ):  # sums in other parts differ by rounding, and could not be redone
            raise BadArgument(
                f"in_parts({most!r}): a run with a seed is to be repeated bit for bit; give attach(max_physical_batch={most!r})"
            )
        return PrivateLoader(self._private, self.dataset, validate.count("most", most))


class Private:
    """A loop made private. Made by `attach`; `detach` gives everything back."""

    def __init__(self, run: Run, optimizer: Optimizer, loader: DataLoader[Any], lr_scheduler: Any, choice: Choice):
        self.run = run
        self.model = run.model
        self.optimizer = optimizer
        self.loader = PrivateLoader(self, loader.dataset)
        self.stepped = False  # whether the last optimizer.step() completed a logical batch
        self._epochs_begun = 0
        self._scheduler = lr_scheduler
        self._warned = False
        self._blocks = 0  # of `outside` that are open
        self._plain_step: Any = None
        self._plain_kind: type | None = None  # of the scheduler
        self._average, pilot = accompany(run, optimizer, choice)
        run.on_close(self._average.finish)
        self._held: list[nn.Parameter] = []  # by the optimizer, when it was looked at last
        run.on_close(self._uninstall)
        try:
            parts = {"scheduler": lr_scheduler, "pilot": pilot, "average": self._average if choice.averages else None}
            run.restore(**{name: part for name, part in parts.items() if part is not None})
            self._left_of_epoch = -run.state.step % len(self.loader)
            self._install()
        except BaseException:
            run.close()
            raise

    def __repr__(self) -> str:
        plan = self.run.plan
        return f"<Private: method {plan.method.name}, step {self.step} of {plan.steps or 'any number'}; .loader, .optimizer, .backward(losses), .statement()>"

    def epsilon(self, delta: float | None = None) -> float:
        """Epsilon so far, from the ledger; at the delta given to `attach`, or another."""
        return self.run.epsilon(delta)

    def backward(self, losses: Tensor) -> None:
        """The backward pass from one loss a row, of shape (rows,), in the place of `loss.backward()`. Clipwise sums them; that
        each depends on its own row alone is verified. `loss_reduction` does not matter."""
        self.run.engine.backward(losses)

    def statement(self) -> Statement:
        """What is guaranteed, under which assumptions, and what is not."""
        return self.run.statement()

    def save(self, folder: str | Path) -> Path:
        """Keep everything that the run is made of (weights, optimizer, scheduler, thresholds, place) in a folder, the last two
        times; `attach(..., resume=folder)` with the same ledger goes on from there. Needs attach(ledger=FILE)."""
        return self.run.save(folder)

    @property
    def step(self) -> int:
        """Logical steps taken so far, before a resume too."""
        return self.run.state.step

    def epochs(self) -> range:
        """The epochs that are left, numbered from 0: `for epoch in private.epochs()` is right after a resume too."""
        done = self.step // len(self.loader)
        return range(done, max(done, math.ceil((self.run.plan.steps or 0) / len(self.loader))))

    def detach(self) -> None:
        """Model, optimizer and scheduler as they were; the ledger is closed. Of an automatic run the model has the averaged
        weights from then on. May be called twice."""
        self.run.close()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model has the averaged weights in this block, as it will after `detach`: for a look at them between two epochs. The
        weights as they are, where nothing is averaged."""
        with self._average.in_place():
            yield

    @contextmanager
    def outside(self) -> Iterator[None]:
        """A block in which gradients through the model are not trained on: neither forward nor backward passes in it touch the
        open batch or the parameters. For adversarial examples (gradients with respect to inputs), for a generator that
        learns from a private discriminator, for pictures of what the model looks at.

            with private.outside():
                (direction,) = torch.autograd.grad(criterion(model(x), y), x)
            loss = criterion(model(x + 0.1 * direction.sign()), y)

        What the loop makes of such gradients of *training* records is outside the guarantee, and each record's must come from
        that record alone (reduce by a sum, or take signs); the statement says that the block was used."""
        self.run.note(OUTSIDE)
        self._blocks += 1
        try:
            with self.run.engine.outside():
                yield
        finally:
            self._blocks -= 1

    def __reduce__(self) -> Any:
        raise LoopMisuse(
            "a private run cannot be copied or pickled: both copies would draw the same noise, and count it once. Copy model.state_dict() and "
            "optimizer.state_dict() instead"
        )

    # -- batches
    # ---------------------------------------------------------------------------------------------------------

    def _epoch(self, most: int | None) -> Iterator[Any]:
        stepper = self.run.stepper
        stepper.whereabouts.begin()
        self._epochs_begun += 1
        stepper.drop()  # of an earlier loop that was left in the middle, and is still held
        per_epoch = len(self.loader)
        # What is left of an epoch that a resumed run was in the middle of; a whole one otherwise.
        mine, count = self._epochs_begun, self._left_of_epoch or per_epoch
        self._left_of_epoch = 0
        affordable = self.run.affordable(count)
        first = self.run.state.step
        batches = self.run.batches if most is None else self.run.batches.in_parts(most)
        self.run.engine.begin_epoch()
        try:
            for batch, records in batches.batches(range(first, first + affordable)):
                stepper.begin(batch, records)
                yield records
                if mine != self._epochs_begun:
                    raise LoopMisuse("two loops ran over private.loader at once; run one after the other")
                if stepper.waits:
                    raise LoopMisuse(
                        "a batch of private.loader was not followed by optimizer.step(); a step that is left out because of its data would leak. "
                        "Call loss.backward() and optimizer.step() for every batch"
                    )
            self.run.engine.end_epoch()
        finally:
            if mine == self._epochs_begun:
                stepper.drop()  # a loop left in the middle: what was summed of an unfinished logical batch is forgotten
                stepper.whereabouts.end()
        if affordable < count:
            raise self.run.exhausted()

    # -- the step
    # --------------------------------------------------------------------------------------------------------

    def _step(self, take_step: Callable[[], Any]) -> Any:
        if self._blocks:
            raise LoopMisuse(
                "optimizer.step() came inside a block of private.outside(); nothing was changed. Call it after the block"
            )
        self.run.stepper.rest()
        self._refuse_changed_parameters()
        self.stepped = self.run.stepper.absorb()
        if self.stepped:
            return self.run.stepper.complete(take_step)
        self._warn_of_scheduler()
        return None

    def _refuse_changed_parameters(self) -> None:
        """Of the optimizer; the engine looks at the model's."""
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        if len(held) == len(self._held) and all(map(is_, held, self._held)):
            return
        if {id(p) for p in held if p.requires_grad} != {id(p) for p in self.run.engine.parameters}:
            raise LoopMisuse(OTHER_PARAMETERS)
        self._held = held

    def _warn_of_scheduler(self) -> None:
        unknown = self._scheduler is None and getattr(self._plain_step, "_wrapped_by_lr_sched", False)
        if unknown and not self._warned:
            self._warned = True
            warnings.warn(
                "clipwise: a learning-rate scheduler drives this optimizer and max_physical_batch splits batches; pass attach(lr_scheduler=...), "
                "or call scheduler.step() only when private.stepped, so that it moves once a logical step",
                stacklevel=4,
            )

    # -- in and out of the optimizer
    # -------------------------------------------------------------------------------------

    def _install(self) -> None:
        private = self
        self.run.engine.install()
        plain_step = self.optimizer.step

        def step(optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ARG001
            value = None
            if closure is not None:
                with torch.enable_grad():
                    value = closure()
            private._step(plain_step)
            return value

        # A bound method, because schedulers that are made later look for its __func__; marked where one has wrapped
        # it before.
        if getattr(plain_step, "_wrapped_by_lr_sched", False):
            step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        self._had_own_step = "step" in self.optimizer.__dict__
        self.optimizer.step = MethodType(step, self.optimizer)  # type: ignore[method-assign]
        self.run.on_close(self.optimizer.register_step_post_hook(lambda *_: self._average.update()).remove)
        self._plain_step = plain_step
        if self._scheduler is not None:
            # By a class of its own, not an attribute: schedulers save their attributes.
            kind = type(self._scheduler)

            def move(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
                return kind.step(scheduler, *args, **kwargs) if private.stepped else None

            self._scheduler.__class__ = type(kind.__name__, (kind,), {"step": move, "__module__": kind.__module__})
            self._plain_kind = kind
        self.optimizer.zero_grad()

    def _uninstall(self) -> None:
        """Whatever of it was installed; an attach that fails late comes here too."""
        if self._plain_step is not None:
            if self._had_own_step:
                self.optimizer.step = self._plain_step  # type: ignore[method-assign]
            else:
                self.optimizer.__dict__.pop("step", None)
        if self._plain_kind is not None:
            self._scheduler.__class__ = self._plain_kind
        self._plain_step, self._plain_kind = None, None


@takes_options
def attach(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    loader: DataLoader[Any] = None,  # type: ignore[assignment]  # refused; optimizer, which may be left out, comes first
    *,
    lr: float | str | None = None,
    loss: OfBatch | None = None,
    loss_reduction: str = "mean",
    loss_declared: str | None = None,
    lr_scheduler: Any = None,
    pad_to: int | None = None,
    batch_dim: int | None = None,
    groups: Callable[[Any], torch.Tensor] | None = None,
    ledger: str | Path | None = None,
    earlier: Sequence[str | Path] = (),
    resume: str | Path | None = None,
    **options: Any,
) -> Private:
    """Make an existing training loop private. Everything is checked here, before any data is touched.

        private = clipwise.attach(model, loader=loader, epsilon=3.0)
        for epoch in private.epochs():
            for x, y in private.loader: ...
                private.optimizer.step()
        private.detach()

    Whatever is not stated is found or follows from public facts (docs/methods/auto.md); private.statement() lists it.

    The loop:
        model, optimizer, loader: as they are; they are not wrapped, and `private.loader` gives batches of the same data. Without
            an optimizer, private.optimizer is Adam at a rate that is found, or at `lr`.
        lr: a learning rate, where no optimizer is given; 'auto' finds that of one that is.
        loss: for finding a rate: a function of model and batch that returns one loss a row, or (losses, right) with right in
            0..1 for each row. By default it is inferred, for batches of (inputs, targets).
        loss_reduction: how the loss that you call backward() on combines the examples, "mean" or "sum"; that it treats
            each alone is proved from its graph, or refused. private.backward(losses) needs none.
        loss_declared: "row-wise" is your word for a loss that cannot be proved so; the statement quotes it (docs/losses.md).
        lr_scheduler: the one that moves the rate, so that with max_physical_batch it moves once a logical step.
        pad_to: a public length that batches of texts or series are padded or cut to, where collate pads to the longest
            record and the model does not mask padding (see `clipwise.pad_to`).
        batch_dim: your word for which dimension of the model's arguments has the records, 0 or 1, where shapes could mean either (as
            many records as words); the statement quotes it. An argument without it is cut at its first.
        groups: for a method that treats groups apart, a function of a batch: the group (0, 1, ...) of each row.
        ledger: a file for the privacy ledger; an existing one goes on, and what it holds counts.
        earlier: ledgers of earlier runs on the same data, whose charges count in this budget.
        resume: a folder that `private.save` wrote to; the run goes on from its last whole checkpoint.
    """
    loader, optimizer, lr_scheduler = as_it_was(loader, optimizer, lr_scheduler)
    choice = choose(*split(options), Stated(check_loader(loader), optimizer, lr, loader.batch_size, open_ended=True))
    _check_scheduler(lr_scheduler, optimizer, choice)
    made = _optimizer(model, optimizer, choice)
    run = begin(
        *(model, made, loader, choice, partial(_task, model, loader, loss)),
        loss_reduction=loss_reduction,
        loss_declared=loss_declared,
        pad_to=pad_to,
        batch_dim=batch_dim,
        groups=groups,
        ledger=ledger,
        earlier=earlier,
        resume=resume,
        notify=lambda message: warnings.warn(message, stacklevel=2),
    )
    if choice.averages:
        run.automatic.append(
            "private.detach() puts the average into the model; `with private.averaged():` shows it before"
        )
    return _installed(run, made, loader, lr_scheduler, choice)


def _task(model: nn.Module, loader: DataLoader[Any], loss: OfBatch | None) -> Task:
    return inferred(model, loader) if loss is None else of_batches(model, loss, loader)


def _optimizer(model: nn.Module, optimizer: Optimizer | None, choice: Choice) -> Optimizer:
    if optimizer is not None:
        return optimizer
    if not choice.averages:
        raise BadArgument(
            f"optimizer=None: method={choice.mechanism.method!r} needs one; make one on model.parameters(), or use method='auto'"
        )
    return adam(model.parameters(), *(() if choice.rate is None else (choice.rate,)))


def _check_scheduler(lr_scheduler: Any, optimizer: Optimizer | None, choice: Choice) -> None:
    if lr_scheduler is None:
        return
    if choice.finds_rate:
        raise BadArgument(
            "lr_scheduler: the rate is found by the run (lr='auto'), which sets it; leave one of the two out"
        )
    if getattr(lr_scheduler, "optimizer", None) is not optimizer:
        raise BadArgument(
            f"lr_scheduler={type(lr_scheduler).__name__} is no learning-rate scheduler of this optimizer; make one on it, or leave it out"
        )
    if isinstance(lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        warnings.warn(
            "clipwise: ReduceLROnPlateau moves the rate by the figure that you give it; give it one on public data (a loss on training "
            "records is outside the guarantee)",
            stacklevel=3,
        )


def _installed(run: Run, optimizer: Optimizer, loader: DataLoader[Any], lr_scheduler: Any, choice: Choice) -> Private:
    try:
        return Private(run, optimizer, loader, lr_scheduler, choice)
    except BaseException:
        run.close()  # the ledger's lock, and the model, are not kept by a run that never was
        raise
