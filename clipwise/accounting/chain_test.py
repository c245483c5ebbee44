"""Tampered, rolled back, forged and rewritten ledgers: each is found, by name."""

from __future__ import annotations

import hashlib
import json

import pytest

from clipwise.accounting import (
    Ledger,
    LedgerError,
    LedgerRollback,
    LedgerTampered,
)
from clipwise.accounting.ledger_test import EVENT, GOLDEN, RUN, forge, lines, total, train
from clipwise.types import BadArgument, ClipwiseError


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
    with pytest.raises(LedgerTampered, match="line"):
        Ledger.read(path)


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


@pytest.mark.parametrize("attack", [_edit_first_step, _delete, _swap, _duplicate, _cut_in_the_middle])
def test_a_ledger_of_schema_1_is_still_tamper_evident(tmp_path, attack):
    path, changed = tmp_path / "ledger", lines(GOLDEN)
    attack(changed)
    path.write_bytes(b"".join(changed))
    with pytest.raises(LedgerTampered):
        Ledger.read(path)


# Redone steps, bit for bit
