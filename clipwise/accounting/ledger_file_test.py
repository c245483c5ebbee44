"""The file of a ledger: full disks, failed and interrupted writes, locks, forks, files that are none."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import resource
import subprocess
import sys

import pytest

from clipwise.accounting import (
    Ledger,
    LedgerError,
    LedgerTampered,
    ledger_file,
)
from clipwise.accounting.ledger_test import EVENT, RUN, lines, total, train


def test_disk_full_stops_the_step_and_the_file_stays_good(tmp_path):
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, run=RUN, block=2)
    ledger.charge(0, EVENT, upcoming=9)
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, hard))  # half a line still fits
    try:
        ledger.charge(1, EVENT)  # reserved with the first
        for _ in range(2):
            with pytest.raises(LedgerError, match="no noise may be drawn"):
                ledger.charge(2, EVENT)
        assert path.stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (ledger.next_step, total(ledger)) == (2, 2)
    ledger.charge(2, EVENT)
    ledger.charge(3, EVENT)
    ledger.close()
    assert total(Ledger.read(path)) == 4


def test_a_disk_full_at_creation_leaves_no_file(tmp_path):
    path = tmp_path / "ledger"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(LedgerError):
            Ledger.create(path, run=RUN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not path.exists()


def test_a_failed_fsync_charges_nothing_and_ends_the_segment(tmp_path, monkeypatch):
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, run=RUN)

    def fail(_):
        raise OSError(errno.EIO, "disk on fire")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LedgerError, match="durable"):
        ledger.charge(0, EVENT)
    monkeypatch.undo()
    with pytest.raises(LedgerError):
        ledger.charge(0, EVENT)
    ledger.close()
    with Ledger.open(path) as again:
        again.charge(0, EVENT)


@pytest.mark.parametrize("written", [0, 40, 10_000])
def test_an_interrupted_write_leaves_a_good_file(tmp_path, monkeypatch, written):
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, run=RUN, block=4)
    ledger.charge(0, EVENT, upcoming=9)
    write = os.write

    def interrupt(file, data):
        write(file, bytes(data)[:written])
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ledger.charge(1, EVENT, note={"a": "line"})
    monkeypatch.undo()
    ledger.close()  # what `with` does; the segment stays open on the file, so the reservation is charged
    assert total(ledger) == total(Ledger.read(path)) == 4
    Ledger.open(path).close()


def test_the_reservation_is_durable_before_the_step_is_written(tmp_path, monkeypatch):
    path, synced = tmp_path / "ledger", []
    ledger = Ledger.create(path, run=RUN, block=3)
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(json.loads(lines(path)[-1])["kind"]))
    for step in range(6):
        ledger.charge(step, EVENT, upcoming=6 - step)
    assert synced == ["reserve", "reserve"]


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, run=RUN)
    code = f"from clipwise.accounting import Ledger; Ledger.open({str(path)!r})"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "in use by another process" in other.stderr
    with pytest.raises(LedgerError, match="exists"):
        Ledger.create(path, run=RUN)
    ledger.close()
    Ledger.open(path).close()


def test_missing_and_unreadable_files_are_named(tmp_path):
    for load in (Ledger.read, Ledger.open):
        with pytest.raises(LedgerError, match="nowhere"):
            load(tmp_path / "nowhere")


def in_child(action):
    """What the action raised in a forked child: the name of its class and the message, or ''."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            action()
            said = ""
        except BaseException as error:  # the child must not go on as a second pytest
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()


@pytest.mark.parametrize("act", ["charge", "note", "mark", "close", "collect"])
@pytest.mark.parametrize("hooked", [True, False])
def test_a_forked_child_cannot_touch_its_parents_ledger(tmp_path, monkeypatch, act, hooked):
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, run=RUN, block=2)
    ledger.charge(0, EVENT, upcoming=9)
    ledger.charge(1, EVENT, upcoming=9)
    before = path.read_bytes()
    actions = {
        "charge": lambda: ledger.charge(2, EVENT, upcoming=9),
        "note": lambda: ledger.charge(2, EVENT, note={"a": 1}),
        "mark": lambda: ledger.mark(2, "state"),
        "close": ledger.close,
        "collect": lambda: ledger._release(),
    }
    if not hooked:  # a fork that Python does not hear of
        monkeypatch.setattr(ledger_file, "_drop_in_child", lambda: None)
    said = in_child(actions[act])
    assert said == "" if act in ("close", "collect") else f"belongs to process {os.getpid()}" in said
    assert path.read_bytes() == before
    with path.open() as other, pytest.raises(BlockingIOError):  # the child's end did not take the parent's lock away
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    ledger.charge(2, EVENT, upcoming=9)
    ledger.close()
    assert total(Ledger.read(path)) == 3


def test_a_child_that_lives_on_does_not_keep_the_lock(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", run=RUN)
    (read, write), (ready, say) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(say, b"x")
        os.read(read, 1)
        os._exit(0)
    try:
        os.read(ready, 1)  # the child runs
        ledger._file._finalizer.detach()
        os.close(ledger._file._file)  # as a kill of this process would: nobody unlocks
        Ledger.open(tmp_path / "ledger").close()
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)


def test_the_lock_goes_with_the_last_reference(tmp_path):
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, run=RUN, block=8)
    ledger.charge(0, EVENT, upcoming=8)
    file = ledger._file._file
    del ledger
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
    assert total(Ledger.open(path)) == 8  # as after a kill


def test_a_cell_that_is_run_again_takes_over_in_this_process(tmp_path):
    path = tmp_path / "ledger"
    first = Ledger.create(path, run=RUN, block=8)
    first.charge(0, EVENT, upcoming=8)
    with Ledger.open(path) as second:
        assert total(second) == 1  # the first was closed, not killed
        with pytest.raises(LedgerError, match=rf"opened again in this process \({os.getpid()}\)"):
            first.charge(1, EVENT)
        first.close()
        second.charge(1, EVENT)
    assert total(Ledger.read(path)) == 2


@pytest.mark.parametrize("kind", ["fifo", "folder", "/dev/full", "/dev/zero", "long", "nul", "link to a fifo"])
def test_what_is_not_an_ordinary_file_is_named_at_once(tmp_path, kind):
    path = tmp_path / "ledger"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to a fifo":
        os.mkfifo(tmp_path / "fifo")
        path.symlink_to(tmp_path / "fifo")
    else:
        path = {"long": "x" * 100_000, "nul": "a\0b"}.get(kind, kind)
    for use in (Ledger.read, Ledger.open, lambda path: Ledger.create(path, run=RUN)):
        with pytest.raises(LedgerError):
            use(path)


def test_a_file_without_end_of_line_is_refused_in_bounded_memory(tmp_path):
    path = tmp_path / "ledger"
    train(path, steps=1)
    with path.open("ab") as file:
        file.truncate(1 << 33)  # sparse: 8 GiB of zeros
    with pytest.raises(LedgerTampered, match="longer than any line"):
        Ledger.read(path)
