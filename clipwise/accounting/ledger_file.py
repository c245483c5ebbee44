"""The file of a ledger: held by one process and one handle in it, written whole lines at a time, durable when it says so.

Formal guarantee: when `write(..., durable=True)` has returned, the lines are on the disk. A write that fails leaves the
lines before it, and no half line between them and the next.
"""

from __future__ import annotations

import os
import re
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from clipwise.accounting.book import LedgerError
from clipwise.files import open_ordinary

try:
    import fcntl
except ImportError:  # not a POSIX system: no lock between processes
    fcntl = None  # type: ignore[assignment]


class LedgerExists(LedgerError):
    """`create` found a file of that name."""


class Unusable(LedgerError):
    """Only a fresh reading of the file can tell what it holds now."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why  # to be said at every later call


class Owner(Protocol):
    def hand_over(self) -> None:
        """To a later handle in this process: end the segment, and let go of the file."""

    def drop_in_child(self) -> None:
        """Close the copy of the file, and no more: this is a forked child."""


class LedgerFile:
    """An open, locked file. It goes when it is released, when its owner is garbage, and in a forked child."""

    def __init__(self, owner: Owner, path: Path, *, create: bool = False) -> None:
        self.path = path
        self._file = _opened(path, create=create)
        self._finalizer = weakref.finalize(owner, _let_go, self._file, os.getpid())
        self._finalizer.atexit = False  # the system closes it then
        about = os.fstat(self._file)
        self._name = about.st_dev, about.st_ino
        if fcntl is not None:
            try:
                self._acquire(owner)
            except OSError as error:
                self._finalizer()
                raise LedgerError(f"{path} is in use by another process; wait for it or end it") from error
        _owners[self._name] = owner

    def _acquire(self, owner: Owner) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _owners.get(self._name)
            if holder is None or holder is owner:
                raise
            holder.hand_over()
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def cut(self, end: int) -> None:
        """Leave the first `end` bytes: what follows was torn by a crash."""
        os.ftruncate(self._file, end)

    def write(self, data: bytes, at: int, *, durable: bool) -> None:
        """These lines, from byte `at` on: all of them or none."""
        try:
            os.lseek(self._file, at, os.SEEK_SET)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            message = f"cannot write {self.path}: {error}; nothing was charged, no noise may be drawn"
            try:
                self.cut(at)  # a half line must not stand before the next one
            except OSError:
                why = f"{self.path} could not be mended after a failed write; use Ledger.open to go on with it"
                raise Unusable(message, why) from error
            raise LedgerError(message) from error
        if durable:
            try:
                os.fsync(self._file)
            except OSError as error:
                # After a failed fsync the system may forget earlier lines as well: only a fresh look at the file helps.
                raise Unusable(
                    f"cannot make {self.path} durable: {error}; re-open it before going on",
                    f"{self.path} could not be made durable; use Ledger.open to go on with it",
                ) from error

    def release(self) -> None:
        self._finalizer()

    def drop_in_child(self) -> None:
        """Close the copy, so that the lock goes with the parent; the parent's own stays as it is."""
        if self._finalizer.detach() is not None:
            os.close(self._file)


def _opened(path: Path, *, create: bool) -> int:
    try:
        return open_ordinary(str(path), os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0))
    except FileExistsError as error:
        raise LedgerExists(f"{path} exists; use Ledger.open to go on with it, or give another path") from error
    except OSError as error:
        raise LedgerError(f"cannot open {path}: {error}") from error


def _let_go(file: int, holder: int) -> None:
    if fcntl is not None and holder == os.getpid():
        fcntl.flock(file, fcntl.LOCK_UN)  # also where a child still holds a copy of the descriptor
    os.close(file)


_owners: weakref.WeakValueDictionary[tuple[int, int], Owner] = weakref.WeakValueDictionary()


def _drop_in_child() -> None:
    for owner in list(_owners.values()):
        owner.drop_in_child()
    _owners.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _drop_in_child())


def note_head(ledger: Path, head: str) -> None:
    """Keep the head of what is on the disk in a file of its own. It need not be durable, nor is it needed: an older head, or
    none, says less, and nothing wrong."""
    with suppress(OSError):
        file = open_ordinary(head_file(ledger), os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(file, head.encode(), 0)
        finally:
            os.close(file)


def noted_head(ledger: Path) -> str | None:
    try:
        with os.fdopen(open_ordinary(head_file(ledger)), "rb") as file:
            head = file.read(64).decode("ascii", "replace")
    except OSError:
        return None
    return head if re.fullmatch("[0-9a-f]{64}", head) else None


def head_file(ledger: Path) -> Path:
    return ledger.with_name(f".{ledger.name}.head")
