"""Accounting: what a run has spent, from plain events. Imports no torch.

Formal guarantee: `epsilon(events, delta)` is an upper bound on epsilon, at that delta, of everything the events describe,
by an accountant that the answer names; for add/remove neighbours, unless the events say otherwise (`planned.py`). Two accountants are at hand, each an upper bound
by itself, so the smaller of the two is one as well.
"""

from __future__ import annotations

from clipwise.accounting.bound import ACCOUNTANTS, Epsilon, epsilon, within
from clipwise.accounting.calibrate import calibrate, calibrate_shape, largest_step_count
from clipwise.accounting.events import Event, FixedSizeEvent, StepEvent
from clipwise.accounting.followed import FollowedLedger
from clipwise.accounting.joint import gradient_share, joint_noise_multiplier
from clipwise.accounting.ledger import Ledger, LedgerError, LedgerRollback, LedgerTampered
from clipwise.accounting.planned import NEIGHBOURS, SAMPLING, PlannedRun, planned_steps
from clipwise.accounting.tradeoff import TradeOff, trade_off

AnyLedger = (
    Ledger | FollowedLedger
)  # that a run is charged to: its own, or the leader's as it is seen by a process that follows

__all__ = [
    "ACCOUNTANTS",
    "NEIGHBOURS",
    "SAMPLING",
    "AnyLedger",
    "Epsilon",
    "Event",
    "FixedSizeEvent",
    "FollowedLedger",
    "Ledger",
    "LedgerError",
    "LedgerRollback",
    "LedgerTampered",
    "PlannedRun",
    "StepEvent",
    "TradeOff",
    "calibrate",
    "calibrate_shape",
    "epsilon",
    "gradient_share",
    "joint_noise_multiplier",
    "largest_step_count",
    "planned_steps",
    "trade_off",
    "within",
]
