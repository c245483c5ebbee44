"""A ledger's history: segments, what was reserved, levels and the curve, and nothing of a file that was touched."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from clipwise.accounting import Ledger, LedgerRollback, StepEvent, epsilon
from clipwise.accounting.history import read_history

NOISY, LESS = StepEvent(0.01, 2.0), StepEvent(0.01, 1.0)


@pytest.fixture
def path(tmp_path):
    """Five steps, a crash with three reserved, then a clean segment of four."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(path, run={"delta": 1e-5}, block=8)
    for step in range(5):
        ledger.charge(step, NOISY, upcoming=8, note={})
    ledger._release()  # as a crash would
    with Ledger.open(path, run={"delta": 1e-6}) as ledger:
        for step in range(5, 9):
            ledger.charge(step, NOISY if step < 7 else LESS, upcoming=2)
    return path


def test_segments_and_what_they_left(path):
    history = read_history(path)
    first, second = history.segments
    assert (first.closed, first.steps, first.reserved) == (
        False,
        (StepEvent(0.01, 2.0, 5),),
        (StepEvent(0.01, 2.0, 3),),
    )
    assert (second.closed, second.untaken) == (True, 0)
    assert second.steps == (StepEvent(0.01, 2.0, 2), StepEvent(0.01, 1.0, 2))
    assert (history.taken, history.untaken) == (9, 3)
    assert history.run == {"delta": 1e-6}
    assert history.epsilon(1e-5) == Ledger.read(path).epsilon(1e-5)


def test_levels(path):
    rows = [(r.noise_from, r.noise_to, r.taken, r.untaken) for r in read_history(path).levels()]
    assert rows == [(2.0, 2.0, 7, 3), (1.0, 1.0, 2, 0)]


def test_many_levels_are_told_as_ranges(tmp_path):
    with Ledger.create(tmp_path / "l", run={}) as ledger:
        for step in range(100):
            ledger.charge(step, StepEvent(0.01, 2 - step / 100))
    rows = read_history(tmp_path / "l").levels()
    assert len(rows) == 12
    assert sum(row.taken for row in rows) == 100
    assert (rows[0].noise_from, rows[-1].noise_to) == (2.0, 1.01)
    assert all(a.noise_to > b.noise_from for a, b in pairwise(rows))


def test_the_curve_counts_charges_in_their_order(path):
    curve = read_history(path).curve(1e-5, "rdp", points=4)
    exact = [
        epsilon([StepEvent(0.01, 2.0, taken), StepEvent(0.01, 1.0, less)], 1e-5, "rdp").value
        for taken, less in ((3, 0), (6, 0), (9, 0), (10, 2))
    ]
    assert curve == [(3, exact[0]), (6, exact[1]), (9, exact[2]), (12, exact[3])]


def test_more_points_than_steps(path):
    assert [steps for steps, _ in read_history(path).curve(1e-5, "rdp", points=50)] == list(range(1, 13))


def test_an_unsound_segment_makes_epsilon_infinite_from_there_on(path):
    with Ledger.open(path, run={"sound": False}) as ledger:
        ledger.charge(9, NOISY)
    history = read_history(path)
    assert not history.sound
    assert history.epsilon(1e-5).value == math.inf
    curve = history.curve(1e-5, "rdp", points=13)
    assert [math.isinf(value) for _, value in curve] == [False] * 12 + [True]


def test_a_segment_without_a_step_says_nothing(path):
    Ledger.open(path, run={"sound": False}).close()
    assert read_history(path).sound


def test_an_empty_run(tmp_path):
    Ledger.create(tmp_path / "l", run={}).close()
    history = read_history(tmp_path / "l")
    assert (history.taken, history.levels(), history.curve(1e-5)) == (0, [], [])
    assert history.epsilon(1e-5).value == 0


def test_lines_cut_off_the_end_are_missed_only_without_a_head(path):
    head = read_history(path).head
    assert read_history(path, head=head[:16]).head == head
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(LedgerRollback, match="cut off"):  # the file beside it tells
        read_history(path)
    path.with_name(f".{path.name}.head").unlink()
    assert read_history(path).segments[-1].closed is False
    with pytest.raises(LedgerRollback, match=head[:16]):
        read_history(path, head=head[:16])
