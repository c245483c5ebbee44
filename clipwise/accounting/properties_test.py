"""What must hold for any run: monotone, composable, and the same however a run is told. Both accountants, all events."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from clipwise.accounting import (
    FixedSizeEvent,
    Ledger,
    PlannedRun,
    StepEvent,
    calibrate,
    epsilon,
    joint_noise_multiplier,
    planned_steps,
)
from clipwise.accounting.work_test import work
from clipwise.schedules import KINDS, Schedule
from clipwise.types import BadArgument

rates = st.floats(min_value=1e-4, max_value=0.2)
noises = st.floats(min_value=0.4, max_value=20)
counts = st.integers(min_value=1, max_value=2000)
deltas = st.floats(min_value=1e-9, max_value=1e-3)
factors = st.floats(min_value=1.05, max_value=2)
bounds = st.sampled_from([(StepEvent, "rdp"), (StepEvent, "pld"), (FixedSizeEvent, "rdp")])
quick = settings(max_examples=15, deadline=None)

# The tight accountant chooses a grid by rule, from the events: two runs may be seen on different grids.
GRID = {"rdp": 1e-9, "pld": 2e-3}


def value(bound, events, delta=1e-5):
    kind, accountant = bound
    return epsilon([kind(*event) for event in events], delta, accountant).value


@quick
@given(bound=bounds, rate=rates, noise=noises, count=counts, delta=deltas, factor=factors)
def test_monotone_in_steps_rate_noise_and_delta(bound, rate, noise, count, delta, factor):
    base = value(bound, [(rate, noise, count)], delta)
    least = base * (1 - GRID[bound[1]]) - 1e-9
    assert value(bound, [(rate, noise, math.ceil(count * factor))], delta) >= least
    assert value(bound, [(rate * factor, noise, count)], delta) >= least
    assert value(bound, [(rate, noise / factor, count)], delta) >= least
    assert value(bound, [(rate, noise, count)], delta / factor) >= least


@quick
@given(bound=bounds, rate=rates, noise=noises, times=st.integers(min_value=1, max_value=40))
def test_n_times_is_a_count_of_n(bound, rate, noise, times):
    assert value(bound, [(rate, noise, 1)] * times) == value(bound, [(rate, noise, times)])


@quick
@given(bound=bounds, events=st.lists(st.tuples(rates, noises, counts), min_size=2, max_size=4))
def test_composition_ignores_order_and_costs_at_least_each_part(bound, events):
    together = value(bound, events)
    assert value(bound, events[::-1]) == together
    part = max(value(bound, [event]) for event in events)
    assert together >= part * (1 - GRID[bound[1]])


@quick
@given(sides=st.lists(noises, min_size=1, max_size=4), steps=st.integers(min_value=1, max_value=50))
def test_queries_on_one_sample_are_the_joint_gaussian(sides, steps):
    """With every record in the sample, asking separately and asking jointly are the same composition."""
    joint = joint_noise_multiplier(sides)
    separately = [StepEvent(1.0, side, steps) for side in sides]
    for accountant in ("rdp", "pld"):
        apart = epsilon(separately, 1e-5, accountant).value
        assert epsilon([StepEvent(1.0, joint, steps)], 1e-5, accountant).value == pytest.approx(apart, rel=1e-9)


@quick
@given(rate=rates, sides=st.lists(st.floats(min_value=0.8, max_value=5), min_size=2, max_size=3), steps=counts)
def test_a_sample_for_each_query_would_report_too_little(rate, sides, steps):
    assume(rate < 0.05)
    joint = epsilon([StepEvent(rate, joint_noise_multiplier(sides), steps)], 1e-5, "pld").value
    assume(joint > 0.01)
    assert joint > epsilon([StepEvent(rate, side, steps) for side in sides], 1e-5, "pld").value


@quick
@given(
    rate=rates,
    noise=noises,
    steps=counts,
    epochs=st.integers(min_value=1, max_value=20),
    sampling=st.sampled_from(["poisson", "without-replacement", "none"]),
)
def test_equal_levels_are_constant(rate, noise, steps, epochs, sampling):
    plain = PlannedRun(rate, steps, sampling=sampling)
    equal = PlannedRun(rate, steps, Schedule("levels", levels=(1.0,) * epochs), sampling)
    assert equal.events(noise) == plain.events(noise)


@quick
@given(
    kind=st.sampled_from([kind for kind in KINDS if kind != "levels"]),
    by=st.sampled_from(["epoch", "step"]),
    steps=st.integers(min_value=1, max_value=300),
    sampling=st.sampled_from(["poisson", "without-replacement", "none"]),
)
def test_a_planned_run_has_all_its_steps_and_decay_costs(kind, by, steps, sampling):
    run = PlannedRun(0.05, steps, Schedule(kind, by=by), sampling)
    events = run.events(4.0)
    assert sum(event.count for event in events) == (math.ceil(steps / 20) if sampling == "none" else steps)
    constant = PlannedRun(0.05, steps, sampling=sampling)
    assert epsilon(events, 1e-5, "rdp").value >= epsilon(constant.events(4.0), 1e-5, "rdp").value * (1 - 1e-9)


@quick
@given(
    steps=st.lists(st.tuples(st.sampled_from([0.01, 0.02]), st.sampled_from([1.0, 1.5, 2.0])), min_size=1, max_size=30),
    cut=st.integers(min_value=0, max_value=30),
)
def test_a_run_split_over_two_ledgers_costs_the_same(steps, cut):
    def ledger(part, first):
        book = Ledger.in_memory(run={})
        for step, event in enumerate(part, first):
            book.charge(step, StepEvent(*event))
        return book

    cut = min(cut, len(steps))
    whole, head, tail = ledger(steps, 0), ledger(steps[:cut], 0), ledger(steps[cut:], cut)
    for accountant in ("rdp", "pld"):
        assert epsilon([*head.events(), *tail.events()], 1e-5, accountant) == whole.epsilon(1e-5, accountant)


@quick
@given(epochs=st.integers(min_value=1, max_value=50), batch=st.integers(1, 500), samples=st.integers(500, 5000))
def test_steps_of_whole_epochs(epochs, batch, samples):
    rate = batch / samples
    assert planned_steps(epochs, rate) == pytest.approx(epochs * samples / batch, abs=0.51)
    assert planned_steps(epochs, rate, "none") == epochs * math.ceil(samples / batch)


@pytest.mark.parametrize(
    "make",
    [
        lambda: StepEvent(0.1, math.nan),
        lambda: StepEvent(0.1, -1.0),
        lambda: StepEvent(0.1, math.inf),
        lambda: StepEvent(1.0001, 1.0),
        lambda: StepEvent(0.1, 1.0, -1),
        lambda: FixedSizeEvent(2, 1.0),
        lambda: FixedSizeEvent(0.1, math.nan),
        lambda: PlannedRun(1.5, 10),
        lambda: PlannedRun(0.1, -10),
        lambda: PlannedRun(0.1, 10**6).events(math.nan),
        lambda: PlannedRun(0.1, 10**6).events(-2.0),
        lambda: calibrate(1.0, 1e-5, 1.5, 10),
        lambda: calibrate(1.0, 1e-5, 0.1, -10),
        lambda: calibrate(math.nan, 1e-5, 0.1, 10),
        lambda: Ledger.in_memory(run={}).charge(-1, StepEvent(0.1, 1.0)),
    ],
)
def test_nonsense_is_refused_before_any_work(make):
    with work() as done, pytest.raises(BadArgument):
        make()
    assert not done["curves"] + done["points"]
