"""The ledger under attack and under failure: what is charged stays charged, what is changed is found."""

from __future__ import annotations

import errno
import fcntl
import gc
import hashlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipwise.accounting import FixedSizeEvent, Ledger, LedgerError, LedgerRollback, LedgerTampered, StepEvent, epsilon
from clipwise.accounting import ledger as ledger_module
from clipwise.accounting.history import read_history
from clipwise.accounting.ledger import block_of
from clipwise.types import BadArgument, ClipwiseError

EVENT = StepEvent(0.01, 1.0)
OTHER = StepEvent(0.01, 2.0)
GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "ledger-0.1.jsonl"
RUN = {"method": "fixed", "adjacency": "add/remove"}


def total(ledger, **options):
    return sum(event.count for event in ledger.events(**options))


def train(path, steps=10, *, close=True, key=None, block=4):
    """A short run with a line for each step; without close, it ends as a killed process would."""
    ledger = Ledger.create(path, run=RUN, hmac_key=key, block=block)
    for step in range(steps):
        ledger.charge(step, EVENT, upcoming=100, note={"epoch": step // 5})
    if close:
        ledger.close()
    else:
        ledger._release()
    return ledger


def lines(path):
    return path.read_bytes().splitlines(keepends=True)


def forge(records, *, key=None):
    """What an attacker who knows the format writes: a whole new file with a consistent chain."""
    forger = Ledger(None, hmac_key=key, block=1)
    data = b""
    for record in records:
        line = forger._seal({k: v for k, v in record.items() if k not in ("prev", "sum", "mac")}, forger._head)
        forger._head = hashlib.sha256(line).hexdigest()
        data += line + b"\n"
    return data


# What is charged


def test_steps_are_charged_once_and_reservations_given_back_on_close(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger.create(path, run=RUN, block=8) as ledger:
        for step in range(10):
            ledger.charge(step, EVENT, upcoming=20 - step)
        assert (total(ledger), total(ledger, reserved=True)) == (10, 16)
        assert total(Ledger.read(path)) == 16  # a reader cannot know whether the run still lives
    assert total(ledger) == total(ledger, reserved=True) == total(Ledger.read(path)) == 10
    assert [json.loads(line)["kind"] for line in lines(path)].count("reserve") == 2
    assert ledger.events() == Ledger.read(path).events() == [StepEvent(0.01, 1.0, 10)]
    assert Ledger.read(path).run == RUN


def test_a_reservation_never_exceeds_what_is_planned(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", run=RUN, block=32)
    for step in range(5):
        ledger.charge(step, EVENT, upcoming=5 - step)
    assert total(ledger, reserved=True) == 5


def test_another_noise_ends_the_reservation(tmp_path):
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, run=RUN, block=10)
    ledger.charge(0, OTHER, upcoming=10)
    ledger.charge(1, EVENT, upcoming=3)
    ledger.charge(2, OTHER, upcoming=10)
    assert ledger.events() == [StepEvent(0.01, 1.0, 1), StepEvent(0.01, 2.0, 2)]
    # Only the last reservation is still open: the one before was settled when its line was made durable.
    assert Ledger.read(path).events() == [StepEvent(0.01, 1.0, 1), StepEvent(0.01, 2.0, 11)]


def test_a_reservation_over_changing_noise_names_the_least(tmp_path):
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, run=RUN, block=4)
    for step in range(6):
        ledger.charge(
            step, StepEvent(0.01, 2 - step / 8), upcoming=8 - step, later=lambda t: StepEvent(0.01, 2 - t / 8)
        )
    reserves = [json.loads(line) for line in lines(path) if b'"reserve"' in line]
    assert [(r["count"], r["noise_multiplier"]) for r in reserves] == [(4, 2 - 3 / 8), (4, 2 - 7 / 8)]
    assert [event.noise_multiplier for event in ledger.events()] == [2 - step / 8 for step in range(5, -1, -1)]
    assert Ledger.read(path).events()[0] == StepEvent(0.01, 2 - 7 / 8, 4)  # the crash's charge: all that was reserved
    with pytest.raises(BadArgument, match="rate"):
        ledger.close(), Ledger.in_memory(run=RUN).charge(0, EVENT, upcoming=2, later=lambda _: StepEvent(0.5, 1.0))


def test_an_unclosed_ledger_costs_at_least_the_closed_one(tmp_path):
    train(tmp_path / "closed", close=True)
    train(tmp_path / "killed", close=False)
    closed, killed = Ledger.read(tmp_path / "closed"), Ledger.read(tmp_path / "killed")
    assert killed.epsilon(1e-5, "rdp").value > closed.epsilon(1e-5, "rdp").value
    assert closed.epsilon(1e-5, "rdp") == epsilon([StepEvent(0.01, 1.0, 10)], 1e-5, "rdp")


def test_step_lines_lost_with_the_power_stay_charged(tmp_path):
    """Cut after any line that follows the last fsync: the steps that had noise by then are still counted."""
    path = tmp_path / "ledger"
    train(path, steps=10, close=False)
    whole = lines(path)
    last_reserve = max(i for i, line in enumerate(whole) if b'"reserve"' in line)
    for cut in range(last_reserve + 1, len(whole) + 1):
        path.write_bytes(b"".join(whole[:cut]))
        assert total(Ledger.read(path)) == 12


def test_redone_steps_are_charged_again_in_a_new_segment(tmp_path):
    path = tmp_path / "ledger"
    train(path, steps=10, close=True)
    with Ledger.open(path, run={"epsilon": 5}) as ledger:
        assert (ledger.segment, ledger.next_step, total(ledger)) == (1, None, 10)
        ledger.charge(7, OTHER)
        ledger.charge(8, OTHER)
    read = Ledger.read(path)
    assert read.events() == [StepEvent(0.01, 1.0, 10), StepEvent(0.01, 2.0, 2)]
    assert (read.run_id, read.run) == (ledger.run_id, {"epsilon": 5})


def test_a_killed_segment_keeps_its_whole_reservation_after_resume(tmp_path):
    path = tmp_path / "ledger"
    train(path, steps=10, close=False)
    with Ledger.open(path) as ledger:
        assert total(ledger) == 12
        ledger.charge(9, EVENT)
    assert total(Ledger.read(path)) == 13


def test_order_is_kept():
    ledger = Ledger.in_memory(run=RUN)
    ledger.charge(3, EVENT, upcoming=5)
    for step in (3, 2, 5):
        with pytest.raises(LedgerError, match="out of order"):
            ledger.charge(step, EVENT)
    ledger.charge(4, EVENT)
    assert total(ledger) == 2
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.charge(5, EVENT)


def test_a_read_ledger_cannot_be_charged(tmp_path):
    train(tmp_path / "ledger")
    with pytest.raises(LedgerError, match="read"):
        Ledger.read(tmp_path / "ledger").charge(10, EVENT)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([EVENT, OTHER]), st.integers(1, 9)), max_size=30), st.integers(1, 7))
def test_live_file_and_reserved_counts_agree(plan, block):
    ledger = Ledger.in_memory(run=RUN, block=block)
    for step, (event, upcoming) in enumerate(plan):
        ledger.charge(step, event, upcoming=upcoming)
        assert total(ledger) == step + 1 <= total(ledger, reserved=True) <= step + block
    ledger.close()
    assert total(ledger) == total(ledger, reserved=True) == len(plan)


@pytest.mark.parametrize(
    ("event", "options"),
    [
        (StepEvent(0.01, 1.0, 2), {}),
        (StepEvent(0.01, 1e9), {}),
        (EVENT, {"upcoming": 0}),
        (EVENT, {"note": {"loss": float("nan")}}),
        (EVENT, {"note": {"tensor": object()}}),
    ],
)
def test_bad_charges_leave_no_trace(tmp_path, event, options):
    ledger = Ledger.create(tmp_path / "ledger", run=RUN)
    before = lines(tmp_path / "ledger")
    with pytest.raises(BadArgument):
        ledger.charge(0, event, **options)
    assert lines(tmp_path / "ledger") == before


# Attacks


def _edit(all_lines):
    assert b"0.01,1.0,1" in all_lines[5]
    all_lines[5] = all_lines[5].replace(b"0.01,1.0,1", b"0.01,9.0,1")


def _edit_first_step(all_lines):
    assert b'"noise_multiplier":1.5' in all_lines[2]
    all_lines[2] = all_lines[2].replace(b'"noise_multiplier":1.5', b'"noise_multiplier":9.5')


def _edit_last(all_lines):
    all_lines[-1] = all_lines[-1].replace(b'"steps":10', b'"steps":1')


def _edit_and_mend_the_sum(all_lines):
    body = all_lines[5].replace(b'"epoch":0', b'"epoch":3').split(b',"sum"')[0]
    assert b'"epoch":3' in body
    all_lines[5] = body + b',"sum":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def _delete(all_lines):
    del all_lines[5]


def _delete_first(all_lines):
    del all_lines[0]


def _swap(all_lines):
    all_lines[3], all_lines[4] = all_lines[4], all_lines[3]


def _duplicate(all_lines):
    all_lines.insert(5, all_lines[5])


def _duplicate_last(all_lines):
    all_lines.append(all_lines[-1])


def _empty_line(all_lines):
    all_lines[5] = b"\n"


def _extra_empty_line(all_lines):
    all_lines.append(b"\n")


def _cut_in_the_middle(all_lines):
    all_lines[5] = all_lines[5][:20] + b"\n"


def _swallow_a_newline(all_lines):
    all_lines[5] = all_lines[5].rstrip(b"\n")


def _empty_file(all_lines):
    all_lines.clear()


ATTACKS = [
    _edit,
    _edit_last,
    _edit_and_mend_the_sum,
    _delete,
    _delete_first,
    _swap,
    _duplicate,
    _duplicate_last,
    _empty_line,
    _extra_empty_line,
    _cut_in_the_middle,
    _swallow_a_newline,
    _empty_file,
]


@pytest.mark.parametrize("key", [None, b"a key of the user"])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__.strip("_"))
def test_tampering_is_found(tmp_path, attack, key):
    path = tmp_path / "ledger"
    train(path, key=key)
    Ledger.read(path, hmac_key=key)
    changed = lines(path)
    attack(changed)
    path.write_bytes(b"".join(changed))
    for load in (Ledger.read, Ledger.open):
        with pytest.raises(LedgerTampered):
            load(path, hmac_key=key)
    assert path.read_bytes() == b"".join(changed)  # refusing changes nothing
    assert issubclass(LedgerTampered, ClipwiseError)


def test_any_flipped_bit_is_found(tmp_path):
    path = tmp_path / "ledger"
    train(path, steps=3, close=False)
    data = path.read_bytes()
    for position in range(0, len(data) - 1, 3):  # the very last newline is the torn-line case
        changed = bytearray(data)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(LedgerTampered):
            Ledger.read(path)


@pytest.mark.parametrize("torn", [slice(1), slice(30), slice(-1)])
def test_a_torn_last_line_is_dropped_and_costs_nothing_less(tmp_path, torn):
    path = tmp_path / "ledger"
    train(path, steps=10, close=False)
    whole = lines(path)
    path.write_bytes(b"".join(whole[:-1]) + whole[-1][torn] * 20)
    assert total(Ledger.read(path)) == 12
    with Ledger.open(path) as ledger:
        ledger.charge(9, EVENT)
    assert total(Ledger.read(path)) == 13
    assert path.read_bytes().endswith(b"\n")


def test_rollback_is_found_by_a_head_kept_elsewhere(tmp_path):
    path = tmp_path / "ledger"
    old = train(path, steps=6, close=False)
    backup = path.read_bytes()
    with Ledger.open(path, must_contain=old.head) as ledger:
        ledger.charge(6, EVENT)
        kept = ledger.head
    assert Ledger.read(path, must_contain=kept).head != kept  # an ancestor: the close line came after
    path.write_bytes(backup)
    for load in (Ledger.read, Ledger.open):
        with pytest.raises(LedgerRollback):
            load(path, must_contain=kept)
    train(tmp_path / "another")
    with pytest.raises(LedgerRollback):
        Ledger.read(tmp_path / "another", must_contain=old.head)


def test_the_key_finds_a_full_rewrite(tmp_path):
    path, key = tmp_path / "ledger", b"a key of the user"
    train(path, key=key)
    records = [json.loads(line) for line in lines(path)]
    for record in records:
        if "noise_multiplier" in record:
            record["noise_multiplier"] = 50.0
        for run in record.get("runs", ()):
            run[1] = 50.0
    path.write_bytes(forge(records))
    with pytest.raises(LedgerRollback):  # the head beside it tells; and whoever forges a ledger can remove that
        Ledger.read(path)
    (tmp_path / ".ledger.head").unlink()
    assert Ledger.read(path).epsilon(1e-5, "rdp").value < 0.5  # without the key, a consistent forgery passes
    with pytest.raises(LedgerTampered, match="HMAC"):
        Ledger.read(path, hmac_key=key)
    path.write_bytes(forge(records, key=b"a guess"))
    with pytest.raises(LedgerTampered, match="HMAC"):
        Ledger.read(path, hmac_key=key)


def test_a_ledger_that_lost_its_end_is_found_by_the_head_beside_it(tmp_path):
    path, beside = tmp_path / "ledger", tmp_path / ".ledger.head"
    train(path)
    content = path.read_bytes()
    for length in (len(content) - 1, len(content) // 2, content.index(b"\n") + 1):
        path.write_bytes(content[:length])
        with pytest.raises(LedgerRollback, match="cut off its end"):
            Ledger.read(path)
        with pytest.raises(LedgerRollback):
            Ledger.open(path)
    path.write_bytes(content)
    assert total(Ledger.read(path)) == 10
    beside.write_bytes(b"damaged")  # then it says nothing
    assert total(Ledger.read(path)) == 10
    beside.unlink()
    with Ledger.open(path) as ledger:
        assert beside.read_text() == ledger.head


def test_a_new_ledger_does_not_answer_for_a_deleted_one(tmp_path):
    path = tmp_path / "ledger"
    train(path)
    path.unlink()
    train(path)
    assert total(Ledger.read(path)) == 10


def test_a_sealed_ledger_goes_on_only_with_its_key(tmp_path):
    path, key = tmp_path / "ledger", b"a key of the user"
    train(path, key=key)
    assert total(Ledger.read(path)) == 10
    with pytest.raises(LedgerError, match="hmac_key"):
        Ledger.open(path)
    with pytest.raises(LedgerTampered):
        Ledger.open(path, hmac_key=b"wrong")
    Ledger.open(path, hmac_key=key).close()
    with pytest.raises(BadArgument):
        Ledger.create(tmp_path / "other", run=RUN, hmac_key=b"")


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("every", "noise_multiplier", -1.0),
        ("every", "noise_multiplier", 1e9),
        ("every", "sample_rate", 1.5),
        ("steps", "runs", [[0.01, 0.5, 1]]),
        ("steps", "runs", [[0.01, 1.0, 5]]),
        ("steps", "runs", [[0.01, 1.0, 0]]),
        ("steps", "runs", [[0.01, 1.0, 1.5]]),
        ("steps", "runs", [[0.02, 1.0, 1]]),
        ("steps", "runs", [[0.01, 1.0]]),
        ("steps", "runs", {"a": 1}),
        ("reserve", "noise_multiplier", "1.0"),
        ("reserve", "sample_rate", 1.5),
        ("reserve", "sample_rate", 0),
        ("reserve", "count", -4),
        ("reserve", "count", 1),
        ("reserve", "first", 3),
        ("reserve", "count", 10**16),
        ("reserve", "count", 10**400),
        ("reserve", "sampling", "by hand"),
        ("reserve", "exact", 1),
        ("reserve", "sampling", ["poisson"]),
        ("steps", "first", -1),
        ("steps", "first", 10**400),
        ("steps", "kind", "stop"),
        ("steps", "kind", ["steps"]),
        ("steps", "extra", 1),
        ("open", "segment", 1),
        ("open", "segment", False),
        ("open", "schema", 3),
        ("open", "schema", 1),
        ("open", "schema", [2]),
        ("open", "run", None),
        ("open", "plan", 7),
        ("open", "replays", {"segment": 0, "step": 0, "state": "s"}),
        ("open", "replays", 0),
        ("open", "after", None),
        ("open", "after", [{"run_id": "x", "head": "y", "charges": [["poisson", 0.01, -1.0, 3]]}]),
        ("open", "after", [{"run_id": "x"}]),
        ("close", "steps", 3),
        ("close", "steps", True),
        ("close", "facts", 3),
    ],
)
def test_a_consistent_forgery_with_impossible_numbers_is_refused(tmp_path, kind, field, value):
    path = tmp_path / "ledger"
    train(path)
    records = [json.loads(line) for line in lines(path)]
    if kind == "every":
        for record in records:
            record |= {field: value} if field in record else {}
            place = {"sample_rate": 0, "noise_multiplier": 1}[field]
            for run in record.get("runs", ()):
                run[place] = value
    else:
        next(record for record in records if record["kind"] == kind)[field] = value
    path.write_bytes(forge(records))
    start = time.perf_counter()
    with pytest.raises(LedgerTampered, match="line"):
        Ledger.read(path)
    assert time.perf_counter() - start < 1


def test_nan_is_refused(tmp_path):
    path = tmp_path / "ledger"
    train(path, steps=1)
    head, forged = Ledger(None, hmac_key=None, block=1)._head, b""
    for line in lines(path):
        body = line.split(b',"prev"')[0].replace(b'"noise_multiplier":1.0', b'"noise_multiplier":NaN')
        body += b',"prev":"' + head.encode() + b'"'
        sealed = body + b',"sum":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'
        head, forged = hashlib.sha256(sealed).hexdigest(), forged + sealed + b"\n"
    path.write_bytes(forged)
    with pytest.raises(LedgerTampered, match="NaN"):
        Ledger.read(path)


# Failures


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


def test_a_long_run_takes_a_short_file(tmp_path):
    path, steps = tmp_path / "ledger", 20_000
    with Ledger.create(path, run=RUN, block=block_of(steps)) as ledger:
        for step in range(steps):
            ledger.charge(step, EVENT, upcoming=steps - step)
    assert total(Ledger.read(path)) == steps
    assert path.stat().st_size < 100_000  # two lines a reservation, and a hundred of these


# What a kill costs


@pytest.mark.parametrize("planned", [1, 7, 90, 150, 999, 12_345, 400_000])
def test_a_kill_overcharges_by_at_most_one_percent_of_the_plan_or_one_step(tmp_path, planned):
    path, room = tmp_path / "ledger", max(1, planned // 100)
    ledger = Ledger.create(path, run=RUN, block=block_of(planned))
    for step in range(min(planned, 300)):
        ledger.charge(step, EVENT, upcoming=planned - step)
        if step < 20 or step % 50 == 0:
            drawn = step  # killed between this charge and its noise
            assert drawn < total(Ledger.read(path)) <= drawn + room
    assert block_of(None) == 32


def test_nothing_is_written_for_a_step_that_is_reserved(tmp_path, monkeypatch):
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, run=RUN, block=50)
    ledger.charge(0, EVENT, upcoming=100)
    monkeypatch.setattr(os, "write", None)
    for step in range(1, 50):
        ledger.charge(step, EVENT, upcoming=100 - step)
    monkeypatch.undo()
    ledger.charge(50, EVENT, upcoming=50)
    ledger.close()
    assert [json.loads(line)["kind"] for line in lines(path)] == ["open", *["reserve", "steps"] * 2, "close"]
    assert json.loads(lines(path)[2])["runs"] == [[0.01, 1.0, 50]]


def test_unequal_steps_are_all_told(tmp_path):
    path, steps = tmp_path / "ledger", 2500
    noise = [2 - step / 5000 for step in range(steps)]
    with Ledger.create(path, run=RUN, block=steps) as ledger:
        for step in range(steps):
            ledger.charge(
                step, StepEvent(0.01, noise[step]), upcoming=steps - step, later=lambda t: StepEvent(0.01, noise[t])
            )
    assert [e.noise_multiplier for e in Ledger.read(path).events()] == sorted(noise)
    assert len(lines(path)) == 6  # 1,000 runs a line


def test_fixed_size_batches_are_charged_as_such(tmp_path):
    path = tmp_path / "ledger"
    with Ledger.create(path, run=RUN, block=4) as ledger:
        for step in range(6):
            ledger.charge(step, FixedSizeEvent(0.01, 1.0), upcoming=6 - step)
        ledger.charge(6, EVENT)  # another kind of sampling ends the reservation
    assert Ledger.read(path).events() == ledger.events() == [EVENT, FixedSizeEvent(0.01, 1.0, 6)]
    with pytest.raises(BadArgument, match="not a FixedSizeEvent"):
        ledger.epsilon(1e-5)


# Files of version 0.1


def test_a_ledger_of_schema_1_is_read_and_gone_on_with(tmp_path):
    path = tmp_path / "ledger"
    path.write_bytes(GOLDEN.read_bytes())
    old = [StepEvent(0.01, 1.5, 16), *(StepEvent(0.01, 2 - step / 64) for step in range(13, 7, -1))]
    read = Ledger.read(path, must_contain="03ef5331edcdd2f6c908f059ed648316f173afe2bd3168e2c43ac1b920d93bf3")
    assert read.events() == old
    assert read.epsilon(1e-5).value == 0.14341184785699387
    assert (read.segment, read.closed, read.facts) == (1, True, {})
    with Ledger.open(path) as ledger:
        assert ledger.run["clipwise"] == "0.1.0"
        ledger.charge(13, EVENT)
    assert Ledger.read(path).events() == [EVENT, *old]


@pytest.mark.parametrize("attack", [_edit_first_step, _delete, _swap, _duplicate, _cut_in_the_middle])
def test_a_ledger_of_schema_1_is_still_tamper_evident(tmp_path, attack):
    path, changed = tmp_path / "ledger", lines(GOLDEN)
    attack(changed)
    path.write_bytes(b"".join(changed))
    with pytest.raises(LedgerTampered):
        Ledger.read(path)


# Redone steps, bit for bit


def first_try(path, *, plan="p", steps=10, close=False, block=2, noise=1.0):
    """A seeded run that keeps its state before steps 0 and 6, and is then killed."""
    ledger = Ledger.create(path, run=RUN, plan_fingerprint=plan, block=block)
    ledger.mark(0, "state 0")
    for step in range(steps):
        if step == 6:
            ledger.mark(6, "state 6")
        ledger.charge(step, StepEvent(0.01, noise), upcoming=100)
    if close:
        ledger.close()
    ledger._release()


def redo(path, first, last, *, plan="p", state=None, event=EVENT, block=4):
    ledger = Ledger.open(path, plan_fingerprint=plan, resumes=(first, state or f"state {first}"), block=block)
    for step in range(first, last):
        ledger.charge(step, event, upcoming=100)
    return ledger


def test_the_same_release_is_charged_once(tmp_path):
    path = tmp_path / "ledger"
    first_try(path)
    assert total(Ledger.read(path)) == 10
    for last in (8, 10, 10, 13):  # three more tries, two of which also die
        with redo(path, 6, last) as ledger:
            assert (ledger.stream, ledger.next_step) == (0, last)
            assert total(ledger) == max(10, last)
        assert total(Ledger.read(path)) == max(10, last)
    assert Ledger.read(path).events() == [StepEvent(0.01, 1.0, 13)]
    assert [s.redone for s in read_history(path).segments] == [0, 2, 2, 4, 4]
    assert read_history(path).taken == 13


def test_a_killed_redo_is_charged_for_what_it_reserved_beyond(tmp_path):
    path = tmp_path / "ledger"
    first_try(path, steps=8, block=5)
    assert total(Ledger.read(path)) == 10
    ledger = redo(path, 6, 9, block=3)
    assert (total(ledger), total(ledger, reserved=True)) == (10, 10)
    ledger.charge(9, EVENT, upcoming=100)
    ledger.charge(10, EVENT, upcoming=100)
    ledger._release()
    assert total(Ledger.read(path)) == 12
    with Ledger.open(path, plan_fingerprint="p", resumes=(6, "state 6")) as ledger:
        assert total(ledger) == 12
        assert total(ledger, reserved=True) == 12
        ledger.charge(6, EVENT)
    assert total(Ledger.read(path)) == 12


def test_a_kill_and_a_full_redo_end_as_one_undisturbed_run(tmp_path):
    """With noise that changes inside a reservation too: what was reserved at the least noise is then known exactly."""
    plan = [StepEvent(0.01, 2 - step / 100) for step in range(20)]
    for name, kill in (("whole", None), ("killed", 13)):
        ledger = Ledger.create(tmp_path / name, run=RUN, plan_fingerprint="p", block=7)
        ledger.mark(0, "state")
        for step in range(kill or 20):
            ledger.charge(step, plan[step], upcoming=20 - step, later=lambda t: plan[t])
        if kill is None:
            ledger.close()
        ledger._release()
    with Ledger.open(tmp_path / "killed", plan_fingerprint="p", resumes=(0, "state"), block=7) as ledger:
        for step in range(20):
            ledger.charge(step, plan[step], upcoming=20 - step, later=lambda t: plan[t])
    assert Ledger.read(tmp_path / "killed").events() == Ledger.read(tmp_path / "whole").events()


@pytest.mark.parametrize(
    ("plan", "state", "first"),
    [("q", "state 6", 6), ("p", "another state", 6), ("p", "state 6", 7), ("p", "state 0", 6)],
)
def test_another_plan_or_state_has_a_stream_of_its_own_and_is_charged_again(tmp_path, plan, state, first):
    path = tmp_path / "ledger"
    first_try(path)
    with redo(path, first, 10, plan=plan, state=state) as ledger:
        assert ledger.stream == ledger.segment == 1
    assert total(Ledger.read(path)) == 10 + 10 - first


def test_without_a_seed_nothing_is_redone(tmp_path):
    path = tmp_path / "ledger"
    first_try(path, plan=None)
    with pytest.raises(BadArgument, match="plan_fingerprint"):
        Ledger.open(path, resumes=(6, "state 6"))
    with redo(path, 6, 10) as ledger:  # the fingerprint is new, so that the old state does not count
        assert ledger.stream == 1
    assert total(Ledger.read(path)) == 14
    with pytest.raises(BadArgument, match="plan_fingerprint"):
        Ledger.create(tmp_path / "other", run=RUN, plan_fingerprint="")


@pytest.mark.parametrize("event", [OTHER, StepEvent(0.01, 0.5), StepEvent(0.02, 1.0), FixedSizeEvent(0.01, 1.0)])
def test_a_redo_at_another_cost_is_refused_before_its_noise(tmp_path, event):
    """Noise z under two multipliers on one gradient: (g + z) and (g + 2 z) give g away."""
    path = tmp_path / "ledger"
    first_try(path)
    with redo(path, 6, 6) as ledger:
        with pytest.raises(LedgerError, match=r"step 6 .* would cancel"):
            ledger.charge(6, event, upcoming=4)
        ledger.charge(6, EVENT)
        ledger.charge(7, EVENT)
        with pytest.raises(LedgerError, match=r"step 8 .* would cancel"):
            ledger.charge(8, event)  # of which the file knows only that it was reserved
    assert total(Ledger.read(path)) == 10


def _other_plan(records):
    records[-4]["plan"] = "q"


def _no_plan(records):
    records[-4]["plan"] = None


def _other_cost(records):
    records[-3]["noise_multiplier"] = 2.0
    records[-2]["runs"][0][1] = 2.0


def _other_step(records):
    records[-4]["replays"]["step"] = 7


def _no_mark(records):
    del records[next(i for i, record in enumerate(records) if record.get("state") == "state 6")]


def _of_itself(records):
    records[-4]["replays"]["segment"] = 1


def _of_nothing(records):
    records[-4]["replays"]["segment"] = -1


def _of_a_fraction(records):
    records[-4]["replays"]["segment"] = 0.0


def _starts_elsewhere(records):
    records[-3]["first"] = records[-2]["first"] = 10


@pytest.mark.parametrize(
    "attack",
    [
        _other_plan,
        _no_plan,
        _other_cost,
        _other_step,
        _no_mark,
        _of_itself,
        _of_nothing,
        _of_a_fraction,
        _starts_elsewhere,
    ],
    ids=lambda attack: attack.__name__.strip("_"),
)
def test_a_forged_redo_is_refused(tmp_path, attack):
    path = tmp_path / "ledger"
    first_try(path)
    redo(path, 6, 10).close()
    records = [json.loads(line) for line in lines(path)]
    assert [record["kind"] for record in records[-4:]] == ["open", "reserve", "steps", "close"]
    path.write_bytes(forge(records))
    assert total(Ledger.read(path)) == 10
    attack(records)
    path.write_bytes(forge(records))
    with pytest.raises(LedgerTampered, match="line"):
        Ledger.read(path)


def test_marks_are_kept_in_order_and_durable(tmp_path, monkeypatch):
    path, synced = tmp_path / "ledger", []
    ledger = Ledger.create(path, run=RUN, plan_fingerprint="p", block=8)
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(json.loads(lines(path)[-1])["kind"]))
    ledger.charge(0, EVENT, upcoming=100)
    for wrong in (0, 2):
        with pytest.raises(LedgerError, match="1 is next"):
            ledger.mark(wrong, "state")
    with pytest.raises(BadArgument, match="digest"):
        ledger.mark(1, "")
    ledger.mark(1, "state")
    ledger.charge(1, EVENT, upcoming=100)  # of the same reservation
    assert synced == ["reserve", "mark"]
    assert (total(ledger), total(ledger, reserved=True)) == (2, 8)


# Other ledgers of the same data


def test_an_earlier_ledger_is_composed(tmp_path):
    train(tmp_path / "first", close=False)
    earlier = Ledger.read(tmp_path / "first")
    path = tmp_path / "second"
    with Ledger.create(path, run=RUN, after=[earlier]) as ledger:
        ledger.charge(0, OTHER)
    for each in (ledger, Ledger.read(path), read_history(path)):
        assert each.epsilon(1e-5) == epsilon([StepEvent(0.01, 1.0, 12), OTHER], 1e-5)
    assert total(Ledger.read(path)) == 13
    with Ledger.open(path, after=[earlier]) as ledger:
        assert total(ledger) == 25
    with pytest.raises(BadArgument, match="own ledger"):
        Ledger.open(path, after=[Ledger.read(path)])
    records = [json.loads(line) for line in lines(path)]
    assert records[0]["after"][0] == {
        "run_id": earlier.run_id,
        "head": earlier.head,
        "charges": [["poisson", 0.01, 1.0, 12]],
    }
    assert total(Ledger.in_memory(run=RUN, after=[earlier])) == 12


def test_very_many_levels_are_composed_on_the_safe_side(tmp_path):
    earlier = Ledger.in_memory(run=RUN, block=1)
    for step in range(2000):
        earlier.charge(step, StepEvent(0.01, 2 - step / 4000))
    ledger = Ledger.create(tmp_path / "ledger", run=RUN, after=[earlier])
    assert total(ledger) == 2000
    assert len(ledger.events()) <= 512
    assert ledger.epsilon(1e-5, "rdp").value >= earlier.epsilon(1e-5, "rdp").value


def test_facts_of_the_end(tmp_path):
    path = tmp_path / "ledger"
    with Ledger.create(path, run=RUN) as ledger:
        ledger.charge(0, EVENT)
        with pytest.raises(BadArgument, match="facts"):
            ledger.close({"epsilon": float("nan")})
        ledger.close({"weights": "abc"})
        ledger.close()
    assert (Ledger.read(path).closed, Ledger.read(path).facts) == (True, {"weights": "abc"})
    with pytest.raises(LedgerError, match="facts"):
        ledger.close({"weights": "other"})
    with pytest.raises(BadArgument, match="too long"):
        Ledger.create(tmp_path / "long", run={"text": "x" * (1 << 20)})


# Processes, threads and handles


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
        monkeypatch.setattr(ledger_module, "_drop_in_child", lambda: None)
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
        ledger._handle._finalizer.detach()
        os.close(ledger._handle.file)  # as a kill of this process would: nobody unlocks
        Ledger.open(tmp_path / "ledger").close()
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)


def test_the_lock_goes_with_the_last_reference(tmp_path):
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, run=RUN, block=8)
    ledger.charge(0, EVENT, upcoming=8)
    file = ledger._handle.file
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


def test_threads_take_turns_and_a_signal_handler_does_not_break_in(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", run=RUN, block=4)
    threads = [threading.Thread(target=lambda: charge_next(ledger, 50)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(LedgerError, match="signal handler"):
        ledger.charge(200, EVENT, upcoming=9, later=lambda _: ledger.close())
    ledger.close()
    assert total(Ledger.read(tmp_path / "ledger")) == 200


def charge_next(ledger, times):
    while times:
        try:
            ledger.charge(ledger.next_step or 0, EVENT, upcoming=100)
            times -= 1
        except LedgerError as error:
            if "out of order" not in str(error):  # another thread was first
                raise


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
