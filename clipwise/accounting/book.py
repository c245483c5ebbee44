"""What the lines of a ledger mean: a book that enters them one at a time and refuses any that cannot follow.

Formal guarantee: for every prefix of a ledger's lines, `charges` dominates the noise that can have been drawn by then.
A reservation is charged in full, at its least noise, until lines say what was taken of it. What is reserved and not
taken is given back in two ways only: by a `close`, or by a `reserve` that begins where the steps on record end.

Each segment draws its noise from a *stream*. A new segment has a stream of its own, and what it does is charged, also
where the step has a number that was charged before. A segment that *replays* an earlier one shares its stream: it says
that its steps are the same releases, bit for bit (same key, same configuration and data, same weights to begin with),
and one release is charged once, however often it is computed. The book believes that only where both segments name the
same fingerprint of the plan, and the earlier one holds a `mark` of the very state that the later one begins from. The
same noise under another multiplier would cancel; so a redone step must cost what it cost before.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from clipwise import validate
from clipwise.accounting.events import LEAST_NOISE, Event, FixedSizeEvent, StepEvent, accountable_steps
from clipwise.types import ClipwiseError

SCHEMA = 2  # of the lines; a change that older versions cannot read counts it up
LARGEST_NOISE = 1e6  # beyond this a multiplier is a typing error or an attack, not a training run
KINDS: dict[str, type[Event]] = {"poisson": StepEvent, "fixed-size": FixedSizeEvent}
_NAMES = {kind: name for name, kind in KINDS.items()}
_COST = {"sample_rate", "noise_multiplier"}
_FIELDS: dict[int, dict[str, set[str]]] = {
    1: {
        "open": {"schema", "run_id", "segment", "run"},
        "reserve": {"first", "count", *_COST},
        "step": {"step", "note", *_COST},
        "close": {"steps"},
    },
    2: {
        "open": {"schema", "run_id", "segment", "run", "plan", "replays", "after"},
        "reserve": {"first", "count", "exact", "sampling", *_COST},
        "steps": {"first", "runs", "note"},
        "mark": {"step", "state"},
        "close": {"steps", "facts"},
    },
}


class LedgerError(ClipwiseError, RuntimeError):
    """The ledger cannot be used as asked; nothing was charged, and no noise may be drawn."""


class LedgerTampered(LedgerError):
    """The file is not what was written: the message names the line."""


class LedgerRollback(LedgerError):
    """The file is an older or another ledger than the one expected."""


class Cost(NamedTuple):
    """What one step costs."""

    sampling: str
    sample_rate: float
    noise_multiplier: float

    @classmethod
    def of(cls, event: Event) -> Cost:
        return cls(_NAMES[type(event)], event.sample_rate, event.noise_multiplier)

    def event(self, count: int = 1) -> Event:
        return KINDS[self.sampling](self.sample_rate, self.noise_multiplier, count)

    def covers(self, other: Cost) -> bool:
        """Whether a step that was reserved at this cost is paid for at the other: with as much noise, or more."""
        return self[:2] == other[:2] and self.noise_multiplier <= other.noise_multiplier


class Run(NamedTuple):
    """Steps first..end-1, each at this cost."""

    first: int
    end: int
    cost: Cost
    taken: bool  # or only reserved
    segment: int  # that is charged for it
    exact: bool = True  # or with more noise than that, as a reservation of unequal steps may be used

    @property
    def steps(self) -> int:
        return self.end - self.first

    def allows(self, cost: Cost) -> bool:
        """Whether one of these steps may be taken at this cost."""
        return self.cost == cost if self.exact else self.cost.covers(cost)


@dataclass(frozen=True)
class Mark:
    """A state that was kept: that of the run before it takes `step`, by a digest."""

    step: int
    state: str


@dataclass
class Segment:
    number: int
    run: dict[str, Any]  # public facts
    schema: int = SCHEMA
    plan: str | None = None  # fingerprint of all that a redo must share
    stream: int = 0  # number of the segment whose noise this one draws
    redone: tuple[Run, ...] = ()  # what the stream held when this segment began, from its first step on
    closed: bool = False
    facts: dict[str, Any] = field(default_factory=dict)  # of the close
    marks: set[Mark] = field(default_factory=set)
    taken: list[Run] = field(default_factory=list)
    reserved: list[Run] = field(default_factory=list)  # what is left of them, in order
    next_step: int | None = None  # the only one that can come next; None where any can

    @property
    def steps(self) -> int:
        return sum(run.steps for run in self.taken)

    @property
    def reserved_end(self) -> int | None:
        return self.reserved[-1].end if self.reserved else self.next_step

    def take(self, count: int, cost: Cost) -> None:
        """The next steps, which a reservation must cover; equal neighbours become one run."""
        first, left = self.next_step, count
        while left:
            if first is None or not self.reserved or not self.reserved[0].allows(cost):
                raise LedgerTampered(f"takes step {first}, which no reservation covers at its cost")
            part = min(left, self.reserved[0].steps)
            rest = self.reserved[0]._replace(first=first + part)
            self.reserved[:1] = [rest] if rest.steps else []
            first, left = first + part, left - part
        self.check_redo(count, cost)
        if self.taken and self.taken[-1].cost == cost:
            self.taken[-1] = self.taken[-1]._replace(end=self.taken[-1].end + count)
        else:
            self.taken.append(Run(self.next_step or 0, first or 0, cost, True, self.number))
        self.next_step = first

    def check_redo(self, count: int, cost: Cost, ahead: int = 0) -> None:
        """Refuse to redo steps at another cost: the same noise under two multipliers cancels."""
        if not self.redone or self.next_step is None or self.next_step + ahead >= self.redone[-1].end:
            return
        first = self.next_step + ahead
        place = bisect.bisect_right(self.redone, first, key=lambda run: run.first) - 1
        for old in self.redone[place:]:
            if old.first >= first + count:
                return
            if not old.allows(cost):
                raise LedgerTampered(
                    f"redoes step {max(first, old.first)} at {_said(cost)}, which was charged at {_said(old.cost)}; "
                    "the same noise under another multiplier would cancel"
                )

    def charges(self, *, reserved: bool) -> list[Run]:
        return [*self.taken, *(self.reserved if reserved and not self.closed else ())]


class Book:
    """The meaning of the lines so far."""

    def __init__(self) -> None:
        self.run_id = ""
        self.sealed = False
        self.segments: list[Segment] = []
        self.composed: Counter[Cost] = Counter()  # charges of other ledgers, taken in by `after`
        self._streams: dict[int, list[Run]] = {}  # charges of segments that have ended, cleanly or not
        self._schema = SCHEMA

    @property
    def current(self) -> Segment:
        return self.segments[-1]

    def marked(self, mark: Mark, plan: str) -> int | None:
        """The last segment with this plan that kept this state, or None: then its steps cannot be told from new ones."""
        found = (s.number for s in reversed(self.segments) if s.plan == plan and mark in s.marks)
        return next(found, None)

    def streams(self, *, reserved: bool, pending: Sequence[tuple[Cost, int]] = ()) -> dict[int, list[Run]]:
        """What each stream is charged, by step; `pending` steps are taken and not yet on a line."""
        if not self.segments:
            return {}
        now, waiting = self.current, sum(count for _, count in pending)
        runs = now.charges(reserved=False)
        first = now.next_step or 0
        for cost, count in pending:
            runs.append(Run(first, first + count, cost, True, now.number))
            first += count
        if reserved and not now.closed:
            runs += _from(now.reserved, (now.next_step or 0) + waiting)
        return {**self._streams, now.stream: overlay(self._streams.get(now.stream, []), runs)}

    def charges(self, *, reserved: bool, pending: Sequence[tuple[Cost, int]] = ()) -> Counter[Cost]:
        total = Counter(self.composed)
        for runs in self.streams(reserved=reserved, pending=pending).values():
            for run in runs:
                total[run.cost] += run.steps
        return total

    def enter(self, record: Mapping[str, Any], *, sealed: bool) -> None:
        kind, schema = record.get("kind"), self._schema
        if kind == "open":
            schema = record.get("schema", 0)
            if not (isinstance(schema, int) and schema in _FIELDS):
                raise LedgerTampered(f"has schema {schema!r}; this version reads 1 to {SCHEMA}: upgrade Clipwise")
        if not isinstance(kind, str) or record.keys() - {"kind"} != _FIELDS[schema].get(kind):
            raise LedgerTampered("is of an unknown kind, or has other fields than its kind")
        if kind == "open":
            self._enter_open(record, schema, sealed)
            return
        if not self.segments or self.current.closed:
            raise LedgerTampered(f"is a {kind} line outside an open segment")
        if sealed != self.sealed:
            raise LedgerTampered("is sealed otherwise than the first line")
        enter = {
            "reserve": self._enter_reserve,
            "step": self._enter_step,
            "steps": self._enter_steps,
            "mark": self._enter_mark,
            "close": self._enter_close,
        }[kind]
        enter(record)

    def _enter_open(self, record: Mapping[str, Any], schema: int, sealed: bool) -> None:
        run_id, segment, run = record["run_id"], record["segment"], record["run"]
        if not (isinstance(run_id, str) and isinstance(run, dict)):
            raise LedgerTampered("names no run")
        same_run = not self.segments or (run_id, sealed) == (self.run_id, self.sealed)
        if type(segment) is not int or segment != len(self.segments) or not same_run:
            raise LedgerTampered("opens a segment that does not belong here")
        streams = self.streams(reserved=True)
        following = Segment(segment, run, schema, stream=segment)
        if schema > 1:
            self._enter_plan(following, record, streams)
            for entry in _entries("after", record["after"]):
                self.composed.update(_composed(entry))
        self._streams, self._schema = streams, schema
        self.run_id, self.sealed = run_id, sealed
        self.segments.append(following)

    def _enter_plan(self, following: Segment, record: Mapping[str, Any], streams: Mapping[int, list[Run]]) -> None:
        plan, replays = record["plan"], record["replays"]
        if plan is not None and not (isinstance(plan, str) and plan):
            raise LedgerTampered("names a plan that is no fingerprint")
        following.plan = plan
        if replays is None:
            return
        if not isinstance(replays, dict) or replays.keys() != {"segment", "step", "state"}:
            raise LedgerTampered("replays something without a name")
        mark = _mark(replays)
        if plan is None or type(replays["segment"]) is not int or self.marked(mark, plan) != replays["segment"]:
            raise LedgerTampered("replays a segment that kept no such state, or that had another plan, or none")
        following.stream = self.segments[replays["segment"]].stream
        following.redone = tuple(_from(streams[following.stream], mark.step))
        following.next_step = mark.step

    def _enter_reserve(self, record: Mapping[str, Any]) -> None:
        cost = read_cost([record.get("sampling", "poisson"), record["sample_rate"], record["noise_multiplier"]])
        first, count = read_step("first", record["first"]), _count(record["count"])
        now = self.current
        if now.next_step is None:
            now.next_step = first
        if first == now.next_step:
            now.reserved = []  # what was reserved and not taken is given back
        elif first != now.reserved_end:
            raise LedgerTampered(f"reserves from step {first}, but {now.next_step} is next")
        exact = record.get("exact", False)
        if not isinstance(exact, bool):
            raise LedgerTampered("reserves neither exactly nor at least")
        now.reserved.append(Run(first, first + count, cost, False, now.number, exact))

    def _enter_step(self, record: Mapping[str, Any]) -> None:
        cost = read_cost(["poisson", record["sample_rate"], record["noise_multiplier"]])
        self._take(read_step("step", record["step"]), [(1, cost)])

    def _enter_steps(self, record: Mapping[str, Any]) -> None:
        reserved = self.current.reserved
        sampling = reserved[0].cost.sampling if reserved else "poisson"
        runs: list[tuple[int, Cost]] = []
        for rate, noise, count in _entries("runs", record["runs"], 3):
            plain = reserved and rate == reserved[0].cost.sample_rate and type(noise) is float and type(count) is int
            if plain and count > 0 and LEAST_NOISE <= noise <= LARGEST_NOISE:  # what every such line of ours is
                runs.append((count, Cost(sampling, float(rate), noise)))
            else:
                runs.append((_count(count), read_cost([sampling, rate, noise])))
        self._take(read_step("first", record["first"]), runs)

    def _take(self, first: int, runs: Iterable[tuple[int, Cost]]) -> None:
        if first != self.current.next_step:
            raise LedgerTampered(f"takes step {first}, but {self.current.next_step} is next")
        for count, cost in runs:
            self.current.take(count, cost)

    def _enter_mark(self, record: Mapping[str, Any]) -> None:
        mark, now = _mark(record), self.current
        if now.next_step not in (None, mark.step):
            raise LedgerTampered(f"marks step {mark.step}, but {now.next_step} is next")
        now.next_step = mark.step
        now.marks.add(mark)

    def _enter_close(self, record: Mapping[str, Any]) -> None:
        now = self.current
        if type(record["steps"]) is not int or record["steps"] != now.steps:
            raise LedgerTampered(f"closes {record['steps']!r} steps, not the {now.steps} on record")
        facts = record.get("facts", {})
        if not isinstance(facts, dict):
            raise LedgerTampered("closes with facts that are none")
        now.closed, now.facts = True, facts


def overlay(old: Sequence[Run], new: Sequence[Run]) -> list[Run]:
    """One stream's charges, each step once: as it was taken, or where it was only reserved, at the higher cost."""
    if not old or not new:
        return [*old, *new]
    cuts = sorted({place for run in (*old, *new) for place in (run.first, run.end)})
    result: list[Run] = []
    for first, end in pairwise(cuts):
        both = [run for run in (_at(old, first), _at(new, first)) if run is not None]
        if both:
            chosen = min(both, key=lambda run: (not run.taken, run.cost.noise_multiplier))  # the old one where equal
            result.append(chosen._replace(first=first, end=end))
    return result


def _at(runs: Sequence[Run], step: int) -> Run | None:
    place = bisect.bisect_right(runs, step, key=lambda run: run.first) - 1
    return runs[place] if place >= 0 and step < runs[place].end else None


def _from(runs: Iterable[Run], step: int) -> list[Run]:
    """The runs without the steps before this one."""
    return [run._replace(first=max(run.first, step)) for run in runs if run.end > step]


def read_cost(values: Sequence[Any]) -> Cost:
    """[sampling, rate, noise] as a cost, or an error that says which of them is impossible."""
    sampling, rate, noise = values
    kind = KINDS.get(validate.choice("sampling", sampling, KINDS), StepEvent)
    cost = Cost.of(kind(rate, noise))
    if cost.noise_multiplier > LARGEST_NOISE:
        raise LedgerTampered(f"has noise_multiplier={cost.noise_multiplier!r}, above {LARGEST_NOISE:g}")
    return cost


def _composed(entry: Any) -> Counter[Cost]:
    if not isinstance(entry, dict) or entry.keys() != {"run_id", "head", "charges"}:
        raise LedgerTampered("composes a ledger without a name")
    total: Counter[Cost] = Counter()
    for *cost, count in _entries("charges", entry["charges"], 4):
        total[read_cost(cost)] += _count(count)
    return total


def _entries(name: str, value: Any, length: int | None = None) -> list[Any]:
    if isinstance(value, list) and (
        length is None or all(isinstance(each, list) and len(each) == length for each in value)
    ):
        return value
    raise LedgerTampered(f"has {name} that cannot be read")


def _mark(record: Mapping[str, Any]) -> Mark:
    if not (isinstance(record["state"], str) and record["state"]):
        raise LedgerTampered("marks a state without a digest")
    return Mark(read_step("step", record["step"]), record["state"])


def read_step(name: str, value: Any) -> int:
    return accountable_steps(name, value)


def _count(value: Any) -> int:
    return accountable_steps("count", value, least=1)


def _said(cost: Cost) -> str:
    return f"noise_multiplier={cost.noise_multiplier!r}, sample_rate={cost.sample_rate!r}"
