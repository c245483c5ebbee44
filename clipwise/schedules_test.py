"""Schedules against the papers' formulas, worked out beside, and what they refuse."""

import math

import pytest

from clipwise.schedules import KINDS, Schedule, epoch_of, make_schedule
from clipwise.types import BadArgument

Q, STEPS = 0.1, 300  # ten steps an epoch, thirty epochs


def squared(schedule, epoch):
    return make_schedule(schedule).factor(epoch * 10, sample_rate=Q, steps=STEPS) ** 2


def test_the_papers_squares():
    assert squared("constant", 29) == 1
    assert squared("linear", 2) == pytest.approx(0.9801)
    assert squared("time:decay=0.05", 4) == pytest.approx(1 / 1.2)
    assert [squared("step", e) for e in (0, 9, 10, 19, 20)] == pytest.approx([1, 1, 0.5, 0.5, 0.25])
    assert squared("exponential", 10) == pytest.approx(math.exp(-1))


def test_dynamic_goes_by_step_to_its_last_value():
    schedule = Schedule("dynamic", decay=0.25)
    assert schedule.factor(150, sample_rate=Q, steps=STEPS) == pytest.approx(0.5)
    assert schedule.factor(300, sample_rate=Q, steps=STEPS) == pytest.approx(0.25)
    with pytest.raises(BadArgument, match="epochs"):
        schedule.factor(1, sample_rate=Q, steps=None)


def test_own_levels_and_functions():
    assert make_schedule([1, 0.5]).factor(25, sample_rate=Q, steps=None) == 0.5
    assert make_schedule(lambda e: 1 / (1 + e), epochs=3) == Schedule("levels", levels=(1.0, 0.5, 1 / 3))
    assert Schedule("levels", levels=(1, 3, 2)).largest == 3
    by_step = Schedule("levels", levels=(1, 0.9, 0.8), by="step")
    assert [by_step.factor(t, sample_rate=Q, steps=STEPS) for t in range(4)] == [1, 0.9, 0.8, 0.8]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "levels"])
def test_text_reads_back(kind):
    for schedule in (Schedule(kind), Schedule(kind, by="step")):
        assert make_schedule(str(schedule)) == schedule
    assert make_schedule("levels:1,0.5,by=step") == Schedule("levels", levels=(1.0, 0.5), by="step")


def test_runs_count_every_step():
    runs = Schedule("step").runs(STEPS, Q)
    assert runs == [(1.0, 100), (math.sqrt(0.5), 100), (0.5, 100)]
    assert Schedule().runs(10**9, 1e-3) == [(1.0, 10**9)]


def test_epochs_are_whole_numbers_in_spite_of_rounding():
    assert epoch_of(93750, 64 / 60000) == 100
    assert epoch_of(937, 64 / 60000) == 0
    assert epoch_of(938, 64 / 60000) == 1


def test_a_long_decay_never_reaches_zero():
    assert Schedule("exponential").factor(10**7, sample_rate=1.0, steps=None) > 0


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("cosine", "cosine"),
        ("step:half", "half"),
        ("step:decay=1.5", r"1\.5"),
        ("step:every=0", "every"),
        ("linear:every=3", "every"),
        ("constant:decay=0.5", "decay"),
        ("step:0.5", "levels"),
        ([], "levels"),
        ([1.0, 0.0], "levels"),
        ([1.0, float("nan")], "levels"),
        ({"kind": "step", "rate": 3}, "rate"),
        (lambda e: e, "epochs"),
    ],
)
def test_what_is_refused(value, match):
    with pytest.raises(BadArgument, match=match):
        make_schedule(value)


@pytest.mark.parametrize("value", [1.5, 3, True])
def test_a_number_is_no_schedule(value):
    with pytest.raises(BadArgument, match="is no schedule"):
        make_schedule(value)


def test_auto_time_takes_its_rate_from_the_noise():
    """Auto DP-SGD, Table 1: R = sigma_0 / E. With sigma_0 = 1.4929 over 100 epochs sigma_e^2 = sigma_0^2 / (1 + 0.014929 e)."""
    settled = Schedule("auto-time").settled(1.4929, 100)
    assert settled == Schedule("time", decay=0.014929)
    assert settled.settled(3.0, 10) == settled
    with pytest.raises(BadArgument, match="epochs"):
        Schedule("auto-time").settled(1.0, None)
    with pytest.raises(BadArgument, match="time:decay"):
        Schedule("auto-time").factor(3, sample_rate=Q, steps=STEPS)


def test_a_bound_is_scheduled_by_its_own_value():
    """R = 1/2 halves a bound, where it halves the square of a noise multiplier."""
    for text, values in (("step:decay=0.5,every=1", [1, 0.5, 0.25]), ("linear:decay=0.9", [1, 0.9, 0.81])):
        schedule = make_schedule(text)
        seen = [schedule.factor(10 * e, sample_rate=Q, steps=STEPS, square=False) for e in range(3)]
        assert seen == pytest.approx(values)
    time = [make_schedule("time:decay=1").factor(10 * e, sample_rate=Q, steps=None, square=False) for e in range(3)]
    assert time == pytest.approx([1, 1 / 2, 1 / 3])
    exponential = make_schedule("exponential:decay=1").factor(20, sample_rate=Q, steps=None, square=False)
    assert exponential == pytest.approx(math.exp(-2))
    assert make_schedule([1, 0.5]).factor(10, sample_rate=Q, steps=None, square=False) == 0.5
