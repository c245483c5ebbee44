"""A private run: plan, engine, noise, sampler and ledger, made together and checked before any data is touched.

The drop-in API (dropin.py) and the training loop (train.py) stand on it.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.utils.data import DataLoader

from clipwise import __version__, validate
from clipwise.accounting import Ledger, StepEvent, epsilon, within
from clipwise.clipping import Method, make_method
from clipwise.keystream import Key
from clipwise.noise import GaussianNoise
from clipwise.norms import ROW_WISE, Bookkeeping
from clipwise.plan import check_delta, make_plan
from clipwise.report import Statement
from clipwise.sampling import PoissonLoader, PoissonSampler, check_loader
from clipwise.schedules import ScheduleLike
from clipwise.step import State, initial_state
from clipwise.types import BadArgument, BudgetExhausted, Unsupported

ENGINES = ("fast", "generic")
_SHORT = 64  # numbers in a vector that is still worth showing
_taken: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class Run:
    """One private run on one model. `state` is public: it depends on the data only through released values."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loader: DataLoader,
        *,
        epsilon: float | None,
        noise_multiplier: float | None,
        delta: float | None,
        epochs: float | None,
        method: str | Method,
        method_options: Mapping[str, Any],
        expected_batch_size: float | None,
        sample_rate: float | None,
        loss_reduction: str,
        loss_declared: str | None,
        max_physical_batch: int | None,
        accountant: str,
        engine: str,
        seed: int | None,
        ledger: str | Path | None,
        groups: Callable[[Any], Tensor] | None,
        schedule: ScheduleLike,
        allow_unsound: bool,
        notify: Callable[[str], None],
        after: tuple[StepEvent, ...] = (),
    ):
        validate.choice("loss_reduction", loss_reduction, ("mean", "sum"))
        if loss_declared is not None:
            validate.choice("loss_declared", loss_declared, (ROW_WISE,))
        validate.choice("engine", engine, ENGINES)
        if max_physical_batch is not None:
            validate.count("max_physical_batch", max_physical_batch)
        if isinstance(method, str):
            method = make_method(method, **method_options)
        elif not isinstance(method, Method) or method_options:
            raise BadArgument(f"method={method!r}: give a name with its options, or a method object that holds them")
        if not method.sound and not allow_unsound:
            raise BadArgument(
                f"method {method.name!r} has no valid guarantee; give allow_unsound=True (--allow-unsound) to run it all "
                f"the same, with an infinite epsilon{'' if method.alternative is None else f', or use {method.alternative!r}'}"
            )
        if method.needs_groups and groups is None:
            raise BadArgument(
                f"groups=None: method {method.name!r} wants the group of each record; give a function of the batch"
            )
        if groups is not None and not callable(groups):
            raise BadArgument(
                f"groups={groups!r} is not a function; give one of the batch, that tells the group of each row"
            )
        self.groups = groups
        parameters = trainable_parameters(model, optimizer)
        size = check_loader(loader)
        size_is_public = sample_rate is None or expected_batch_size is None
        expected_batch_size = loader.batch_size if expected_batch_size is None else expected_batch_size
        validate.positive("expected_batch_size", expected_batch_size)
        if sample_rate is None:
            sample_rate = float(expected_batch_size) / size  # type: ignore[arg-type]
            if sample_rate > 1:
                raise BadArgument(
                    f"expected_batch_size={expected_batch_size!r} is above the {size} records of the data set; give at most that many"
                )
        self.plan = make_plan(
            method=method,
            parameters=sum(p.numel() for p in parameters.values()),
            sample_rate=sample_rate,
            expected_batch_size=float(expected_batch_size),  # type: ignore[arg-type]
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            delta=delta,
            epochs=epochs,
            accountant=accountant,
            size=size,
            schedule=schedule,
            learning_rate=float(optimizer.param_groups[0]["lr"]),
            after=after,
        )
        self.model = model
        self._size_is_public = size_is_public
        self._notes: list[str] = []

        def remember(message: str) -> None:
            self._notes.append(message)
            notify(message)

        self.engine = Bookkeeping(
            model,
            parameters,
            loss_reduction=loss_reduction,
            loss_declared=loss_declared,
            by_rule=seed is not None,  # a run that is to be repeated must not depend on a clock
            generic=engine == "generic",
            notify=remember,
        )
        self.ledger = open_ledger(ledger, self._public_facts())
        self._ledger_path = ledger
        self._goes_on = bool(self.ledger.events())  # an older ledger whose charges count
        key = (Key.fresh() if seed is None else Key.from_seed(seed)).derive(f"segment {self.ledger.segment}")
        self._seeded = seed is not None
        self.noise = GaussianNoise(key)
        self.batches = PoissonLoader(
            loader, PoissonSampler(size, sample_rate), key, max_physical_batch=max_physical_batch
        )
        self.state: State = initial_state(self.plan)
        _taken.add(model)

    def close(self) -> None:
        """Give the model back and end the ledger's segment; may be called twice."""
        self.engine.remove()
        self.ledger.close()
        _taken.discard(self.model)

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
            coming = [plan.event(start + i) for i in range(more)]
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
        """Epsilon so far, from the ledger, at the plan's delta or another."""
        return self._spent(delta).value

    def _spent(self, delta: float | None) -> Any:
        delta = self.plan.delta if delta is None else check_delta(delta, self.plan.size)
        if delta is None:
            raise BadArgument(
                "delta=None: epsilon holds at some delta; give one well below 1 / size of the data set, such as 1e-5"
            )
        return epsilon(self.ledger.events(), delta, self.plan.accountant)

    def statement(self) -> Statement:
        plan, method = self.plan, self.plan.method
        spent = None if plan.delta is None else self._spent(None)
        return Statement(
            private=True,
            epsilon=float("inf") if spent is None else spent.value,
            delta=plan.delta,
            accountant=plan.accountant if spent is None else spent.accountant,
            target_epsilon=plan.target_epsilon,
            method=method.name,
            method_options=dataclasses.asdict(method),
            reference=method.reference,
            sound=method.sound,
            sample_rate=plan.sample_rate,
            expected_batch_size=plan.expected_batch_size,
            steps=sum(event.count for event in self.ledger.events()),
            planned_steps=None if plan.steps is None else plan.steps + len(plan.after),
            noise_multiplier=plan.noise_multiplier,
            noise_schedule=self._noise_path(),
            claimed_epsilon=None
            if plan.delta is None
            else method.claimed_epsilon(self.state.method, plan.context, plan.delta),
            side_queries=tuple(side._asdict() for side in plan.side_queries),
            size_is_public=self._size_is_public,
            loss=self.engine.loss.statement(),
            seeded=self._seeded,
            ledger="in memory" if self._ledger_path is None else str(self._ledger_path),
            ledger_head=self.ledger.head,
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

    def _public_facts(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "method": plan.method.name,
            "method_options": dataclasses.asdict(plan.method),
            "sample_rate": plan.sample_rate,
            "expected_batch_size": plan.expected_batch_size,
            "sound": plan.method.sound,
            "noise_multiplier": plan.noise_multiplier,
            "schedule": str(plan.schedule),
            "steps": plan.steps,
            "target_epsilon": plan.target_epsilon,
            "delta": plan.delta,
            "neighbours": "add or remove one record",
            "clipwise": __version__,
        }


def open_ledger(path: str | Path | None, facts: Mapping[str, Any]) -> Ledger:
    """In memory, or a file: a new one, or an old one that goes on (its charges stay, and count)."""
    if path is None:
        return Ledger.in_memory(run=facts)
    path = Path(path)
    return Ledger.open(path, run=facts) if path.exists() else Ledger.create(path, run=facts)


def trainable_parameters(model: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """The parameters that will be trained, by name, after refusing what cannot be trained privately."""
    if not isinstance(model, nn.Module):
        raise BadArgument(f"model={type(model).__name__} is not a torch.nn.Module; give the model itself")
    if not isinstance(optimizer, Optimizer):
        raise BadArgument(
            f"optimizer={type(optimizer).__name__} is not a torch.optim optimizer; make one on model.parameters()"
        )
    if isinstance(optimizer, LBFGS):
        raise Unsupported(
            "optimizer: LBFGS evaluates the loss several times a step; use SGD, Adam or another first-order optimizer"
        )
    if model in _taken:
        raise BadArgument("model: it is attached already; call detach() on the earlier run first")
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
