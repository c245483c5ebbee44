"""What a ledger tells, beyond its total: segments, noise levels, and how epsilon grew.

Formal guarantee: nothing is told of a file that `Ledger.read` does not accept, and what is told adds up to what the
ledger charges: it is the same book. What a segment reserved and is not known to have taken or given back is charged, at
the point where the segment ends; steps that a later segment redid bit for bit are told where they were charged first.
A method without a valid guarantee (the run's facts say `"sound": false`) makes epsilon infinite from there on.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clipwise.accounting.bound import Epsilon, epsilon
from clipwise.accounting.events import Event
from clipwise.accounting.ledger import Ledger

_MOST_ROWS, _RANGES = 24, 12  # levels are shown one by one, or where there are more, as about so many ranges


@dataclass(frozen=True)
class Segment:
    number: int
    run: dict[str, Any]  # its public facts
    closed: bool
    steps: tuple[Event, ...]  # taken and charged, in order, equal neighbours joined
    reserved: tuple[Event, ...]  # charged, because nobody knows whether they were taken
    redone: int  # steps that were charged before, and are the same releases

    @property
    def charges(self) -> tuple[Event, ...]:
        return (*self.steps, *self.reserved)

    @property
    def taken(self) -> int:
        return sum(event.count for event in self.steps)

    @property
    def untaken(self) -> int:
        return sum(event.count for event in self.reserved)

    @property
    def sound(self) -> bool:
        return self.run.get("sound", True) is not False


@dataclass(frozen=True)
class Level:
    """Steps at one rate and a noise multiplier from `noise_from` to `noise_to`, both included."""

    sample_rate: float
    noise_from: float
    noise_to: float
    taken: int
    untaken: int


@dataclass(frozen=True)
class History:
    run_id: str
    head: str
    segments: tuple[Segment, ...]
    composed: tuple[Event, ...] = ()  # charges of other ledgers that count here

    @property
    def run(self) -> dict[str, Any]:
        """Public facts of the last segment."""
        return self.segments[-1].run

    @property
    def sound(self) -> bool:
        return all(segment.sound for segment in self.segments if segment.charges)

    @property
    def taken(self) -> int:
        return sum(segment.taken for segment in self.segments)

    @property
    def untaken(self) -> int:
        return sum(segment.untaken for segment in self.segments)

    def epsilon(self, delta: float, accountant: str = "best") -> Epsilon:
        spent = epsilon([*self.composed, *(e for s in self.segments for e in s.charges)], delta, accountant)
        return spent if self.sound else Epsilon(math.inf, spent.delta, spent.accountant)

    def levels(self) -> list[Level]:
        """Charged steps by rate and noise, the most noise first; ranges where there are more than two dozen levels."""
        counts: dict[tuple[float, float], list[int]] = {}
        for segment in self.segments:
            for column, events in enumerate((segment.steps, segment.reserved)):
                for event in events:
                    counts.setdefault((event.sample_rate, event.noise_multiplier), [0, 0])[column] += event.count
        rows: list[Level] = []
        size = 1 if len(counts) <= _MOST_ROWS else math.ceil(len(counts) / _RANGES)
        for rate in sorted({rate for rate, _ in counts}):
            noises = sorted((noise for r, noise in counts if r == rate), reverse=True)
            for start in range(0, len(noises), size):
                same = noises[start : start + size]
                sums = [sum(counts[rate, noise][column] for noise in same) for column in (0, 1)]
                rows.append(Level(rate, same[0], same[-1], *sums))
        return rows

    def curve(self, delta: float, accountant: str = "best", points: int = 12) -> list[tuple[int, float]]:
        """(charged steps, epsilon) at so many points of the run, the last at its end."""
        charges = [(segment, event) for segment in self.segments for event in segment.charges]
        total = sum(event.count for _, event in charges)
        marks = sorted({math.ceil(total * k / points) for k in range(1, points + 1)} - {0}, reverse=True)
        curve, so_far, steps, sound = [], list(self.composed), 0, True
        for segment, event in charges:
            sound, left = sound and segment.sound, event.count
            while left:
                count = min(left, marks[-1] - steps)
                so_far.append(dataclasses.replace(event, count=count))
                steps, left = steps + count, left - count
                if steps == marks[-1]:
                    curve.append((marks.pop(), epsilon(so_far, delta, accountant).value if sound else math.inf))
        return curve


def read_history(path: str | Path, *, head: str | None = None) -> History:
    """Verify a ledger and tell its history; with `head` (or the beginning of one), refuse a ledger without that line."""
    ledger = Ledger.read(path, must_contain=head)
    by_segment: dict[int, tuple[list[Event], list[Event]]] = {s.number: ([], []) for s in ledger.book.segments}
    for runs in ledger.book.streams(reserved=True).values():
        for run in runs:
            by_segment[run.segment][0 if run.taken else 1].append(run.cost.event(run.steps))
    segments = tuple(
        Segment(
            each.number,
            each.run,
            each.closed,
            tuple(by_segment[each.number][0]),
            tuple(by_segment[each.number][1]),
            each.steps - sum(event.count for event in by_segment[each.number][0]),
        )
        for each in ledger.book.segments
    )
    composed = tuple(cost.event(count) for cost, count in sorted(ledger.book.composed.items()))
    return History(ledger.run_id, ledger.head, segments, composed)
