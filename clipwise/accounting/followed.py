"""The ledger as a process sees it that trains along and does not write it: the leader's charges, and the same new ones.

It is kept so that every process knows what was spent (a budget ends for all at the same step) without asking the others. What
counts is the leader's file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from clipwise.accounting.book import Cost
from clipwise.accounting.events import Event
from clipwise.accounting.ledger import Ledger


def as_seen(ledger: Ledger) -> bytes:
    """What the leader tells of its ledger when a run begins."""
    return json.dumps(
        {
            "charges": [[*Cost.of(event), event.count] for event in ledger.events()],
            "run_id": ledger.run_id,
            "head": ledger.head,
            "segment": ledger.segment,
            "stream": ledger.stream,
            "charged_until": ledger.charged_until,
        }
    ).encode()


class FollowedLedger:
    """Made from `as_seen`; to the step it is a ledger like another."""

    def __init__(self, seen: bytes):
        told = json.loads(seen)
        self._charged: Counter[Cost] = Counter()
        for *cost, count in told["charges"]:
            self._charged[Cost(*cost)] += count
        self.run_id: str = told["run_id"]
        self.head: str = told["head"]  # when the run began
        self.segment: int = told["segment"]
        self.stream: int = told["stream"]
        self.charged_until: int = told["charged_until"]

    def events(self) -> list[Event]:
        return [cost.event(count) for cost, count in self._charged.items()]

    def charge(
        self,
        step: int,
        event: Event,
        *,
        upcoming: int = 1,  # noqa: ARG002
        later: Callable[[int], Event] | None = None,  # noqa: ARG002
        note: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> None:
        if step >= self.charged_until:
            self._charged[Cost.of(event)] += 1

    def mark(self, step: int, state: str) -> None: ...

    def close(self, facts: Mapping[str, Any] | None = None) -> None: ...
