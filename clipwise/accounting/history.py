"""What a ledger tells, beyond its total: segments, noise levels, and how epsilon grew.

Formal guarantee: nothing is told of a file that `Ledger.read` does not accept. The history is counted from the lines that
were verified, and its total is compared with the ledger's own before anything is returned. What a segment reserved and
neither took nor gave back is charged, at the point where the segment ends. A method without a valid guarantee (the
run's facts say `"sound": false`) makes epsilon infinite from there on.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clipwise.accounting.bound import Epsilon, epsilon
from clipwise.accounting.events import StepEvent, merge
from clipwise.accounting.ledger import Ledger, LedgerError, LedgerRollback

_MOST_ROWS, _RANGES = 24, 12  # levels are shown one by one, or where there are more, as about so many ranges


@dataclass(frozen=True)
class Segment:
    number: int
    run: dict[str, Any]  # its public facts
    closed: bool
    steps: tuple[StepEvent, ...]  # in the order taken, equal neighbours joined
    untaken: StepEvent | None  # reserved, not taken, and charged

    @property
    def charges(self) -> tuple[StepEvent, ...]:
        return self.steps if self.untaken is None else (*self.steps, self.untaken)

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

    @property
    def run(self) -> dict[str, Any]:
        """Public facts of the last segment."""
        return self.segments[-1].run

    @property
    def sound(self) -> bool:
        return all(segment.sound for segment in self.segments if segment.charges)

    @property
    def taken(self) -> int:
        return sum(event.count for segment in self.segments for event in segment.steps)

    @property
    def untaken(self) -> int:
        return sum(segment.untaken.count for segment in self.segments if segment.untaken)

    def epsilon(self, delta: float, accountant: str = "best") -> Epsilon:
        return _epsilon(self.segments, delta, accountant)

    def levels(self) -> list[Level]:
        """Charged steps by rate and noise, the most noise first; ranges where there are more than two dozen levels."""
        taken = merge(event for segment in self.segments for event in segment.steps)
        untaken = merge(segment.untaken for segment in self.segments if segment.untaken)
        counts: dict[tuple[float, float], list[int]] = {}
        for column, events in enumerate((taken, untaken)):
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
        curve, so_far, steps, sound = [], [], 0, True
        for segment, event in charges:
            sound, left = sound and segment.sound, event.count
            while left:
                count = min(left, marks[-1] - steps)
                so_far.append(StepEvent(event.sample_rate, event.noise_multiplier, count))
                steps, left = steps + count, left - count
                if steps == marks[-1]:
                    curve.append((marks.pop(), epsilon(so_far, delta, accountant).value if sound else math.inf))
        return curve


def read_history(path: str | Path, *, head: str | None = None) -> History:
    """Verify a ledger and tell its history; with `head` (or the beginning of one), refuse a ledger without that line."""
    path = Path(path)
    ledger = Ledger.read(path)
    lines = path.read_bytes().split(b"\n")
    hashes = [hashlib.sha256(line).hexdigest() for line in lines]
    if ledger.head not in hashes:
        raise LedgerError(f"{path} changed while it was read; read it again")
    verified = hashes.index(ledger.head) + 1  # what a live run has written since is not told
    segments = _segments(lines[:verified])
    if merge(event for segment in segments for event in segment.charges) != tuple(ledger.events()):
        raise LedgerError(f"{path} changed while it was read; read it again")
    if head is not None and not any(each.startswith(head) for each in hashes[:verified]):
        raise LedgerRollback(
            f"{path} does not contain the line {head}: lines were cut off its end, or it belongs to another run; "
            "restore the ledger that goes with the run"
        )
    return History(ledger.run_id, ledger.head, tuple(segments))


def _epsilon(segments: Sequence[Segment], delta: float, accountant: str) -> Epsilon:
    spent = epsilon([event for segment in segments for event in segment.charges], delta, accountant)
    if all(segment.sound for segment in segments if segment.charges):
        return spent
    return Epsilon(math.inf, spent.delta, spent.accountant)


def _segments(lines: Sequence[bytes]) -> list[Segment]:
    segments: list[_Open] = []
    for line in lines:
        record = json.loads(line)
        if record["kind"] == "open":
            segments.append(_Open(record))
        else:
            segments[-1].enter(record)
    return [segment.ended() for segment in segments]


class _Open:
    """A segment while its lines come in."""

    def __init__(self, record: dict[str, Any]) -> None:
        self._number, self._run, self._closed = record["segment"], record["run"], False
        self._steps: list[tuple[tuple[float, float], int]] = []
        self._reserved, self._untaken = (1.0, 0.0), 0

    def enter(self, record: dict[str, Any]) -> None:
        if record["kind"] == "close":
            self._closed = True
            return
        cost = record["sample_rate"], record["noise_multiplier"]
        if record["kind"] == "reserve":
            self._reserved, self._untaken = cost, record["count"]
            return
        self._untaken -= 1
        last, count = self._steps.pop() if self._steps and self._steps[-1][0] == cost else (cost, 0)
        self._steps.append((last, count + 1))

    def ended(self) -> Segment:
        untaken = StepEvent(*self._reserved, self._untaken) if self._untaken and not self._closed else None
        steps = tuple(StepEvent(*cost, count) for cost, count in self._steps)
        return Segment(self._number, self._run, self._closed, steps, untaken)
