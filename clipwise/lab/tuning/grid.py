"""Every candidate runs once, and all runs are paid for: sequential composition.

Formal guarantee: the runs together release what all their events describe, one after the other, so that epsilon of all
events is the cost of showing every run, the scores, and any choice among them. It needs no secrecy at all. G equal runs of
T steps are G * T steps, which costs far less than G times the epsilon of one (about its square root).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from clipwise.accounting import epsilon
from clipwise.lab.tuning.strategy import Events, Strategy


@dataclass(frozen=True)
class GridRdp(Strategy):
    name: ClassVar[str] = "grid-rdp"
    summary: ClassVar[str] = "every candidate once, all runs composed (RDP, or PLD where that is tighter)"

    def total(self, candidates: Sequence[Events], delta: float, accountant: str = "best") -> float:
        equal = Counter(tuple(events) for events in candidates)  # G equal runs are one with G times the steps
        together = [replace(event, count=event.count * runs) for events, runs in equal.items() for event in events]
        return epsilon(together, delta, accountant).value
