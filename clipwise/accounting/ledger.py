"""The ledger: an append-only record of what a run has spent, written ahead of the noise that spends it.

Formal guarantee: when `charge` has returned, the step is on record, and no later crash can lose it: either its own line
or the reservation that covers it is on the disk. Epsilon computed from the file is never below that of the noise drawn.
A step is never un-charged; a run that resumes starts a new segment, in which redone steps are charged again.

The file holds one JSON object a line, of four kinds:

| kind    | says                                                              | durable before `charge` returns |
| ------- | ----------------------------------------------------------------- | ------------------------------- |
| open    | a segment of the run begins, with its public facts                | yes, with the directory         |
| reserve | steps first..first+count-1 may be taken at this rate, with this   | yes (fsync)                     |
|         | noise or more                                                     |                                 |
| step    | one step, taken inside the current reservation                    | handed to the system            |
| close   | clean end: what was reserved and not taken is given back          | yes (fsync)                     |

An fsync is paid for a reservation, not for a step. One reservation holds at a time: a new one gives back what the one
before did not use, which is sound because its fsync makes all earlier step lines durable too. A segment without a
`close` is charged the untaken rest of its last reservation as well: its step lines may have been lost with the power.
Where the noise changes from step to step a reservation names the least of its steps.

Each line carries `prev`, the SHA-256 of the line before, and `sum`, that of its own content; so an edited, deleted,
repeated or reordered line is found. Whoever can rewrite the whole file can forge all that: an HMAC key (`mac`) finds a
rewrite, and a `head` kept elsewhere (`must_contain`) finds lines cut off the end.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from clipwise import validate
from clipwise.accounting.bound import Epsilon, epsilon
from clipwise.accounting.events import StepEvent, merge
from clipwise.types import BadArgument, ClipwiseError

try:
    import fcntl
except ImportError:  # not a POSIX system: no lock between processes
    fcntl = None  # type: ignore[assignment]

_Cost = tuple[float, float]  # sample rate, noise multiplier

_SCHEMA = 1
_GENESIS = "0" * 64  # `prev` of the first line
_LARGEST_NOISE = 1e6  # beyond this a multiplier is a typing error or an attack, not a training run
_FIELDS = {
    "open": {"schema", "run_id", "segment", "run"},
    "reserve": {"first", "count", "sample_rate", "noise_multiplier"},
    "step": {"step", "sample_rate", "noise_multiplier", "note"},
    "close": {"steps"},
}
_SEAL = re.compile(rb'(?:,"mac":"([0-9a-f]{64})")?,"sum":"([0-9a-f]{64})"\}\Z')
_SEAL_LENGTH = 147  # with a mac


class LedgerError(ClipwiseError, RuntimeError):
    """The ledger cannot be used as asked; nothing was charged, and no noise may be drawn."""


class LedgerTampered(LedgerError):
    """The file is not what was written: the message names the line."""


class LedgerRollback(LedgerError):
    """The file is an older or another ledger than the one expected."""


class Ledger:
    """What a run has spent. Make one with `create`, `open`, `read` or `in_memory`."""

    def __init__(self, path: Path | None, *, hmac_key: bytes | None, block: int) -> None:
        if hmac_key is not None and not (isinstance(hmac_key, bytes) and hmac_key):
            raise BadArgument("hmac_key must be non-empty bytes; give at least 16 random bytes, or None")
        self._path = path
        self._key = hmac_key
        self._block = validate.count("block", block)
        self._book = _Book()
        self._head = _GENESIS
        self._file: int | None = None
        self._end = 0  # offset of the first byte after the last good line
        self._writable = False

    @classmethod
    def create(
        cls, path: str | Path, *, run: Mapping[str, Any], hmac_key: bytes | None = None, block: int = 32
    ) -> Ledger:
        """Start the ledger of a new run; the file must not exist. `run` holds public facts, as JSON."""
        ledger = cls(Path(path), hmac_key=hmac_key, block=block)
        ledger._lock(os.O_CREAT | os.O_EXCL)
        try:
            ledger._begin(secrets.token_hex(16), 0, run)
            _sync_directory(Path(path).absolute().parent)
        except BaseException as error:
            ledger._release()
            Path(path).unlink()  # no step was charged to it
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
        hmac_key: bytes | None = None,
        must_contain: str | None = None,
        block: int = 32,
    ) -> Ledger:
        """Verify an existing ledger and go on with it, in a new segment (with new facts if `run` is given)."""
        ledger = cls(Path(path), hmac_key=hmac_key, block=block)
        ledger._lock(0)
        try:
            ledger._load(must_contain)
            book = ledger._book
            if book.sealed and hmac_key is None:
                raise LedgerError(f"{path} is sealed with an HMAC key; give hmac_key to go on with it")
            os.ftruncate(ledger._descriptor(), ledger._end)  # a torn last line, if any
            ledger._begin(book.run_id, book.segment + 1, book.run if run is None else run)
        except BaseException as error:
            ledger._release()
            if isinstance(error, OSError):
                raise LedgerError(f"cannot write {path}: {error}") from error
            raise
        return ledger

    @classmethod
    def read(cls, path: str | Path, *, hmac_key: bytes | None = None, must_contain: str | None = None) -> Ledger:
        """Verify a ledger to report on it; it cannot be charged. The run that writes it may go on meanwhile."""
        ledger = cls(Path(path), hmac_key=hmac_key, block=1)
        ledger._load(must_contain)
        return ledger

    @classmethod
    def in_memory(cls, *, run: Mapping[str, Any], block: int = 32) -> Ledger:
        """A ledger without a file, for tests and short studies: it dies with the process."""
        ledger = cls(None, hmac_key=None, block=block)
        ledger._begin(secrets.token_hex(16), 0, run)
        return ledger

    # What it says

    @property
    def run_id(self) -> str:
        return self._book.run_id

    @property
    def run(self) -> dict[str, Any]:
        """Public facts of the current segment."""
        return dict(self._book.run)

    @property
    def segment(self) -> int:
        return self._book.segment

    @property
    def head(self) -> str:
        """SHA-256 of the last line. Keep it with a checkpoint: `must_contain=head` later finds a ledger rolled back."""
        return self._head

    @property
    def next_step(self) -> int | None:
        """The only step that can be charged next; None at the start of a segment, when any can."""
        return self._book.next_step

    def events(self, *, reserved: bool = False) -> list[StepEvent]:
        """What has been charged, merged by rate and noise.

        A live ledger counts the steps it has charged; with `reserved`, also the untaken rest of the reservation. A
        ledger that was only read always counts that rest, unless the segment was closed: it cannot know what was lost.
        """
        charged = self._book.charged(reserved=reserved or not self._writable)
        return list(merge(StepEvent(rate, noise, count) for (rate, noise), count in charged.items()))

    def epsilon(self, delta: float, accountant: str = "best") -> Epsilon:
        return epsilon(self.events(), delta, accountant)

    # What it does

    def charge(
        self,
        step: int,
        event: StepEvent,
        *,
        upcoming: int = 1,
        later: Callable[[int], StepEvent] | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> None:
        """Put a step on record; only when this has returned may its noise be drawn.

        `upcoming` says how many steps, this one included, are planned: that many may be reserved at once. They cost
        what this one does, or what `later(step)` says. `note` holds public facts, as JSON. On any error nothing is
        charged, and the call may be repeated.
        """
        step = validate.count("step", step, least=0)
        upcoming = validate.count("upcoming", upcoming)
        if event.count != 1:
            raise BadArgument(f"event.count={event.count!r} must be 1; charge one step at a time")
        if event.noise_multiplier > _LARGEST_NOISE:
            raise BadArgument(f"noise_multiplier={event.noise_multiplier!r} must be at most {_LARGEST_NOISE:g}")
        if not self._writable:
            raise LedgerError("this ledger is closed or was opened to read; use Ledger.open to go on with it")
        if self._book.next_step not in (None, step):
            raise LedgerError(
                f"step {step} is out of order: {self._book.next_step} is next; re-open the ledger to redo earlier steps"
            )
        cost = {"sample_rate": event.sample_rate, "noise_multiplier": event.noise_multiplier}
        record = {"kind": "step", "step": step, **cost, "note": _public("note", note or {})}
        if not self._book.covers(event):
            count = min(self._block, upcoming)
            costs = [event] if later is None else [event, *(later(step + i) for i in range(1, count))]
            if any(each.sample_rate != event.sample_rate for each in costs):
                raise BadArgument("later: the sample rate changes inside a reservation; charge such steps one by one")
            least = min(each.noise_multiplier for each in costs)
            reservation = {"kind": "reserve", "first": step, "count": count, **cost, "noise_multiplier": least}
            self._append(reservation, durable=True)
        self._append(record, durable=False)

    def close(self) -> None:
        """End the segment cleanly, which gives back the reserved steps not taken. Closing twice is harmless."""
        try:
            if self._writable:
                self._append({"kind": "close", "steps": self._book.steps_taken}, durable=True)
        finally:
            self._release()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()  # after an error too: every step taken is on record

    # How it is kept

    def _begin(self, run_id: str, segment: int, run: Mapping[str, Any]) -> None:
        facts = _public("run", run)
        self._writable = True
        self._append(
            {"kind": "open", "schema": _SCHEMA, "run_id": run_id, "segment": segment, "run": facts}, durable=True
        )

    def _append(self, record: dict[str, Any], *, durable: bool) -> None:
        line = self._seal(record)
        try:
            if self._path is not None:
                self._write(line + b"\n", durable=durable)
            # The reader's rules count what is written, so that writer and reader cannot drift apart.
            self._book.enter(record, sealed=self._key is not None)
            self._head = hashlib.sha256(line).hexdigest()
        except LedgerError:
            raise
        except BaseException:
            self._writable = False  # Ctrl-C in between: file and memory may differ, and the file is right
            raise

    def _write(self, data: bytes, *, durable: bool) -> None:
        file = self._descriptor()
        try:
            os.lseek(file, self._end, os.SEEK_SET)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError as error:
            try:
                os.ftruncate(file, self._end)  # a half line must not stand before the next one
            except OSError:
                self._writable = False
            raise LedgerError(
                f"cannot write {self._path}: {error}; nothing was charged, no noise may be drawn"
            ) from error
        if durable:
            try:
                os.fsync(file)
            except OSError as error:
                # After a failed fsync the system may forget earlier lines as well: only a fresh look at the file helps.
                self._writable = False
                raise LedgerError(f"cannot make {self._path} durable: {error}; re-open it before going on") from error
        self._end += len(data)

    def _seal(self, record: dict[str, Any]) -> bytes:
        body = json.dumps({**record, "prev": self._head}, separators=(",", ":"), allow_nan=False)[:-1].encode()
        if self._key is not None:
            body += b',"mac":"' + _mac(self._key, body).encode() + b'"'
        return body + b',"sum":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'

    def _load(self, must_contain: str | None) -> None:
        path = self._path
        if path is None:
            raise LedgerError("a ledger in memory cannot be loaded")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise LedgerError(f"cannot read {path}: {error}") from error
        self._end = (
            data.rfind(b"\n") + 1
        )  # what follows the last newline was torn by a crash; the reservation covers it
        lines = data[: self._end].split(b"\n")[:-1]
        if not lines:
            raise LedgerTampered(f"{path} holds no complete line; if no step was ever taken, delete it and start anew")
        found = must_contain is None
        for number, line in enumerate(lines, start=1):
            try:
                self._check(line)
            except (BadArgument, LedgerTampered, OverflowError) as error:
                raise LedgerTampered(f"{path}, line {number}: {error}") from error
            self._head = hashlib.sha256(line).hexdigest()
            found = found or self._head == must_contain
        if not found:
            raise LedgerRollback(
                f"{path} does not contain the line {must_contain}; it was rolled back or belongs to another run: "
                "restore the ledger that goes with the checkpoint"
            )

    def _check(self, line: bytes) -> None:
        seal = _SEAL.search(line, max(0, len(line) - _SEAL_LENGTH))
        if seal is None:
            raise LedgerTampered("is not a ledger line")
        body, (mac, content_sum) = line[: seal.start()], seal.groups()
        if hashlib.sha256(line[: seal.start(2) - len(b',"sum":"')]).hexdigest().encode() != content_sum:
            raise LedgerTampered("was edited: its sum does not fit its content")
        if self._key is not None and not hmac.compare_digest(_mac(self._key, body).encode(), mac or b""):
            raise LedgerTampered("is not sealed with this HMAC key")
        try:
            record = _DECODER.decode((body + b"}").decode())
        except (ValueError, RecursionError) as error:
            raise LedgerTampered(f"is not valid JSON ({error})") from error
        if not isinstance(record, dict) or record.pop("prev", None) != self._head:
            raise LedgerTampered("does not follow the line before it: a line was removed, repeated, moved or edited")
        self._book.enter(record, sealed=mac is not None)

    def _lock(self, extra: int) -> None:
        try:
            self._file = os.open(str(self._path), os.O_RDWR | extra | getattr(os, "O_CLOEXEC", 0), 0o600)
        except FileExistsError as error:
            raise LedgerError(f"{self._path} exists; use Ledger.open to go on with it, or give another path") from error
        except OSError as error:
            raise LedgerError(f"cannot open {self._path}: {error}") from error
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._release()
                raise LedgerError(f"{self._path} is in use by another process; wait for it or end it") from error

    def _descriptor(self) -> int:
        if self._file is None:
            raise LedgerError(f"{self._path} is not open")
        return self._file

    def _release(self) -> None:
        self._writable = False
        if self._file is not None:
            os.close(self._file)  # drops the lock too
            self._file = None


class _Book:
    """The meaning of the lines, one at a time; refuses any that cannot follow those before it."""

    def __init__(self) -> None:
        self.run_id = ""
        self.segment = -1
        self.run: dict[str, Any] = {}
        self.sealed = False
        self.next_step: int | None = None
        self._closed = True
        self._past: Counter[_Cost] = Counter()  # segments that have ended, cleanly or not
        self._steps: Counter[_Cost] = Counter()  # of this segment
        self._reserved: _Cost | None = None
        self._untaken = 0  # steps left in the reservation

    @property
    def steps_taken(self) -> int:
        """In this segment."""
        return self._steps.total()

    def covers(self, event: StepEvent) -> bool:
        """Whether the next step is already reserved, at this cost or a higher one."""
        return self._untaken > 0 and self._allows((event.sample_rate, event.noise_multiplier))

    def _allows(self, cost: _Cost) -> bool:
        return self._reserved is not None and cost[0] == self._reserved[0] and cost[1] >= self._reserved[1]

    def charged(self, *, reserved: bool) -> Counter[_Cost]:
        total = self._past + self._steps
        if reserved and not self._closed and self._reserved is not None:
            total[self._reserved] += self._untaken
        return total

    def enter(self, record: dict[str, Any], *, sealed: bool) -> None:
        kind = record.get("kind")
        if not isinstance(kind, str) or record.keys() - {"kind"} != _FIELDS.get(kind):
            raise LedgerTampered("is of an unknown kind, or has other fields than its kind")
        if kind == "open":
            self._enter_open(record, sealed)
        elif self._closed:
            raise LedgerTampered(f"is a {kind} line outside an open segment")
        elif sealed != self.sealed:
            raise LedgerTampered("is sealed otherwise than the first line")
        elif kind == "reserve":
            self._enter_reserve(record)
        elif kind == "step":
            self._enter_step(record)
        elif record["steps"] != self.steps_taken:
            raise LedgerTampered(f"closes {record['steps']!r} steps, not the {self.steps_taken} on record")
        else:
            self._closed = True

    def _enter_open(self, record: dict[str, Any], sealed: bool) -> None:
        if record["schema"] != _SCHEMA:
            raise LedgerTampered(f"has schema {record['schema']!r}; this version reads {_SCHEMA}: upgrade Clipwise")
        run_id, segment, run = record["run_id"], record["segment"], record["run"]
        if not (isinstance(run_id, str) and isinstance(run, dict)):
            raise LedgerTampered("names no run")
        same_run = self.segment < 0 or (run_id, sealed) == (self.run_id, self.sealed)
        if segment != self.segment + 1 or not same_run:
            raise LedgerTampered("opens a segment that does not belong here")
        self._past = self.charged(reserved=True)
        self._steps = Counter()
        self._reserved, self._untaken, self.next_step, self._closed = None, 0, None, False
        self.run_id, self.segment, self.run, self.sealed = run_id, self.segment + 1, run, sealed

    def _enter_reserve(self, record: dict[str, Any]) -> None:
        cost = _cost(record)
        first = validate.count("first", record["first"], least=0)
        count = validate.count("count", record["count"])
        if self.next_step not in (None, first):
            raise LedgerTampered(f"reserves from step {first}, but {self.next_step} is next")
        self._reserved, self._untaken, self.next_step = cost, count, first

    def _enter_step(self, record: dict[str, Any]) -> None:
        cost = _cost(record)
        step = validate.count("step", record["step"], least=0)
        if step != self.next_step or not self._allows(cost) or self._untaken == 0:
            raise LedgerTampered(f"takes step {step}, which no reservation covers")
        self._steps[cost] += 1
        self._untaken -= 1
        self.next_step = step + 1


def _cost(record: dict[str, Any]) -> _Cost:
    event = StepEvent(record["sample_rate"], record["noise_multiplier"])
    if event.noise_multiplier > _LARGEST_NOISE:
        raise LedgerTampered(f"has noise_multiplier={event.noise_multiplier!r}, above {_LARGEST_NOISE:g}")
    return event.sample_rate, event.noise_multiplier


def _mac(key: bytes, body: bytes) -> str:
    return hmac.new(key, body, hashlib.sha256).hexdigest()


def _public(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the facts as they will read back, or an error before anything is written."""
    try:
        return json.loads(json.dumps(dict(facts), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise BadArgument(
            f"{name}={facts!r} is not JSON ({error}); give finite numbers, strings, lists and dicts"
        ) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _sync_directory(folder: Path) -> None:
    """Make a new file's name durable; where directories cannot be opened (Windows) the system sees to it."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
