"""A run: plan, engine, noise, sampler and ledger, made together and checked before any data is touched.

The drop-in API (dropin.py) and the training loop (loop/fit.py) stand on it. A loop of one's own from the ground up:

    with clipwise.Run(model, optimizer, loader, epsilon=3.0, delta=1e-5, epochs=10) as run:
        for batches in run.logical_batches(run.plan.steps):
            clipwise.private_step(run.stepper, batches, loss=loss_of_records)
    print(run.statement().to_markdown())
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from clipwise import __version__, guards, plans, validate
from clipwise.accounting import AnyLedger, Epsilon, Event, FollowedLedger, Ledger, StepEvent, epsilon, trade_off, within
from clipwise.accounting.followed import as_seen
from clipwise.accounting.ledger import block_of
from clipwise.checkpoint import Checkpoints, refuse_unkeepable
from clipwise.facts import cost_of_groups, counted, noise_path, planned_releases, public_facts
from clipwise.keystream import Key
from clipwise.mechanism import Mechanism, Performance, chosen
from clipwise.noise import GaussianNoise, Noise
from clipwise.norms import ROW_WISE, Bookkeeping, PlainEngine
from clipwise.own_loss import own_loss
from clipwise.plans import Counted, Facts, Phase, Plan, check_delta
from clipwise.ranks import World, at_rest, unwrapped
from clipwise.resuming import check_resume, open_ledger, plan_fingerprint, with_what_is_left
from clipwise.sampling import PhysicalBatch, PoissonSampler, SampledLoader, check_collate, check_loader
from clipwise.shards import Shards
from clipwise.state import Generators, Part, RunState, StepState, content_fingerprint, data_fingerprint
from clipwise.statement import Statement
from clipwise.step import Engine, State, Stepper, initial_state, private_step
from clipwise.types import BadArgument, BudgetExhausted, LoopMisuse

_SHORT = 64  # numbers in a vector that is still worth showing
_WHOLE_ROWS = 512  # records in memory at once where all are read: it bounds memory, and figures do not depend on it

Before = Callable[[Mechanism, Facts], tuple[Phase, ...]]


class Run:
    """One run on one model. `state` is public: it depends on the data only through released values."""

    input_mean: Tensor | None = None  # that an automatic run found: what the first layer's inputs are seen less of

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
        batch_dim: int | None = None,
        groups: Callable[[Any], Tensor] | None = None,
        ledger: str | Path | None = None,
        earlier: Sequence[str | Path] = (),
        resume: str | Path | None = None,
        finish: bool = False,
        before: Before | None = None,
        follows: Run | None = None,
        prepared: Sequence[Event] = (),
        after: tuple[float, ...] = (),
        notify: Callable[[str], None] = warnings.warn,
        **options: Any,
    ):
        """`mechanism` and `performance`, or their options by name (see `attach`). `before` says what is measured in this budget
        before training, in a run of its own that was closed, which the training `follows` (or, with `resume`, has followed).
        `prepared` was charged already, to prepare the records; `after` holds the noise multipliers of releases on all records
        that follow the last step (`finish`: there is none to come). `notify` hears what a user should know. With `resume`, all
        parts are there only after `restore`."""
        mechanism, performance = chosen(mechanism, performance, options)
        self.mechanism, self.performance, wrapper, model = mechanism, performance, model, unwrapped(model)
        parameters = guards.trainable_parameters(model, optimizer)
        self.world = World.here(next(iter(parameters.values())).device)
        self.model, facts = model, _facts(loader, parameters, optimizer, after)
        self._notes, self._kept_in = list[str](), set[Path]()
        self.automatic: list[str] = []  # what was found or chosen by rule, in words for the statement
        self.resumed, self._prepared = resume is not None, tuple(prepared)
        engine = self._engine(parameters, loss_reduction, loss_declared, batch_dim, notify)
        collated = check_collate(loader, pad_to=pad_to) if mechanism.private else None
        self._measures = before is not None and follows is None and resume is None
        books = [Ledger.read(path) for path in earlier] if follows is None else follows._kept_in_memory()
        new = ledger is not None and not os.path.lexists(ledger) and self.world.leads
        self._saved = None if resume is None else Checkpoints(resume).newest(notify)
        plan, self.facts = self._planned(facts, ledger, books, before, follows)
        self._check(plan, groups, resume)
        self._data = data_fingerprint(loader.dataset, mechanism.seed)
        self._begin_alike(facts, parameters, loader)
        if resume is not None:
            check_resume(resume, self._saved, plan, self._data)
        alike = (parameters, optimizer, loader, self._data, self.world.size)
        self._fingerprint = plan_fingerprint(plan, mechanism, performance, *alike)
        book, self._ledger_path = self._ledger(ledger if plan.private else None, plan, books), ledger
        self._goes_on = not _same(book.events(), _of_this_run(plan, measured=not self._measures))  # older charges count
        with _or_let_go(book, ledger if new else None):
            if self._saved is not None and not finish and book.stream == book.segment:  # redone with other noise
                plan = with_what_is_left(plan, mechanism, self.facts, book, self._saved.step)
            self._assemble(plan, engine, book, optimizer, loader, collated, groups)
        self.parts = RunState(model=model, optimizer=optimizer, step=StepState(self.stepper), generators=Generators())
        self._closing: list[Callable[[], None]] = [at_rest(wrapper), self._shards.rest]
        self._claim = guards.Claim(model, parameters, optimizer, self.close)

    def _assemble(
        self,
        plan: Plan,
        engine: Engine,
        book: AnyLedger,
        optimizer: Optimizer,
        loader: DataLoader[Any],
        collated: Any,
        groups: Callable[[Any], Tensor] | None,
    ) -> None:
        # What is measured before training has noise of its own, also where two ledgers in memory both begin at segment 0.
        world, own = self.world, self._key()
        label = f"{'measuring, ' if self._measures else ''}segment {book.stream}"
        key, part = Key(world.told(own.secret), own.seeded).derive(label), (world.rank, world.size)
        most = self.performance.max_physical_batch
        self.batches = SampledLoader(loader, plan.sampler, key, max_physical_batch=most, collated=collated, part=part)
        whole = PoissonSampler(plan.sampler.size, 1.0)
        rows = most or max(1, min(_WHOLE_ROWS, round(plan.expected_batch_size)))
        self._whole = SampledLoader(loader, whole, key, max_physical_batch=rows, collated=collated, part=part)
        self.stepper = Stepper(
            plan,
            initial_state(plan),
            engine=engine,
            noise=GaussianNoise(key),
            ledger=book,
            optimizer=optimizer,
            groups=groups,
            world=world,
            shards=self._shards,
        )

    def _check(self, plan: Plan, groups: Callable[[Any], Tensor] | None, resume: str | Path | None) -> None:
        guards.check_groups(plan.method.name, plan.method.needs_groups, groups)
        self._shards.refuse(*_needing_all(plan, resume))

    def _begin_alike(self, facts: Facts, parameters: Mapping[str, nn.Parameter], loader: DataLoader[Any]) -> None:
        """Processes that train together have the same options, and the same records in the same order: one that stood at two
        places could be drawn twice. The leader's weights count."""
        if self.world.size == 1:
            return
        once = Key(self.world.told(Key.fresh().secret), seeded=False)  # for this comparison, and kept nowhere
        known = (facts, self.mechanism, content_fingerprint(loader.dataset, once), list(parameters))
        self.world.agree("data, model and options", repr(known).encode())
        self.world.share_weights(self.model)

    def _ledger(self, path: str | Path | None, plan: Plan, books: list[Ledger]) -> AnyLedger:
        """The leader's, and what the others see of it."""
        if not self.world.leads:
            return FollowedLedger(self.world.told(b""))
        book = open_ledger(path, plan, books, self._saved, self._fingerprint)
        self.world.told(as_seen(book))
        return book

    def _planned(
        self,
        facts: Facts,
        ledger: str | Path | None,
        books: list[Ledger],
        before: Before | None,
        follows: Run | None,
    ) -> tuple[Plan, Facts]:
        """The plan, after what the books hold; where the number of records is private it is counted first. What follows a
        measuring goes on with its plan, and with what it found."""
        if follows is not None:
            method = plans.method_of(self.mechanism)
            return dataclasses.replace(follows.plan, method=method, learning_rate=facts.learning_rate), follows.facts
        spent = [*self._prepared, *(event for book in books for event in book.events())]
        if self.mechanism.size == "private" and self.mechanism.private:
            counted = self._count(facts.size, ledger, books)
            facts, spent = facts._replace(counted=counted), [*spent, counted.event]
        if before is None:
            return dataclasses.replace(plans.make(self.mechanism, facts, spent=spent), prepared=self._prepared), facts
        facts = facts._replace(before=before(self.mechanism, facts))
        if self._measures and ledger is not None and os.path.lexists(ledger):  # of a run that died while it measured
            spent = [event for book in (*books, Ledger.read(ledger)) for event in book.events()]
        plan = dataclasses.replace(plans.make(self.mechanism, facts, spent=spent), prepared=self._prepared)
        if self._saved is not None:  # what it was calibrated to, after all that had been charged by then
            plan = dataclasses.replace(plan, noise_multiplier=float(self._saved.facts["run"]["noise_multiplier"]))
        return plan, facts

    def _kept_in_memory(self) -> list[Ledger]:
        """The ledger, where no file holds it; a process that does not write it has none."""
        return [self.ledger] if self._ledger_path is None and isinstance(self.ledger, Ledger) else []

    def _key(self) -> Key:
        seed = self.mechanism.seed
        return Key.fresh() if seed is None else Key.from_seed(seed)

    def _count(self, size: int, path: str | Path | None, books: list[Ledger]) -> Counted:
        """The number of records with noise, charged before that is drawn: in the run's own ledger, or in one in memory that
        it takes in. A run that goes on has counted before."""
        if self._saved is not None and (known := self._saved.facts["run"].get("counted")):
            return Counted(int(known["records"]), StepEvent(1.0, float(known["noise_multiplier"])))
        event = plans.count_event(self.mechanism)
        if not self.world.leads:
            return Counted(int(self.world.told(b"")), event)
        facts = {"release": "the number of records, with noise", "neighbours": "add or remove one record"}
        if path is None:
            books.append(book := Ledger.in_memory(run=facts))
        else:
            book = Ledger.open(path, run=facts) if os.path.lexists(path) else Ledger.create(path, run=facts)
        with book:
            book.charge(0, event, note=facts)
            noise = GaussianNoise(self._key().derive(f"count {book.stream}"))
            (noised,) = noise.add([torch.tensor([float(size)], dtype=torch.float64)], event.noise_multiplier, step=0)
        count = max(1, round(noised.item()))
        self.world.told(str(count).encode())
        return Counted(count, event)

    def _engine(
        self,
        parameters: Mapping[str, nn.Parameter],
        loss_reduction: str,
        loss_declared: str | None,
        batch_dim: int | None,
        notify: Callable[[str], None],
    ) -> Engine:
        self._shards = Shards(self.model, parameters, self.world)
        validate.choice("loss_reduction", loss_reduction, ("mean", "sum"))
        if batch_dim is not None:
            if isinstance(batch_dim, bool) or batch_dim not in (0, 1):
                raise BadArgument(f"batch_dim={batch_dim!r}: give 0 (records first) or 1 (time first), or leave it out")
            self._notes.append(
                f"Declared by the user: dimension {batch_dim} of the model's arguments has the records (batch_dim)."
            )
        if loss_declared is not None:
            validate.choice("loss_declared", loss_declared, (ROW_WISE,))
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
            generic=self.performance.engine == "generic",
            own_loss=own_loss(self.model, loss_reduction),
            batch_dim=batch_dim,
            whole=self._shards.whole,
            notify=remember,
        )

    # -- a run that goes on
    # ----------------------------------------------------------------------------------------------

    def restore(self, **parts: Part) -> None:
        """Add the parts that a loop has beside the run's own, and load them all where a run goes on."""
        self.parts.add(**parts)
        if self._saved is not None:
            self.parts.load(self._saved.state)
            self._saved = None
            if (
                not self.world.leads
            ):  # the generators that were kept are the leader's: dropout is to differ between processes
                torch.manual_seed(torch.initial_seed() + self.world.rank)

    def refuse_unkeepable(self) -> None:
        """Names a part whose state a checkpoint cannot hold, before the run relies on one."""
        refuse_unkeepable(self.parts.save())

    def save(self, folder: str | Path) -> Path:
        """Keep the run's state; `resume=folder` goes on from there. Between two logical steps only."""
        if self.stepper.waits or self.stepper.unfinished:
            raise LoopMisuse(
                "save() in the middle of a logical batch; call it after an optimizer.step() that completed one (private.stepped)"
            )
        self._shards.refuse("save(), of which there would be a part in each process")
        if self.plan.private and self._ledger_path is None:
            raise BadArgument(
                "ledger=None: this run's ledger is in memory, and what was spent would be lost with the process; give "
                "attach(ledger=FILE), or fit(ledger=FILE)"
            )
        if not self.world.leads:
            return Path(folder)  # the leader keeps it, for all
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
    def ledger(self) -> AnyLedger:
        return self.stepper.ledger

    def logical_batches(self, count: int) -> Iterator[Iterator[tuple[Any, Any]]]:
        """The next `count` logical batches, each as its physical ones, for `private_step`."""
        first = self.state.step
        for _, batches in groupby(self.batches.batches(range(first, first + count)), key=lambda pair: pair[0].step):
            yield batches

    def all_records(self) -> Iterator[tuple[PhysicalBatch, Any]]:
        """Every record once, in physical batches (of several processes, to each its part)."""
        return self._whole.batches([self.state.step])

    def release(self, sums: Tensor, event: Event, *, l2_bound: float, what: str) -> Tensor:
        """Sums over all records with noise, in the sums' own memory: charged before that exists, as a step of its own. One
        record moves the sums by at most `l2_bound`."""
        step = self.state.step
        self.ledger.charge(step, event, note={"release": what})
        self.world.add_up([sums])
        (noised,) = self.noise.add([sums], event.noise_multiplier * l2_bound, step=step)
        self.stepper.state = self.state._replace(step=step + 1)
        return noised

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
                # Of several processes each halves its own: with a seed the ledger must hear of it, and only one of them writes.
                may = self._fingerprint is None or self.world.size == 1
                if not _out_of_memory(error) or not may or not self.batches.halve(self.stepper.rows):
                    raise
                self.stepper.drop()
                self._leave_the_plan()

    def _leave_the_plan(self) -> None:
        """From now on sums are added up in other parts, and differ by rounding: a redo with the same noise would not be the same
        release. So what follows stands in a segment without a plan, after which the ledger lets nothing be redone: a run that
        goes on from here, or from before, draws noise of its own and is charged again."""
        if self._fingerprint is None or self._ledger_path is None or not self.plan.private:
            return
        self.ledger.close()
        book = Ledger.open(self._ledger_path, run=public_facts(self.plan), block=block_of(self.plan.steps))
        self.stepper.ledger, self._fingerprint = book, None

    def charge_to(self, path: str | Path) -> None:
        """From now on to this file, whose charges count if it is there; what was charged so far counts in it."""
        if not isinstance(self.ledger, Ledger):
            raise LoopMisuse("one process keeps the ledger of several that train together; give attach(ledger=FILE)")
        spent, make = (
            [self.ledger] if self.ledger.events() else [],
            Ledger.open if os.path.lexists(path) else Ledger.create,
        )
        book = make(path, run=public_facts(self.plan), after=spent, block=block_of(self.plan.steps))
        self.ledger.close()
        self.stepper.ledger, self._ledger_path, self._fingerprint, self._goes_on = book, path, None, True

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

    def _attack(self, spent: Epsilon | None) -> dict[str, Any]:
        """What the statement says of attackers: the best bound on their true-positive rates that the ledger gives."""
        if not self.plan.private:
            return {}
        pair = (None, None) if spent is None else (spent.value, spent.delta)
        found = trade_off(self.ledger.events(), *pair, whole_curve=self.plan.accountant != "rdp")
        return {"attack": found.pairs(), "attack_source": found.source}

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
            planned_steps=planned_releases(plan),
            **self._attack(spent),
            noise_multiplier=plan.noise_multiplier,
            noise_schedule=noise_path(plan, self.state.step),
            claimed_epsilon=None
            if plan.delta is None
            else method.claimed_epsilon(self.state.method, plan.context, plan.delta),
            side_queries=tuple(side._asdict() for side in plan.side_queries),
            size_is_public=plan.size_is_public,
            size_released=counted(plan),
            loss=self.engine.loss.statement() if isinstance(self.engine, Bookkeeping) else "not looked at",
            seeded=self.mechanism.seed is not None,
            ledger=self._ledger_name(),
            ledger_head=self.ledger.head if plan.private else "",
            automatic=tuple(self.automatic),
            searched=("the learning rate",) if plan.before else (),  # which was found inside the budget
            notes=(*self._notes, *self._together(), *cost_of_groups(plan)),
            versions=f"clipwise {__version__}, torch {torch.__version__}",
        )

    def _together(self) -> list[str]:
        size = self.world.size
        if size == 1:
            return []
        return [
            f"{size} processes trained together. Each step drew one sample of all records at the stated rate, of which each process took its part; "
            "their sums were added up before the noise, which was drawn once in total (the same numbers from the same key in every process)."
        ]

    def _ledger_name(self) -> str:
        if not self.plan.private:
            return "none"
        return "in memory" if self._ledger_path is None else str(self._ledger_path)


def _facts(
    loader: DataLoader[Any], parameters: Mapping[str, nn.Parameter], optimizer: Optimizer, after: tuple[float, ...]
) -> Facts:
    numbers = sum(p.numel() for p in parameters.values())
    return Facts(check_loader(loader), numbers, loader.batch_size, float(optimizer.param_groups[0]["lr"]), after)


@contextmanager
def _or_let_go(book: AnyLedger, made: str | Path | None) -> Iterator[None]:
    """On an error (of the user's own code, say) the ledger is let go of, and one that was made just now leaves no trace."""
    try:
        yield
    except BaseException:
        book.close()
        if made is not None and not book.events():
            Path(made).unlink(missing_ok=True)
        raise


def _needing_all(plan: Plan, resume: str | Path | None) -> Iterator[str]:
    """What of a run needs whole gradients or weights in one process, between two batches."""
    if not plan.private:
        yield "epsilon=inf (a run without privacy)"
    if any(query.width == 0 for query in plan.side_queries):
        yield f"method={plan.method.name!r}, which looks at the whole gradient"
    if resume is not None:
        yield "resume"


def _of_this_run(plan: Plan, *, measured: bool) -> list[Event]:
    """What the ledger of a run without a past holds when its steps begin."""
    counted = [] if plan.counted is None else [plan.counted.event]
    return [*plan.prepared, *counted, *(plan.before if measured else ())]


def _same(one: Sequence[Event], other: Sequence[Event]) -> bool:
    def total(events: Sequence[Event]) -> Counter[tuple[type, float, float]]:
        counts: Counter[tuple[type, float, float]] = Counter()
        for event in events:
            counts[type(event), event.sample_rate, event.noise_multiplier] += event.count
        return counts

    return total(one) == total(other)


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error) for words in ("out of memory", "can't allocate memory", "not enough memory"))
