"""Steps that are redone: charged once where they are the same releases, and else again."""

from __future__ import annotations

import json

import pytest

from clipwise.accounting import (
    FixedSizeEvent,
    Ledger,
    LedgerError,
    LedgerTampered,
    StepEvent,
)
from clipwise.accounting.history import read_history
from clipwise.accounting.ledger_test import EVENT, OTHER, RUN, forge, lines, total
from clipwise.types import BadArgument


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
