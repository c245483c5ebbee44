"""The ledger under attack and under failure: what is charged stays charged, what is changed is found."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipwise.accounting import Ledger, LedgerError, LedgerRollback, LedgerTampered, StepEvent, epsilon
from clipwise.types import BadArgument, ClipwiseError

EVENT = StepEvent(0.01, 1.0)
OTHER = StepEvent(0.01, 2.0)
RUN = {"method": "fixed", "adjacency": "add/remove"}


def total(ledger, **options):
    return sum(event.count for event in ledger.events(**options))


def train(path, steps=10, *, close=True, key=None, block=4):
    """A short run; without close, it ends as a killed process would."""
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
        line = forger._seal({k: v for k, v in record.items() if k not in ("prev", "sum", "mac")})
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


def test_less_noise_ends_the_reservation_and_more_is_covered_by_it(tmp_path):
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, run=RUN, block=10)
    ledger.charge(0, OTHER, upcoming=10)
    ledger.charge(1, EVENT, upcoming=3)
    ledger.charge(2, OTHER, upcoming=10)
    assert ledger.events() == [StepEvent(0.01, 1.0, 1), StepEvent(0.01, 2.0, 2)]
    # Only the last reservation is still open: the one before was settled when its line was made durable.
    assert Ledger.read(path).events() == [StepEvent(0.01, 1.0, 2), StepEvent(0.01, 2.0, 2)]


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
    assert Ledger.read(path).events()[0] == StepEvent(0.01, 2 - 7 / 8, 2)  # the crash's charge: what was not taken
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
    all_lines[5] = all_lines[5].replace(b'"noise_multiplier":1.0', b'"noise_multiplier":9.0')


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
    path.write_bytes(forge(records))
    assert Ledger.read(path).epsilon(1e-5, "rdp").value < 0.5  # without the key, a consistent forgery passes
    with pytest.raises(LedgerTampered, match="HMAC"):
        Ledger.read(path, hmac_key=key)
    path.write_bytes(forge(records, key=b"a guess"))
    with pytest.raises(LedgerTampered, match="HMAC"):
        Ledger.read(path, hmac_key=key)


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
        ("step", "noise_multiplier", 0.5),
        ("reserve", "noise_multiplier", "1.0"),
        ("reserve", "sample_rate", 1.5),
        ("reserve", "sample_rate", 0),
        ("reserve", "count", -4),
        ("reserve", "count", 1),
        ("reserve", "first", 3),
        ("step", "step", -1),
        ("step", "step", 10**400),
        ("step", "kind", "stop"),
        ("step", "kind", ["step"]),
        ("step", "extra", 1),
        ("open", "segment", 1),
        ("open", "schema", 2),
        ("open", "run", None),
        ("close", "steps", 3),
    ],
)
def test_a_consistent_forgery_with_impossible_numbers_is_refused(tmp_path, kind, field, value):
    path = tmp_path / "ledger"
    train(path)
    records = [json.loads(line) for line in lines(path)]
    chosen = [record for record in records if kind in (record["kind"], "every" if field in record else "")]
    for record in chosen if kind == "every" else chosen[:1]:
        record[field] = value
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
        for _ in range(2):
            with pytest.raises(LedgerError, match="no noise may be drawn"):
                ledger.charge(1, EVENT)
        assert path.stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (ledger.next_step, total(ledger)) == (1, 1)
    ledger.charge(1, EVENT)
    ledger.charge(2, EVENT)
    ledger.close()
    assert total(Ledger.read(path)) == 3


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
        ledger.charge(1, EVENT)
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


def test_a_long_run_loads_quickly(tmp_path):
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, run=RUN, block=20_000)
    for step in range(20_000):
        ledger.charge(step, EVENT, upcoming=20_000)
    ledger.close()
    start = time.perf_counter()
    assert total(Ledger.read(path)) == 20_000
    assert time.perf_counter() - start < 3  # 0.4 s of processor time measured
