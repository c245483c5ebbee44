"""Which parts of a run are automatic: whatever is stated wins, and what is left open follows from public facts by the rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.optim import SGD, Optimizer

from clipwise import validate
from clipwise.automatic import rule
from clipwise.clipping import METHODS, Method
from clipwise.mechanism import Mechanism, Performance
from clipwise.types import BadArgument

AUTO = "auto"
_NOT_REPEATED = (
    "seed",
    "method_options",
)  # in the list of what was stated: the one is secret, the other told by its parts
_MEMORY_ROWS = 512  # records in memory at once where the rule sets the batch: its batches are a tenth of the data


@dataclass(frozen=True)
class Choice:
    """Of one run: its options with nothing left open, and what of them was not stated."""

    mechanism: Mechanism
    performance: Performance
    finds_rate: bool  # by measuring, in the same budget
    averages: bool  # releases the average of the weights
    rate: float | None  # that was stated, or that follows without measuring; None where an optimizer brings its own
    said: tuple[str, ...]  # what was automatic, in words


@dataclass(frozen=True)
class Stated:
    """What a loop was given beside the mechanism."""

    records: int
    optimizer: Optimizer | None = None  # of the user's own; for fit, after it was made
    lr: float | str | None = None
    loader_rows: int | None = None  # batch size of the user's loader, where there is one
    open_ended: bool = False  # whether the loop may go on as long as it likes


def is_automatic(method: Any) -> bool:
    """Whether the method leaves rate and average to the run."""
    kind = METHODS.get(method) if isinstance(method, str) else type(method)
    return kind is not None and issubclass(kind, Method) and kind.automatic


def choose(mechanism: Mechanism, performance: Performance, stated: Stated) -> Choice:
    """Everything that is left open, filled in; what does not go together is refused."""
    automatic = is_automatic(mechanism.method)
    _check_rate(stated, automatic, mechanism)
    drives = automatic and (stated.optimizer is None or stated.lr == AUTO)
    found = None if not isinstance(mechanism.method, Method) else getattr(mechanism.method, "rate", None)
    found = mechanism.method_options.get("rate", found)
    rate = stated.lr if isinstance(stated.lr, int | float) else found
    finds = drives and mechanism.private and rate is None
    filled, rows, said = _length(mechanism, performance, stated, drives)
    if drives and not mechanism.private and rate is None:
        rate = rule.PLAIN_RATE
        said.append(f"learning rate {rate:g} of Adam: without privacy nothing is measured, and no noise sets a scale")
    if drives:
        said.append("the average of the weights is what is released (avg += 9 / (t + 8) (w - avg) after step t)")
    if drives and stated.optimizer is None:
        said.append(f"optimizer: Adam, betas {rule.BETAS[0]:g} and {rule.BETAS[1]:g}")
    if automatic and not drives and mechanism.private:
        said.append(
            "nothing was measured and nothing charged for it: the optimizer was given with a rate of its own, which stays (lr='auto' "
            "would find one)"
        )
    if automatic:
        said.append(_stated(mechanism, stated))
    return Choice(filled, rows, finds, drives, None if rate is None else float(rate), tuple(said))


def _stated(mechanism: Mechanism, stated: Stated) -> str:
    """What the user has said, name by name: all that is not automatic. A seed is not repeated: it must stay secret."""
    plain = {name: field.get_default(call_default_factory=True) for name, field in Mechanism.model_fields.items()}
    named = {name: value for name, value in mechanism if value != plain[name] and name not in _NOT_REPEATED}
    named |= dict(mechanism.method_options)
    named |= {} if stated.lr is None else {"lr": stated.lr}
    named |= {} if stated.optimizer is None else {"optimizer": type(stated.optimizer).__name__}
    return "stated, and so not automatic: " + (", ".join(f"{k} = {_shown(v)}" for k, v in named.items()) or "nothing")


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _check_rate(stated: Stated, automatic: bool, mechanism: Mechanism) -> None:
    lr = stated.lr
    if lr is None:
        return
    if isinstance(lr, str):
        validate.choice("lr", lr, (AUTO,))
        if not automatic:
            raise BadArgument(
                f"lr='auto' with method={mechanism.method!r}: a rate is found by method='auto'; use that, or give a number"
            )
        if isinstance(stated.optimizer, SGD) and not mechanism.private:
            raise BadArgument("lr='auto' with SGD and epsilon=inf: its rate follows from the noise; give a number")
        return
    validate.positive("lr", lr, "give a number above 0, or 'auto'")
    if stated.optimizer is not None:
        raise BadArgument(
            f"lr={lr!r}: the optimizer was given with a rate of its own; state it there, or give lr='auto'"
        )


def _length(
    mechanism: Mechanism, performance: Performance, stated: Stated, drives: bool
) -> tuple[Mechanism, Performance, list[str]]:
    """Delta, batch and epochs, where they are not stated, from the number of records and the effort."""
    said, more = [], dict[str, Any]()
    public = mechanism.size == "public" or not mechanism.private
    mine = drives or not stated.open_ended
    if mechanism.delta is None and mechanism.epsilon is not None and mechanism.private and public:
        more["delta"] = rule.delta_for(stated.records)
        said.append(f"delta {more['delta']:g}: a power of ten below 1 / {stated.records}, the number of records")
    wants_batch = mine and mechanism.expected_batch_size is None and mechanism.sample_rate is None
    if wants_batch and not public:
        raise BadArgument(
            "size='private': the default of the batch follows from the number of records; give expected_batch_size"
        )
    wants_epochs = mine and mechanism.epochs is None
    if wants_batch or wants_epochs:
        batch = mechanism.expected_batch_size
        if batch is None and not mechanism.private:
            batch = min(rule.PLAIN_BATCH, stated.records)
        size = rule.size_for(stated.records, mechanism.effort, epochs=mechanism.epochs, batch=batch)
        more |= {"expected_batch_size": size.expected_batch_size} if wants_batch else {}
        more |= {"epochs": size.epochs} if wants_epochs else {}
        words = [f"expected batch size {size.expected_batch_size} of {stated.records} records"] if wants_batch else []
        said.append(
            f"{', '.join([*words, *([f'{size.epochs:g} epochs'] if wants_epochs else [])])}: effort {mechanism.effort!r}"
        )
    if wants_batch and performance.max_physical_batch is None:
        rows = min(stated.loader_rows or _MEMORY_ROWS, more["expected_batch_size"])
        performance = performance.model_copy(update={"max_physical_batch": rows})
        if stated.loader_rows:
            said.append(f"the loader's batch size, {stated.loader_rows}, is how many records are in memory at once")
    return mechanism.model_copy(update=more), performance, said
