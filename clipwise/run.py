"""A run: plan, engine, noise, sampler and ledger, made together and checked before any data is touched.

The drop-in API (dropin.py) and the training loop (loop/fit.py) stand on it. A loop of one's own from the ground up:

    with clipwise.Run(model, optimizer, loader, epsilon=3.0, delta=1e-5, epochs=10) as run:
        for batches in run.logical_batches(run.plan.steps):
            clipwise.private_step(run.stepper, batches, loss=loss_of_records)
    print(run.statement().to_markdown())
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from clipwise import __version__, guards, plans, validate
from clipwise.accounting import Epsilon, Ledger, StepEvent, epsilon, within
from clipwise.accounting.book import Mark
from clipwise.accounting.ledger import LedgerExists, block_of
from clipwise.checkpoint import Checkpoint, CheckpointCorrupt, Checkpoints
from clipwise.keystream import Key
from clipwise.mechanism import Mechanism, Performance, chosen
from clipwise.noise import GaussianNoise, Noise
from clipwise.norms import ROW_WISE, Bookkeeping, PlainEngine
from clipwise.plans import Counted, Facts, Plan, check_delta
from clipwise.sampling import SampledLoader, check_collate, check_loader
from clipwise.state import Generators, Part, RunState, StepState, data_fingerprint
from clipwise.statement import Statement
from clipwise.step import Engine, State, Stepper, initial_state, private_step
from clipwise.types import BadArgument, BudgetExhausted, LoopMisuse

_SHORT = 64  # numbers in a vector that is still worth showing


class Run:
    """One run on one model. `state` is public: it depends on the data only through released values."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loader: DataLoader[Any],
        mechanism: Mechanism | None = None,
        performance: Performance | None = None,
        *,
        loss_reduction: str = "mean",
        loss_declared: str | None = None,
        pad_to: int | None = None,
        groups: Callable[[Any], Tensor] | None = None,
        ledger: str | Path | None = None,
        earlier: Sequence[str | Path] = (),
        resume: str | Path | None = None,
        after: tuple[float, ...] = (),
        notify: Callable[[str], None] = warnings.warn,
        **options: Any,
    ):
        """`mechanism` and `performance`, or their options by name (see `attach`). `after` holds the noise multipliers of
        releases on all records that follow the last step. `notify` hears what a user should know. With `resume`, all parts
        are there only after `restore`."""
        mechanism, performance = chosen(mechanism, performance, options)
        self.mechanism, self.performance = mechanism, performance
        validate.choice("loss_reduction", loss_reduction, ("mean", "sum"))
        if loss_declared is not None:
            validate.choice("loss_declared", loss_declared, (ROW_WISE,))
        parameters = trainable_parameters(model, optimizer)
        numbers = sum(p.numel() for p in parameters.values())
        rate = float(optimizer.param_groups[0]["lr"])
        facts = Facts(check_loader(loader), numbers, loader.batch_size, rate, after)
        self.model = model
        self._notes: list[str] = []
        self.resumed = resume is not None
        self._kept_in: set[Path] = set()
        engine = self._engine(parameters, loss_reduction, loss_declared, notify)
        collated = check_collate(loader, pad_to=pad_to) if mechanism.private else None
        books = [Ledger.read(path) for path in earlier]
        new = ledger is not None and not os.path.lexists(ledger)
        self._saved = None if resume is None else Checkpoints(resume).newest(notify)
        plan, facts = self._planned(facts, ledger, books)
        _check_groups(plan, groups)
        self._data = data_fingerprint(loader.dataset, mechanism.seed)
        if resume is not None:
            self._check_resume(resume, plan)
        self._fingerprint = self._of_plan(plan, parameters, optimizer, loader)
        book = self._open(ledger if plan.private else None, plan, books)
        self._ledger_path = ledger
        own = [] if facts.counted is None else [facts.counted.event]
        self._goes_on = book.events() != own  # an older ledger whose charges count
        try:
            if self._saved is not None and book.stream == book.segment:  # steps are redone with other noise
                plan = self._with_what_is_left(plan, facts, book, self._saved.step)
            self._assemble(plan, engine, book, optimizer, loader, collated, groups)
        except BaseException:  # the user's own code, say: the ledger is let go of, and a new one leaves no trace
            book.close()
            if new and not book.events():
                Path(ledger).unlink(missing_ok=True)  # type: ignore[arg-type]
            raise
        self.parts = RunState(model=model, optimizer=optimizer, step=StepState(self.stepper), generators=Generators())
        self._closing: list[Callable[[], None]] = []
        self._claim = guards.Claim(model, parameters, optimizer, self.close)

    def _assemble(
        self,
        plan: Plan,
        engine: Engine,
        book: Ledger,
        optimizer: Optimizer,
        loader: DataLoader[Any],
        collated: Any,
        groups: Callable[[Any], Tensor] | None,
    ) -> None:
        key = self._key().derive(f"segment {book.stream}")
        self.batches = SampledLoader(
            loader, plan.sampler, key, max_physical_batch=self.performance.max_physical_batch, collated=collated
        )
        self.stepper = Stepper(
            plan,
            initial_state(plan),
            engine=engine,
            noise=GaussianNoise(key),
            ledger=book,
            optimizer=optimizer,
            groups=groups,
        )

    def _planned(self, facts: Facts, ledger: str | Path | None, books: list[Ledger]) -> tuple[Plan, Facts]:
        """The plan, after what the books hold; where the number of records is private it is counted first."""
        spent = [event for book in books for event in book.events()]
        if self.mechanism.size == "private" and self.mechanism.private:
            counted = self._count(facts.size, ledger, books)
            facts, spent = facts._replace(counted=counted), [*spent, counted.event]
        return plans.make(self.mechanism, facts, spent=spent), facts

    def _key(self) -> Key:
        seed = self.mechanism.seed
        return Key.fresh() if seed is None else Key.from_seed(seed)

    def _count(self, size: int, path: str | Path | None, books: list[Ledger]) -> Counted:
        """The number of records with noise, charged before that is drawn: in the run's own ledger, or in one in memory that
        it takes in. A run that goes on has counted before."""
        if self._saved is not None and (known := self._saved.facts["run"].get("counted")):
            return Counted(int(known["records"]), StepEvent(1.0, float(known["noise_multiplier"])))
        event = plans.count_event(self.mechanism)
        facts = {"release": "the number of records, with noise", "neighbours": "add or remove one record"}
        if path is None:
            books.append(book := Ledger.in_memory(run=facts))
        else:
            book = Ledger.open(path, run=facts) if os.path.lexists(path) else Ledger.create(path, run=facts)
        with book:
            book.charge(0, event, note=facts)
            noise = GaussianNoise(self._key().derive(f"count {book.stream}"))
            (noised,) = noise.add([torch.tensor([float(size)], dtype=torch.float64)], event.noise_multiplier, step=0)
        return Counted(max(1, round(noised.item())), event)

    def _engine(
        self,
        parameters: Mapping[str, nn.Parameter],
        loss_reduction: str,
        loss_declared: str | None,
        notify: Callable[[str], None],
    ) -> Engine:
        if not self.mechanism.private:
            return PlainEngine(parameters, loss_reduction=loss_reduction)

        def remember(message: str) -> None:
            self._notes.append(message)
            notify(message)

        return Bookkeeping(
            self.model,
            parameters,
            loss_reduction=loss_reduction,
            loss_declared=loss_declared,
            by_rule=self.mechanism.seed is not None,  # a run that is to be repeated must not depend on a clock
            generic=self.performance.engine == "generic",
            notify=remember,
        )

    # -- a run that goes on
    # ----------------------------------------------------------------------------------------------

    def _check_resume(self, folder: str | Path, plan: Plan) -> None:
        saved = self._saved
        if saved is None:
            raise BadArgument(f"resume={str(folder)!r} holds no checkpoint; give the folder that the run was saved to")
        if saved.facts.get("data") != self._data:
            raise BadArgument(
                f"resume={str(folder)!r}: the checkpoint is of a run on other data; go on with the same data, or start a new run"
            )
        mine, theirs = public_facts(plan), saved.facts["run"]
        for name in ("method", "method_options", "sampling"):
            if theirs.get(name) != json.loads(json.dumps(mine[name])):
                raise BadArgument(
                    f"resume={str(folder)!r}: the run had {name}={theirs.get(name)!r}, and {mine[name]!r} is asked for; resume "
                    "with the same method, or start a new run"
                )

    def _of_plan(
        self, plan: Plan, parameters: Mapping[str, nn.Parameter], optimizer: Optimizer, loader: DataLoader[Any]
    ) -> str | None:
        """Of everything that a redone step must share with the first one to be the same release, bit for bit; None where it
        cannot be: without a seed the noise is lost, and workers or a device draw and add in an order of their own."""
        device = next(iter(parameters.values())).device
        repeatable = device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
        if self.mechanism.seed is None or loader.num_workers or not repeatable:
            return None
        settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        facts = {
            **public_facts(plan),
            "seed": self.mechanism.seed,
            "performance": self.performance.model_dump(),
            "parameters": {name: [*p.shape, str(p.dtype)] for name, p in parameters.items()},
            "optimizer": [type(optimizer).__name__, settings],
            "data": self._data,
            "machine": [str(device), torch.get_num_threads(), torch.__version__],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=repr).encode()).hexdigest()

    def _open(self, path: str | Path | None, plan: Plan, earlier: Sequence[Ledger]) -> Ledger:
        """In memory, or a file: a new one, or an old one that goes on (its charges stay, and count)."""
        facts, block, saved = public_facts(plan), block_of(plan.steps), self._saved
        if path is None:
            if saved is not None and plan.private:
                raise BadArgument("ledger=None: a run that goes on needs the ledger it was charged to; give its file")
            return Ledger.in_memory(run=facts, after=earlier, block=block)
        if saved is None:
            with suppress(LedgerExists):
                return Ledger.create(path, run=facts, plan_fingerprint=self._fingerprint, after=earlier, block=block)
        elif not Path(path).exists():
            raise BadArgument(f"ledger={str(path)!r} does not exist; give the ledger that the run was charged to")
        else:
            _refuse_unmarked(saved, path)
        replays = saved is not None and self._fingerprint is not None
        return Ledger.open(
            path,
            run=facts,
            plan_fingerprint=self._fingerprint,
            resumes=(saved.step, saved.digest) if saved is not None and replays else None,
            must_contain=None if saved is None else saved.facts["ledger_head"],
            after=earlier if saved is None else (),  # a run that goes on has them in its ledger
            block=block,
        )

    def _with_what_is_left(self, plan: Plan, facts: Facts, book: Ledger, taken: int) -> Plan:
        """The plan with as much more noise as the steps that were charged in vain make necessary."""
        if plan.target_epsilon is None or plan.delta is None or plan.steps is None or not plan.method.sound:
            return plan
        spent, left = book.events(), max(0, plan.steps - taken)
        coming = [*(plan.coming(taken, left) if left else ()), *plan.after]
        if not coming or within([*spent, *coming], plan.delta, plan.target_epsilon, plan.accountant):
            return plan
        try:
            if not left:
                raise BadArgument("the releases that follow the last step were charged before, and would be again")
            return plans.make(self.mechanism, facts, spent=spent, taken=taken)
        except BadArgument as error:
            book.close()
            raise BudgetExhausted(
                f"the {left} steps that are left do not fit into epsilon={plan.target_epsilon:g} any more ({error}); state a larger "
                "epsilon, or take the weights as they are"
            ) from error

    def restore(self, **parts: Part) -> None:
        """Add the parts that a loop has beside the run's own, and load them all where a run goes on."""
        self.parts.add(**parts)
        if self._saved is not None:
            self.parts.load(self._saved.state)
            self._saved = None

    def save(self, folder: str | Path) -> Path:
        """Keep the run's state; `resume=folder` goes on from there. Between two logical steps only."""
        if self.stepper.waits or self.stepper.unfinished:
            raise LoopMisuse(
                "save() in the middle of a logical batch; call it after an optimizer.step() that completed one (private.stepped)"
            )
        if self.plan.private and self._ledger_path is None:
            raise BadArgument(
                "ledger=None: this run's ledger is in memory, and what was spent would be lost with the process; give "
                "attach(ledger=FILE), or fit(ledger=FILE)"
            )
        step, facts = self.state.step, {"run": public_facts(self.plan), "data": self._data}
        facts |= {"run_id": self.ledger.run_id, "ledger_head": self.ledger.head}

        def mark(digest: str) -> None:
            if self.plan.private:
                self.ledger.mark(step, digest)

        kept = Checkpoints(folder)
        if kept.folder not in self._kept_in and self.plan.private:
            kept.refuse_another_run(self.ledger.run_id)
        self._kept_in.add(kept.folder)
        return kept.save(step, self.parts.save(), facts, mark)

    @property
    def plan(self) -> Plan:
        return self.stepper.plan

    @property
    def state(self) -> State:
        return self.stepper.state

    @property
    def engine(self) -> Engine:
        return self.stepper.engine

    @property
    def noise(self) -> Noise:
        return self.stepper.noise

    @property
    def ledger(self) -> Ledger:
        return self.stepper.ledger

    def logical_batches(self, count: int) -> Iterator[Iterator[tuple[Any, Any]]]:
        """The next `count` logical batches, each as its physical ones, for `private_step`."""
        first = self.state.step
        for _, batches in groupby(self.batches.batches(range(first, first + count)), key=lambda pair: pair[0].step):
            yield batches

    def take_steps(self, count: int, loss: Callable[[Any], Tensor]) -> Iterator[None]:
        """Take the next `count` steps, one each time that it is asked. Where a physical batch does not fit into memory the
        logical batch is begun anew in halves: the same records, one noise draw, an equal sum."""
        end = self.state.step + count
        while self.state.step < end:
            try:
                for batches in self.logical_batches(end - self.state.step):
                    private_step(self.stepper, batches, loss=loss)
                    yield
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not _out_of_memory(error) or not self.batches.halve(self.stepper.rows):
                    raise
                self.stepper.drop()

    def __enter__(self) -> Self:
        """For a loop of one's own: a run that goes on is loaded, and the model records from here to the end of the block."""
        self.restore()
        self.engine.install()
        return self

    def __exit__(self, *error: object) -> None:
        self.stepper.drop()  # what a step that failed has summed
        self.close()

    def close(self, facts: Mapping[str, Any] | None = None) -> None:
        """Give the model back and end the ledger's segment, with public facts; may be called twice."""
        self.engine.remove()
        self.stepper.drop()
        self.stepper.whereabouts.end()
        while self._closing:
            self._closing.pop()()
        self._claim.give_up()
        self.ledger.close(facts)

    def on_close(self, give_back: Callable[[], None]) -> None:
        """What else is to be given back when the run ends."""
        self._closing.append(give_back)

    def note(self, sentence: str) -> None:
        """What the statement is to say, once."""
        if sentence not in self._notes:
            self._notes.append(sentence)

    def affordable(self, count: int) -> int:
        """How many of the next `count` steps fit into the target epsilon (all of them without a target)."""
        plan, start = self.plan, self.state.step
        if plan.target_epsilon is None or plan.delta is None or not plan.method.sound:
            return count
        if not self._goes_on and plan.steps is not None and start + count <= plan.steps:
            return count  # the noise was calibrated for these
        target, delta = plan.target_epsilon, plan.delta
        spent = self.ledger.events()

        def fits(more: int) -> bool:
            first = max(start, self.ledger.charged_until)  # what is redone bit for bit is charged already
            coming = plan.coming(first, start + more - first) if start + more > first else []
            return within([*spent, *coming, *plan.after], delta, target, plan.accountant)

        low, high = 0, count + 1  # fits(low) holds, fits(high) is not claimed
        if fits(count):
            return count
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def public_values(self) -> dict[str, Any]:
        """The noise of the last step, and the numbers of the method's state (its thresholds, ...): released or public."""
        own: dict[str, Any] = {"noise_multiplier": self.plan.total(max(0, self.state.step - 1))}
        for name, value in self.state.method._asdict().items():
            if isinstance(value, int | float):
                own[name] = float(value)
            elif isinstance(value, Tensor) and 0 < value.numel() <= _SHORT:
                own[name] = value.flatten().tolist()
        return own

    def exhausted(self) -> BudgetExhausted:
        plan = self.plan
        remedy = "Plan more epochs (the noise is calibrated for them), or state a larger epsilon"
        if self._goes_on:
            remedy = (
                f"The ledger {self._ledger_path} held charges of earlier runs, which count: state a larger epsilon, or give a ledger of "
                "its own to a run on other data"
            )
        return BudgetExhausted(
            f"step {self.state.step} would exceed epsilon={plan.target_epsilon:g} at delta={plan.delta:g}; it was not taken. {remedy}"
        )

    def epsilon(self, delta: float | None = None) -> float:
        """Epsilon so far, from the ledger, at the plan's delta or another; infinite without privacy."""
        return self._spent(delta).value if self.plan.private else float("inf")

    def epsilon_or_none(self) -> float | None:
        return None if self.plan.private and self.plan.delta is None else self.epsilon()

    def _spent(self, delta: float | None) -> Epsilon:
        size = self.plan.sampler.size if self.plan.size_is_public else None
        delta = self.plan.delta if delta is None else check_delta(delta, size)
        if delta is None:
            raise BadArgument(
                "delta=None: epsilon holds at some delta; give one well below 1 / size of the data set, such as 1e-5"
            )
        return epsilon(self.ledger.events(), delta, self.plan.accountant)

    def statement(self) -> Statement:
        plan, method = self.plan, self.plan.method
        spent = None if plan.delta is None or not plan.private else self._spent(None)
        return Statement(
            private=plan.private,
            epsilon=float("inf") if spent is None else spent.value,
            delta=plan.delta if plan.private else None,
            accountant=("none" if not plan.private else plan.accountant) if spent is None else spent.accountant,
            target_epsilon=plan.target_epsilon,
            method=method.name,
            method_options=dataclasses.asdict(method),
            reference=method.reference,
            sound=method.sound,
            unit=plan.unit,
            neighbours=plan.neighbours,
            sampler=plans.SAMPLING[plan.sampling].words,
            sample_rate=plan.sample_rate,
            expected_batch_size=plan.expected_batch_size,
            steps=sum(event.count for event in self.ledger.events()),
            planned_steps=None if plan.steps is None else plan.steps + len(plan.after) + (plan.counted is not None),
            noise_multiplier=plan.noise_multiplier,
            noise_schedule=self._noise_path(),
            claimed_epsilon=None
            if plan.delta is None
            else method.claimed_epsilon(self.state.method, plan.context, plan.delta),
            side_queries=tuple(side._asdict() for side in plan.side_queries),
            size_is_public=plan.size_is_public,
            size_released=_counted(plan),
            loss=self.engine.loss.statement() if isinstance(self.engine, Bookkeeping) else "not looked at",
            seeded=self.mechanism.seed is not None,
            ledger=self._ledger_name(),
            ledger_head=self.ledger.head if plan.private else "",
            notes=(*self._notes, *self._cost_of_groups()),
            versions=f"clipwise {__version__}, torch {torch.__version__}",
        )

    def _cost_of_groups(self) -> list[str]:
        """What a method that treats groups apart does with the labels; nothing for any other."""
        if not self.plan.method.needs_groups:
            return []
        sides = "; ".join(
            f"{s.name}, {s.width} numbers, noise multiplier {s.noise_multiplier:g} at l2 bound {s.l2_bound:g}"
            for s in self.plan.side_queries
        )
        return [
            f"group labels: {self.plan.method.name} reads the group of each record. A record's label is part of the record, "
            f"and protected with it. What is released about groups at every step ({sides}) is part of the step's noise and "
            "of the epsilon above. The number of groups and their names are treated as public."
        ]

    def _noise_path(self) -> str:
        """The schedule in words: its text, and the noise of the first and the last step."""
        plan = self.plan
        last = (plan.steps or max(1, self.state.step)) - 1
        first, final = plan.total(0), plan.total(last)
        if plan.schedule.kind == "constant" and first == final:
            return "constant"
        return f"{plan.schedule}, from {first:.6g} to {final:.6g} at step {last}"

    def _ledger_name(self) -> str:
        if not self.plan.private:
            return "none"
        return "in memory" if self._ledger_path is None else str(self._ledger_path)


def public_facts(plan: Plan) -> dict[str, Any]:
    """What a ledger says of the run that it belongs to."""
    return {
        "method": plan.method.name,
        "method_options": dataclasses.asdict(plan.method),
        "sampling": plan.sampling,
        "sample_rate": plan.sample_rate,
        "expected_batch_size": plan.expected_batch_size,
        "sound": plan.method.sound,
        "noise_multiplier": plan.noise_multiplier,
        "schedule": str(plan.schedule),
        "steps": plan.steps,
        "target_epsilon": plan.target_epsilon if plan.private else None,
        "delta": plan.delta,
        "neighbours": plan.neighbours,
        **({} if plan.counted is None else {"counted": _counted(plan)}),
        "clipwise": __version__,
    }


def _refuse_unmarked(saved: Checkpoint, ledger: str | Path) -> None:
    """A state that the ledger did not see kept: changed since, with its manifest, or of another run."""
    book = Ledger.read(ledger, must_contain=saved.facts["ledger_head"]).book
    if not any(Mark(saved.step, saved.digest) in segment.marks for segment in book.segments):
        raise CheckpointCorrupt(
            f"{saved.path} is not a state that {ledger} has on record: it was changed after it was kept; remove it to go on from "
            "the one before"
        )


def _counted(plan: Plan) -> dict[str, Any] | None:
    """Of a private number of records: what was released of it, and the noise that is in it."""
    count = plan.counted
    return None if count is None else {"records": count.records, "noise_multiplier": count.event.noise_multiplier}


def _check_groups(plan: Plan, groups: Any) -> None:
    if plan.method.needs_groups and groups is None:
        raise BadArgument(
            f"groups=None: method {plan.method.name!r} wants the group of each record; give a function of the batch"
        )
    if groups is not None and not callable(groups):
        raise BadArgument(
            f"groups={groups!r} is not a function; give one of the batch, that tells the group of each row"
        )


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error) for words in ("out of memory", "can't allocate memory", "not enough memory"))


def trainable_parameters(model: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """The parameters that will be trained, by name, after refusing what cannot be trained privately."""
    if not isinstance(model, nn.Module):
        raise BadArgument(f"model={type(model).__name__} is not a torch.nn.Module; give the model itself")
    if not isinstance(optimizer, Optimizer):
        raise BadArgument(
            f"optimizer={type(optimizer).__name__} is not a torch.optim optimizer; make one on model.parameters()"
        )
    guards.refuse_other_ranks()
    guards.refuse_model(model)
    guards.refuse_optimizer(optimizer)
    guards.refuse_claimed(model)
    held = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    own = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not own:
        raise BadArgument("model: no parameter requires a gradient; unfreeze at least one layer")
    if strange := held - {id(p) for p in own.values()}:
        raise BadArgument(
            f"optimizer: {len(strange)} of its parameters are not the model's; put every module that is trained into one model"
        )
    if forgotten := [name for name, p in own.items() if id(p) not in held]:
        raise BadArgument(
            f"optimizer: it does not hold {', '.join(forgotten[:5])}{' ...' if len(forgotten) > 5 else ''}; "
            "add them, or freeze them with requires_grad_(False)"
        )
    return own
