"""The ledger: an append-only record of what a run has spent, written ahead of the noise that spends it.

Formal guarantee: when `charge` has returned, the step is on record, and no later crash can lose it: the reservation
that covers it is on the disk. Epsilon computed from the file is never below that of the noise drawn. A step is never
un-charged; a run that resumes starts a new segment, in which redone steps are charged again, unless they are the same
releases bit for bit (see `book.py`, which holds the meaning of the lines).

The file holds one JSON object a line, of five kinds:

| kind    | says                                                              | durable before the call returns |
| ------- | ----------------------------------------------------------------- | ------------------------------- |
| open    | a segment of the run begins: its public facts, the fingerprint of | yes, with the directory         |
|         | its plan, what it replays, what it composes                       |                                 |
| reserve | steps first..first+count-1 may be taken at this rate, with this   | yes (fsync)                     |
|         | noise (exact), or with this noise or more                         |                                 |
| steps   | runs of equal steps that were taken, in order                     | with the next line that is      |
| mark    | the state before this step was kept, under this digest            | yes (fsync)                     |
| close   | clean end: what was reserved and not taken is given back; facts   | yes (fsync)                     |

An fsync is paid for a reservation, not for a step, and nothing at all is written for a step: what was taken of a
reservation is said in one line when the next one is made. A segment without a `close` is charged its last reservation
in full. So a kill costs at most one reservation, which is 1 % of the planned steps (`block_of`).
Files of schema 1 (a line a step) are read, and gone on with.

Each line carries `prev`, the SHA-256 of the line before, and `sum`, that of its own content; so an edited, deleted,
repeated or reordered line is found. Whoever can rewrite the whole file can forge all that: an HMAC key (`mac`) finds a
rewrite, and a `head` kept elsewhere (`must_contain`) finds lines cut off the end. The last head that is on the disk is
kept in a file beside it (.NAME.head) as well, so that a ledger that lost its end by accident is found by itself.

One process writes, and one handle in it: a lock keeps others out, a forked child cannot write, and a handle that the
same process opens later takes over from the earlier one, which is closed. `chain.py` seals the lines, `ledger_file.py`
holds the file.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from clipwise import validate
from clipwise.accounting import chain
from clipwise.accounting.book import (
    KINDS,
    LARGEST_NOISE,
    SCHEMA,
    Book,
    Cost,
    LedgerError,
    LedgerRollback,
    LedgerTampered,
    Mark,
    read_step,
)
from clipwise.accounting.bound import Epsilon, epsilon
from clipwise.accounting.coarsen import MOST_LEVELS, scheduled
from clipwise.accounting.events import Event
from clipwise.accounting.ledger_file import LedgerExists, LedgerFile, Unusable, head_file, note_head, noted_head
from clipwise.durable import sync
from clipwise.files import open_ordinary
from clipwise.types import BadArgument

__all__ = ["Ledger", "LedgerError", "LedgerExists", "LedgerRollback", "LedgerTampered", "block_of"]

_RUNS_A_LINE = 1000  # of unequal steps, about 25 bytes each
_UNPLANNED_BLOCK = 32  # steps reserved at once where nobody knows how many are to come
# At 4 ms an fsync (the median on the build machine's disk; 1 to 5 ms seen) 1,024 steps to a reservation leave 4
# microseconds a step: more would gain nothing that can be measured, and would only make a kill dearer.
_LARGEST_BLOCK = 1024


def block_of(planned: int | None) -> int:
    """How many steps to reserve at once: 1 % of those planned, so that a kill overcharges by no more (but one at least).

    A short run pays up to a hundred fsyncs for that in all; a long one reserves 1,024 steps at most. Fewer would charge a
    kill more than that 1 %; `fdatasync`, and a file of its full size from the start, took as long (4.1 ms each).
    """
    if planned is None:
        return _UNPLANNED_BLOCK
    return min(max(1, validate.count("planned", planned) // 100), _LARGEST_BLOCK)


class Ledger:
    """What a run has spent. Make one with `create`, `open`, `read` or `in_memory`."""

    def __init__(self, path: Path | None, *, hmac_key: bytes | None, block: int) -> None:
        if hmac_key is not None and not (isinstance(hmac_key, bytes) and hmac_key):
            raise BadArgument("hmac_key must be non-empty bytes; give at least 16 random bytes, or None")
        self._path = path
        self._key = hmac_key
        self._block = validate.count("block", block)
        self._book = Book()
        # Steps taken that are on no line yet: runs of equal ones, each with the number of steps up to its end.
        self._pending: list[tuple[Cost, int]] = []
        self._head = chain.GENESIS
        self._end = 0  # offset of the first byte after the last good line
        self._file: LedgerFile | None = None
        self._lock = threading.RLock()
        self._busy = False
        self._pid = os.getpid()
        self._writable = False
        self._why_not = "this ledger is closed or was opened to read; use Ledger.open to go on with it"

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        run: Mapping[str, Any],
        plan_fingerprint: str | None = None,
        after: Sequence[Ledger] = (),
        hmac_key: bytes | None = None,
        block: int = _UNPLANNED_BLOCK,
    ) -> Ledger:
        """Start the ledger of a new run; the file must not exist.

        run: public facts, as JSON.
        plan_fingerprint: of everything that a redone step must share to be the same release; None where the noise
            cannot be drawn again (no seed). See `open`.
        after: ledgers of earlier runs on the same data, whose charges count here from now on.
        block: steps to reserve at once, see `block_of`.
        """
        ledger = cls(Path(path), hmac_key=hmac_key, block=block)
        ledger._file = LedgerFile(ledger, Path(path), create=True)
        try:
            head_file(Path(path)).unlink(missing_ok=True)  # of a ledger that was deleted
            ledger._begin(secrets.token_hex(16), run, plan_fingerprint, None, after)
            sync(Path(path).absolute().parent)
        except BaseException as error:
            ledger._release()
            Path(path).unlink()  # no step was charged to it
            head_file(Path(path)).unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise LedgerError(f"cannot make {path} durable: {error}") from error
            raise
        return ledger

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        run: Mapping[str, Any] | None = None,
        plan_fingerprint: str | None = None,
        resumes: tuple[int, str] | None = None,
        after: Sequence[Ledger] = (),
        hmac_key: bytes | None = None,
        must_contain: str | None = None,
        block: int = _UNPLANNED_BLOCK,
    ) -> Ledger:
        """Verify an existing ledger and go on with it, in a new segment (with new facts if `run` is given).

        resumes: the (step, state) of a `mark` that this segment begins from. If an earlier segment of the same
            plan_fingerprint holds that mark, this one redoes its steps: it *must* draw the noise of `stream`, and what
            was charged is not charged again. If not, or if the last segment had another plan or none (a run that had to add
            up its sums otherwise), the segment has a stream of its own and is charged in full.
        """
        if resumes is not None and plan_fingerprint is None:
            raise BadArgument("resumes: without plan_fingerprint nothing can be redone bit for bit; leave resumes out")
        ledger = cls(Path(path), hmac_key=hmac_key, block=block)
        file = ledger._file = LedgerFile(ledger, Path(path))
        try:
            ledger._load(must_contain)
            book = ledger._book
            if book.sealed and hmac_key is None:
                raise LedgerError(f"{path} is sealed with an HMAC key; give hmac_key to go on with it")
            file.cut(ledger._end)  # a torn last line, if any
            facts = book.current.run if run is None else run
            mark = None if resumes is None else Mark(read_step("resumes", resumes[0]), resumes[1])
            ledger._begin(book.run_id, facts, plan_fingerprint, mark, after)
        except BaseException as error:
            ledger._release()
            if isinstance(error, OSError):
                raise LedgerError(f"cannot write {path}: {error}") from error
            raise
        return ledger

    @classmethod
    def read(cls, path: str | Path, *, hmac_key: bytes | None = None, must_contain: str | None = None) -> Ledger:
        """Verify a ledger to report on it; it cannot be charged. The run that writes it may go on meanwhile.

        must_contain: the SHA-256 of a line that it must hold, or at least 8 digits of its beginning.
        """
        ledger = cls(Path(path), hmac_key=hmac_key, block=1)
        ledger._load(must_contain)
        return ledger

    @classmethod
    def in_memory(
        cls, *, run: Mapping[str, Any], after: Sequence[Ledger] = (), block: int = _UNPLANNED_BLOCK
    ) -> Ledger:
        """A ledger without a file, for tests and short studies: it dies with the process."""
        ledger = cls(None, hmac_key=None, block=block)
        ledger._begin(secrets.token_hex(16), run, None, None, after)
        return ledger

    # What it says

    @property
    def book(self) -> Book:
        """The meaning of its lines."""
        return self._book

    @property
    def run_id(self) -> str:
        return self._book.run_id

    @property
    def run(self) -> dict[str, Any]:
        """Public facts of the current segment."""
        return dict(self._book.current.run)

    @property
    def segment(self) -> int:
        return self._book.current.number

    @property
    def stream(self) -> int:
        """Which noise this segment draws: its own number, or that of the segment whose steps it redoes bit for bit."""
        return self._book.current.stream

    @property
    def charged_until(self) -> int:
        """Steps below this number are redone, and were charged when they were done first; 0 where none is."""
        redone = self._book.current.redone
        return redone[-1].end if redone else 0

    @property
    def closed(self) -> bool:
        """Whether the last segment ended cleanly, and with which facts: see `facts`."""
        return self._book.current.closed

    @property
    def facts(self) -> dict[str, Any]:
        """What the last segment was closed with."""
        return dict(self._book.current.facts)

    @property
    def head(self) -> str:
        """SHA-256 of the last line. Keep it with a checkpoint: `must_contain=head` later finds a ledger rolled back."""
        return self._head

    @property
    def next_step(self) -> int | None:
        """The only step that can be charged next; None at the start of a segment, when any can."""
        written = self._book.current.next_step
        return None if written is None else written + self._waiting

    def events(self, *, reserved: bool = False) -> list[Event]:
        """What has been charged, merged by rate and noise.

        A live ledger counts the steps it has charged; with `reserved`, also the untaken rest of the reservation. A
        ledger that was only read always counts that rest, unless the segment was closed: it cannot know what was lost.
        """
        charged = self._book.charges(reserved=reserved or not self._writable, pending=self._runs())
        return [cost.event(count) for cost, count in sorted(charged.items(), key=_poisson_first)]

    def epsilon(self, delta: float, accountant: str = "best") -> Epsilon:
        return epsilon(self._few_events(), delta, accountant)

    def _few_events(self) -> list[Event]:
        """As `events`, or a few hundred levels of noise that dominate a great many (coarsen.py): those are slow to make."""
        charged = self._book.charges(reserved=not self._writable, pending=self._runs())
        if len(charged) <= MOST_LEVELS:
            return self.events()
        levels: defaultdict[tuple[str, float], list[tuple[float, int]]] = defaultdict(list)
        for (sampling, rate, noise), count in charged.items():
            levels[sampling, rate].append((noise, count))
        found: list[Event] = []
        for (sampling, rate), pairs in sorted(levels.items()):
            noises, counts = zip(*pairs, strict=True)
            found += scheduled(KINDS[sampling], rate, np.array(noises), counts)
        return found

    # What it does

    def charge(
        self,
        step: int,
        event: Event,
        *,
        upcoming: int = 1,
        later: Callable[[int], Event] | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> None:
        """Put a step on record; only when this has returned may its noise be drawn.

        `upcoming` says how many steps, this one included, are planned: that many may be reserved at once. They cost
        what this one does, or what `later(step)` says. `note` holds public facts, as JSON; the step then has a line of
        its own. On any error nothing is charged, and the call may be repeated.
        """
        self._refuse_child()
        with self._turn():
            self._check_charge(step, event)
            cost = Cost.of(event)
            segment = self._book.current
            try:
                segment.check_redo(1, cost, ahead=self._waiting)
            except LedgerTampered as error:
                raise LedgerError(
                    f"this segment {error}; resume without plan_fingerprint to be charged anew"
                ) from error
            facts = None if note is None else chain.public("note", note)
            if not self._covers(cost):
                self._reserve(step, event, upcoming, later)
            if facts is not None:
                runs = [[cost.sample_rate, cost.noise_multiplier, 1]]
                line = {"kind": "steps", "first": step, "runs": runs, "note": facts}
                self._append([*self._settled(), line], durable=False)
            elif self._pending and self._pending[-1][0] == cost:
                self._pending[-1] = (cost, self._waiting + 1)  # one assignment: Ctrl-C comes before it or after
            else:
                self._pending.append((cost, self._waiting + 1))

    def mark(self, step: int, state: str) -> None:
        """Put on record that the state before `step` was kept, by its digest, so that a later segment may begin there.

        To call before the file that holds the state gets its name: then no such file is without its mark.
        """
        self._refuse_child()
        with self._turn():
            self._refuse_closed()
            step = read_step("step", step)
            if not (isinstance(state, str) and state):
                raise BadArgument(f"state={state!r} is not a digest; give the SHA-256 of what was kept")
            if self.next_step not in (None, step):
                raise LedgerError(f"step {step} cannot be marked: {self.next_step} is next")
            self._append([*self._settled(), {"kind": "mark", "step": step, "state": state}], durable=True)

    def close(self, facts: Mapping[str, Any] | None = None) -> None:
        """End the segment cleanly, with public facts (as JSON) about what it left behind. Gives back the reserved steps
        that were not taken. Closing twice is harmless; a forked child drops its copy of the handle, and no more."""
        if self._pid != os.getpid():
            self._writable = False
            self._release()
            return
        said = chain.public("facts", facts or {})
        with self._turn():
            try:
                if self._writable:
                    steps = self._book.current.steps + self._waiting
                    last = {"kind": "close", "steps": steps, "facts": said}
                    self._append([*self._settled(), last], durable=True)
                elif facts:
                    raise LedgerError(f"the facts cannot be put on record: {self._why_not}")
            finally:
                self._release()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()  # after an error too: every step taken is on record

    # How it is kept

    @property
    def _waiting(self) -> int:
        """How many steps were taken that are on no line yet."""
        return self._pending[-1][1] if self._pending else 0

    def _runs(self) -> list[tuple[Cost, int]]:
        """Those steps as (cost, how many in a row)."""
        starts = [0, *(end for _, end in self._pending)]
        return [(cost, end - start) for (cost, end), start in zip(self._pending, starts, strict=False)]

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One call at a time: other threads wait; a signal handler inside a call is refused, as it would break in."""
        with self._lock:
            if self._busy:
                raise LedgerError("the ledger was called from inside one of its own calls (a signal handler?)")
            try:
                self._busy = True
                yield
            finally:
                self._busy = False

    def _refuse_child(self) -> None:
        if self._pid != os.getpid():
            raise LedgerError(
                f"this ledger belongs to process {self._pid}, and this is a forked child of it, {os.getpid()}: what a "
                "child charged would be lost to its parent. Train in the process that opened the ledger"
            )

    def _refuse_closed(self) -> None:
        if not self._writable:
            raise LedgerError(self._why_not)

    def _check_charge(self, step: int, event: Event) -> None:
        read_step("step", step)
        if event.count != 1:
            raise BadArgument(f"event.count={event.count!r} must be 1; charge one step at a time")
        if event.noise_multiplier > LARGEST_NOISE:
            raise BadArgument(f"noise_multiplier={event.noise_multiplier!r} must be at most {LARGEST_NOISE:g}")
        self._refuse_closed()
        if self.next_step not in (None, step):
            raise LedgerError(
                f"step {step} is out of order: {self.next_step} is next; re-open the ledger to redo earlier steps"
            )

    def _covers(self, cost: Cost) -> bool:
        """Whether the next step is reserved already at this cost, or at one that is only a bound, and higher."""
        reserved = self._book.current.reserved
        return bool(reserved) and self._waiting < reserved[0].steps and reserved[0].allows(cost)

    def _reserve(self, step: int, event: Event, upcoming: int, later: Callable[[int], Event] | None) -> None:
        count = min(self._block, validate.count("upcoming", upcoming))
        costs = [event] if later is None else [event, *(later(step + i) for i in range(1, count))]
        if any(each.sample_rate != event.sample_rate or type(each) is not type(event) for each in costs):
            raise BadArgument("later: the sample rate changes inside a reservation; charge such steps one by one")
        noises = {each.noise_multiplier for each in costs}
        least = Cost.of(event)._replace(noise_multiplier=min(noises))
        reservation = {"kind": "reserve", "first": step, "count": count, "exact": len(noises) == 1, **least._asdict()}
        self._append([*self._settled(), reservation], durable=True)

    def _settled(self) -> list[dict[str, Any]]:
        """Lines that say which steps were taken since the last ones."""
        lines, first, pending = [], self._book.current.next_step or 0, self._runs()
        for start in range(0, len(pending), _RUNS_A_LINE):
            some = pending[start : start + _RUNS_A_LINE]
            runs = [[cost.sample_rate, cost.noise_multiplier, count] for cost, count in some]
            lines.append({"kind": "steps", "first": first, "runs": runs, "note": {}})
            first += sum(count for _, count in some)
        return lines

    def _begin(
        self,
        run_id: str,
        run: Mapping[str, Any],
        plan: str | None,
        resumes: Mark | None,
        after: Sequence[Ledger],
    ) -> None:
        if plan is not None and not (isinstance(plan, str) and plan):
            raise BadArgument(f"plan_fingerprint={plan!r} is not a fingerprint; give a non-empty string, or None")
        facts, book = chain.public("run", run), self._book
        replayed = None
        if resumes is not None and plan is not None and book.current.plan == plan:  # else it was left since: `open`
            replayed = book.marked(resumes, plan)
        record = {
            "kind": "open",
            "schema": SCHEMA,
            "run_id": run_id,
            "segment": len(book.segments),
            "run": facts,
            "plan": plan,
            "replays": None
            if replayed is None or resumes is None
            else {"segment": replayed, "step": resumes.step, "state": resumes.state},
            "after": [other._as_composed(run_id) for other in after],
        }
        self._writable = True
        self._append([record], durable=True)

    def _as_composed(self, run_id: str) -> dict[str, Any]:
        if self.run_id == run_id:
            raise BadArgument(
                f"after: {self._path} is this run's own ledger, whose charges count already; leave it out"
            )
        charges = [[*Cost.of(event), event.count] for event in self._few_events()]
        return {"run_id": self.run_id, "head": self.head, "charges": charges}

    def _append(self, records: Sequence[dict[str, Any]], *, durable: bool) -> None:
        """Write lines, all or none. The lines that `_settled` gave must be among them: nothing is pending then."""
        head, data = self._head, b""
        for record in records:
            line = chain.seal(record, head, self._key)
            head, data = chain.digest(line), data + line + b"\n"
        written = self._path is None
        try:
            if self._path is not None:
                self._write(data, durable=durable)
                written = True
                if durable:
                    note_head(self._path, head)
            # The reader's rules count what is written, so that writer and reader cannot drift apart.
            for record in records:
                self._book.enter(record, sealed=self._key is not None)
            self._pending, self._head = [], head
        except BaseException as error:
            if written or not isinstance(error, LedgerError):
                # Ctrl-C in between: file and memory may differ, and the file is right
                self._stop("an interruption left this ledger half written; use Ledger.open to go on with it")
            raise

    def _write(self, data: bytes, *, durable: bool) -> None:
        if self._file is None:
            raise LedgerError(f"{self._path} is not open")
        try:
            self._file.write(data, self._end, durable=durable)
        except Unusable as error:
            self._stop(error.why)
            raise
        self._end += len(data)

    def _load(self, must_contain: str | None) -> None:
        path = self._path
        if path is None:
            raise LedgerError("a ledger in memory cannot be loaded")
        if must_contain is not None and not re.fullmatch("[0-9a-f]{8,64}", must_contain):
            raise BadArgument(
                f"must_contain={must_contain!r} is not the SHA-256 of a line, nor 8 digits or more of one"
            )
        must = [each for each in (must_contain, noted_head(path)) if each is not None]
        number = 0
        try:
            with os.fdopen(open_ordinary(path), "rb") as file:
                # What follows the last newline was torn by a crash; the reservation covers it.
                while (line := file.readline(chain.LONGEST_LINE)).endswith(b"\n"):
                    number += 1
                    self._enter_line(path, number, line[:-1])
                    must = [each for each in must if not self._head.startswith(each)]
        except OSError as error:
            raise LedgerError(f"cannot read {path}: {error}") from error
        if len(line) == chain.LONGEST_LINE:
            raise LedgerTampered(f"{path}, line {number + 1}: is longer than any line of a ledger")
        if not number:
            raise LedgerTampered(f"{path} holds no complete line; if no step was ever taken, delete it and start anew")
        if must:
            raise LedgerRollback(
                f"{path} does not contain the line {must[0]}: lines were cut off its end, or it belongs to another "
                "run; restore the ledger that goes with the run or the checkpoint"
            )

    def _enter_line(self, path: Path, number: int, line: bytes) -> None:
        try:
            record, sealed = chain.unseal(line, self._head, self._key)
            self._book.enter(record, sealed=sealed)
        except (BadArgument, LedgerTampered) as error:
            raise LedgerTampered(f"{path}, line {number}: {error}") from error
        self._head = chain.digest(line)
        self._end += len(line) + 1

    def _stop(self, why: str) -> None:
        self._writable, self._why_not = False, why

    def _release(self) -> None:
        self._writable = False
        if self._file is not None:
            self._file.release()
            self._file = None

    def hand_over(self) -> None:
        """To a later handle in this process: a notebook's cell that is run again, say."""
        try:
            self.close()
        finally:
            self._stop(
                f"{self._path} was opened again in this process ({os.getpid()}), and the later run took it over; what was "
                "charged stays charged. Use one ledger a run, or end a run (detach, close) before the next begins"
            )

    def drop_in_child(self) -> None:
        """This is a forked child: its copy of the file is closed, and no more."""
        if self._file is not None:
            self._file.drop_in_child()
            self._file = None


def _poisson_first(item: tuple[Cost, int]) -> tuple[Any, ...]:
    cost, _ = item
    return cost.sampling != "poisson", *cost
