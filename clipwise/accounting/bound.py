"""One question, one answer: how large is epsilon for these events? See the package for the guarantee."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from clipwise import validate
from clipwise.accounting.events import Event, FixedSizeEvent, StepEvent, merge
from clipwise.accounting.fixed_size import fixed_size_epsilon
from clipwise.accounting.pld import pld_epsilon
from clipwise.accounting.rdp import rdp_epsilon
from clipwise.types import BadArgument

# Upper bounds on epsilon, by name; "best" is the smallest of them (of equal ones the first).
_BOUNDS: dict[str, Callable[[Sequence[StepEvent], float], float]] = {"pld": pld_epsilon, "rdp": rdp_epsilon}
ACCOUNTANTS = (*_BOUNDS, "best")


@dataclass(frozen=True, slots=True)
class Epsilon:
    """An upper bound on epsilon at `delta`, and the accountant ("rdp" or "pld") that proved it."""

    value: float
    delta: float
    accountant: str


def epsilon(events: Iterable[Event], delta: float, accountant: str = "best") -> Epsilon:
    """Bound epsilon of all the events together, which are of one kind: for add/remove neighbours if they are
    `StepEvent`s, for one record replaced if they are `FixedSizeEvent`s (and then by "rdp" alone).

    | events                        | value                                            |
    | ----------------------------- | ------------------------------------------------ |
    | none, or all with count 0     | 0                                                |
    | any without noise             | infinity                                         |
    | beyond floating point         | infinity                                         |
    """
    delta = check_delta(delta)
    validate.choice("accountant", accountant, ACCOUNTANTS)
    events = list(events)
    if any(isinstance(event, FixedSizeEvent) for event in events):
        return _of_fixed_size(events, delta, accountant)
    merged = merge(events)  # type: ignore[arg-type]  # which refuses all but StepEvents
    asked = tuple(_BOUNDS) if accountant == "best" else (accountant,)
    return min((Epsilon(_BOUNDS[name](merged, delta), delta, name) for name in asked), key=lambda found: found.value)


def _of_fixed_size(events: Sequence[Event], delta: float, accountant: str) -> Epsilon:
    if accountant == "pld":
        raise BadArgument(
            "accountant='pld' has no bound for batches of a fixed size, and a Poisson figure does not hold for them; "
            "use 'rdp' or 'best', or sample by Poisson"
        )
    return Epsilon(fixed_size_epsilon(events, delta), delta, "rdp")  # type: ignore[arg-type]  # it refuses others


def within(events: Iterable[Event], delta: float, target_epsilon: float, accountant: str = "best") -> bool:
    """Whether epsilon is at most the target: cheaper than `epsilon` when the quick bound already says yes."""
    events = list(events)
    if accountant == "best" and epsilon(events, delta, "rdp").value <= target_epsilon:
        return True
    return epsilon(events, delta, accountant).value <= target_epsilon


def check_delta(delta: float) -> float:
    return validate.probability(
        "delta", delta, one_allowed=False, remedy="give a probability well below 1 / number of records, such as 1e-5"
    )


def check_target(target_epsilon: float) -> float:
    remedy = "give the epsilon to stay within, such as 3"
    if isinstance(target_epsilon, float) and math.isinf(target_epsilon):
        remedy = "an infinite epsilon asks for no privacy: train without noise instead"
    return validate.positive("target_epsilon", target_epsilon, remedy)
