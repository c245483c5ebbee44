"""One question, one answer: how large is epsilon for these events? See the package for the guarantee."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from clipwise import validate
from clipwise.accounting.events import StepEvent, merge
from clipwise.accounting.pld import pld_epsilon
from clipwise.accounting.rdp import rdp_epsilon

ACCOUNTANTS = ("rdp", "pld", "best")


@dataclass(frozen=True, slots=True)
class Epsilon:
    """An upper bound on epsilon at `delta`, and the accountant ("rdp" or "pld") that proved it."""

    value: float
    delta: float
    accountant: str


def epsilon(events: Iterable[StepEvent], delta: float, accountant: str = "best") -> Epsilon:
    """Bound epsilon of all the events together.

    | events                        | value                                            |
    | ----------------------------- | ------------------------------------------------ |
    | none, or all with count 0     | 0                                                |
    | any without noise             | infinity                                         |
    | "rdp" and a bound above 100   | infinity (RDP is not trusted there)              |
    | "pld", beyond floating point  | infinity                                         |
    """
    delta = check_delta(delta)
    validate.choice("accountant", accountant, ACCOUNTANTS)
    merged = merge(events)
    if accountant == "rdp":
        return Epsilon(rdp_epsilon(merged, delta), delta, "rdp")
    tight = Epsilon(pld_epsilon(merged, delta), delta, "pld")
    if accountant == "pld":
        return tight
    quick = Epsilon(rdp_epsilon(merged, delta), delta, "rdp")
    return quick if quick.value < tight.value else tight


def within(events: Iterable[StepEvent], delta: float, target_epsilon: float, accountant: str = "best") -> bool:
    """Whether epsilon is at most the target: cheaper than `epsilon` when the quick bound already says yes."""
    merged = merge(events)
    if accountant == "best" and epsilon(merged, delta, "rdp").value <= target_epsilon:
        return True
    return epsilon(merged, delta, accountant).value <= target_epsilon


def check_delta(delta: float) -> float:
    return validate.probability(
        "delta", delta, one_allowed=False, remedy="give a probability well below 1 / number of records, such as 1e-5"
    )


def check_target(target_epsilon: float) -> float:
    remedy = "give the epsilon to stay within, such as 3"
    if isinstance(target_epsilon, float) and math.isinf(target_epsilon):
        remedy = "an infinite epsilon asks for no privacy: train without noise instead"
    return validate.positive("target_epsilon", target_epsilon, remedy)
