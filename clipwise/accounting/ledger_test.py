"""The ledger under attack and under failure: what is charged stays charged, what is changed is found."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipwise.accounting import (
    FixedSizeEvent,
    Ledger,
    LedgerError,
    StepEvent,
    chain,
    epsilon,
    rdp,
)
from clipwise.accounting.events import merge
from clipwise.accounting.history import read_history
from clipwise.accounting.ledger import block_of
from clipwise.types import BadArgument

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
    head, data = chain.GENESIS, b""
    for record in records:
        line = chain.seal({k: v for k, v in record.items() if k not in ("prev", "sum", "mac")}, head, key)
        head = hashlib.sha256(line).hexdigest()
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


def test_very_many_levels_are_accounted_for_as_their_events_are():
    """Ten thousand events are slow to make; a few hundred that dominate them are what the accountant uses anyway."""
    ledger = Ledger.in_memory(run=RUN, block=1)
    for step in range(1500):
        ledger.charge(step, StepEvent(0.01 if step % 3 else 0.02, 2 - step / 4000))
    few = ledger._few_events()
    assert len(few) <= 2 * 512
    assert sum(event.count for event in few) == 1500
    exact = rdp._evaluate(merge(ledger.events()), 1e-5)  # all 1,500 levels
    assert exact <= ledger.epsilon(1e-5, "rdp").value <= 1.005 * exact


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
