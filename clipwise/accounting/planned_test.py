"""Planned runs: schedules against stored figures, the three samplings, calibration over a schedule."""

from __future__ import annotations

import json
from pathlib import Path

import dp_accounting
import pytest

from clipwise.accounting import FixedSizeEvent, PlannedRun, StepEvent, calibrate, epsilon, planned_steps
from clipwise.accounting.work_test import work
from clipwise.schedules import make_schedule
from clipwise.types import BadArgument

MNIST, THINWALL = 64 / 60000, 256 / 120000
VECTORS = Path(__file__).parents[2] / "tests" / "vectors"
FIRST_NOISE = json.loads((VECTORS / "calibration.json").read_text())["first_noise"]
LARGEST = 1000  # of RDP, up to which the stored figures and ours have orders near enough to the best


def decaying():
    rows = json.loads((VECTORS / "schedules.json").read_text())["rows"]
    return [row for row in rows if row["schedule"] != "constant"]


@pytest.mark.parametrize("row", decaying(), ids=lambda row: f"{row['schedule']}-{row['first_noise']}")
def test_stored_schedules(row):
    rate = row["batch"] / row["records"]
    every = f",every={row['every']}" if row["every"] else ""
    schedule = make_schedule(f"{row['schedule']}:decay={row['decay']:g}{every}")
    run = PlannedRun(rate, planned_steps(row["epochs"], rate), schedule)
    assert run.steps == row["steps"]
    events = run.events(row["first_noise"])
    if row["rdp"] is not None and row["rdp"] < LARGEST:
        assert epsilon(events, 1e-5, "rdp").value == pytest.approx(row["rdp"], rel=0.01)  # other orders there
    if row["pld"] is not None:
        assert (
            row["pld"] * 0.98 <= epsilon(events, 1e-5, "pld").value <= row["pld"] * 1.002
        )  # theirs is on a coarser grid


@pytest.mark.parametrize(("schedule", "noise"), FIRST_NOISE.items())
def test_stored_calibrations_over_a_schedule(schedule, noise):
    run = PlannedRun(MNIST, 93750, make_schedule(schedule))
    found = run.calibrate(1.0, 1e-5, "rdp")
    assert found == pytest.approx(noise, rel=1e-2 if noise > 2 else 2e-3)  # other orders there
    assert 0.999 <= epsilon(run.events(found), 1e-5, "rdp").value <= 1.0


@pytest.mark.parametrize(("accountant", "curves", "points"), [("rdp", 4000, 0), ("pld", 400, 3e8)])
@pytest.mark.parametrize("schedule", ["dynamic", "step"])
def test_calibration_is_close_below_the_target_in_few_attempts(schedule, accountant, curves, points):
    run = PlannedRun(MNIST, 93750, make_schedule(schedule))
    with work() as done:  # dynamic has 93,750 levels: 2,847 curves, or 240 and 1.9e8 points
        noise = run.calibrate(1.0, 1e-5, accountant)
    assert done["curves"] <= curves
    assert done["points"] <= points
    assert 0.999 <= epsilon(run.events(noise), 1e-5, accountant).value <= 1.0


def test_a_run_costs_what_its_steps_cost_one_by_one():
    """The ledger's view: one event for each step, by the schedule's factor."""
    for text in ("dynamic:decay=0.5", "exponential", "levels:1,0.7,0.9,by=step", "constant"):
        schedule = make_schedule(text)
        run = PlannedRun(0.01, 900, schedule)
        steps = [StepEvent(0.01, 2 * schedule.factor(t, sample_rate=0.01, steps=900)) for t in range(900)]
        assert epsilon(run.events(2.0), 1e-5, "rdp") == epsilon(steps, 1e-5, "rdp")


def test_equal_levels_are_a_constant():
    run = PlannedRun(0.01, 1000, make_schedule([1.0] * 10))
    assert run.events(1.3) == (StepEvent(0.01, 1.3, 1000),)
    assert run.calibrate(2.0, 1e-5) == calibrate(2.0, 1e-5, 0.01, 1000)


def test_what_counts_as_a_step():
    assert planned_steps(100, MNIST) == 93750
    assert planned_steps(40, THINWALL) == 18750
    assert planned_steps(100, MNIST, "without-replacement") == 93750
    assert planned_steps(100, MNIST, "none") == 93800  # passes end with a batch
    assert planned_steps(0.5, 0.1) == 5
    assert planned_steps(1e-9, 0.1) == 1


def test_without_replacement_has_its_own_events():
    run = PlannedRun(0.01, 300, make_schedule("step:every=1"), "without-replacement")
    assert run.events(2.0) == tuple(FixedSizeEvent(0.01, 2 * 0.5 ** (e / 2), 100) for e in (2, 1, 0))
    assert run.neighbours == "replace one record"
    value = epsilon(run.events(2.0), 1e-5)
    poisson = epsilon(PlannedRun(0.01, 300, run.schedule).events(2.0), 1e-5, "rdp")
    assert value.accountant == "rdp"
    assert value.value > 2 * poisson.value


def test_shuffled_batches_are_one_gaussian_release_a_pass():
    steps = planned_steps(20, MNIST, "none")
    run = PlannedRun(MNIST, steps, sampling="none")
    assert run.events(5.0) == (StepEvent(1.0, 5.0, 20),)
    exact = dp_accounting.get_epsilon_gaussian(5.0 / 20**0.5, 1e-5)
    assert epsilon(run.events(5.0), 1e-5).value == pytest.approx(exact, rel=1e-6)
    decaying = PlannedRun(MNIST, steps, make_schedule("step:every=10"), "none")
    assert decaying.events(5.0) == (StepEvent(1.0, 5 * 0.5**0.5, 10), StepEvent(1.0, 5.0, 10))
    assert "zero" in run.neighbours


def test_a_pass_has_its_least_noise_and_a_part_of_one_counts():
    run = PlannedRun(0.1, 25, make_schedule("dynamic:decay=0.25"), "none")
    noises = [event.noise_multiplier for event in run.events(1.0)]
    assert noises == pytest.approx([0.25 ** (24 / 25), 0.25 ** (19 / 25), 0.25 ** (9 / 25)])
    up_and_down = PlannedRun(0.5, 4, make_schedule("levels:1,3,2,by=step"), "none")
    assert [(e.noise_multiplier, e.count) for e in up_and_down.events(1.0)] == [(1.0, 1), (2.0, 1)]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: PlannedRun(2.0, 10), "sample_rate"),
        (lambda: PlannedRun(0.1, 0), "steps"),
        (lambda: PlannedRun(0.1, -3), "steps"),
        (lambda: PlannedRun(0.1, 10, sampling="shuffle"), "sampling"),
        (lambda: PlannedRun(0.1, 10).events(float("nan")), "noise_multiplier"),
        (lambda: PlannedRun(0.1, 10).events(-1.0), "noise_multiplier"),
        (lambda: planned_steps(0, 0.1), "epochs"),
        (lambda: planned_steps(1, 0.0), "sample_rate"),
    ],
)
def test_refused(make, name):
    with pytest.raises(BadArgument, match=name):
        make()
