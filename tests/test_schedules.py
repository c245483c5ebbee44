"""Noise that changes over a run, end to end: what is drawn, what is charged, what is promised."""

import json
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise import plans
from clipwise.accounting import PlannedRun, StepEvent, epsilon, gradient_share, joint_noise_multiplier
from clipwise.clipping import METHODS, make_method
from clipwise.mechanism import Mechanism, make
from clipwise.noise import GaussianNoise
from clipwise.schedules import Schedule
from clipwise.types import BadArgument, BudgetExhausted

DATA = TensorDataset(torch.randn(60, 3), torch.randint(0, 2, (60,)))


class Watched(GaussianNoise):
    def __init__(self):
        self.stds = []

    def add(self, sums, std, *, step):  # noqa: ARG002
        self.stds.append(std)
        return tuple(total.clone() for total in sums)


def attached(**options):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = clipwise.attach(
        model,
        optimizer,
        DataLoader(DATA, batch_size=20),
        **{"method": "fixed", "noise_multiplier": 2.0, "seed": 0, **options},
    )
    return private, optimizer


def one_epoch(private, optimizer):
    for x, y in private.loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(private.model(x), y).backward()
        optimizer.step()


def plan(method="fixed", **options):
    given = {"epsilon": None, "noise_multiplier": 1.0, "delta": 1e-5, "epochs": 10, "accountant": "best"}
    given |= {"sample_rate": 0.1, "expected_batch_size": 1000.0}
    method = make_method(method) if isinstance(method, str) else method
    return plans.make(make(Mechanism, {"method": method, **given, **options}), plans.Facts(size=10_000, parameters=10))


def test_the_noise_that_is_drawn_is_the_noise_that_is_charged():
    """Three steps an epoch; C = 0.5, sigma_0 = 2; the step schedule halves sigma^2 each epoch."""
    private, optimizer = attached(threshold=0.5, schedule="step:decay=0.25,every=1")
    private.run.stepper.noise = watched = Watched()
    for _ in range(3):
        one_epoch(private, optimizer)
    assert watched.stds == pytest.approx([1.0] * 3 + [0.5] * 3 + [0.25] * 3)
    q = 20 / 60
    charged = [StepEvent(q, 2.0, 3), StepEvent(q, 1.0, 3), StepEvent(q, 0.5, 3)]
    assert private.run.ledger.events() == sorted(charged, key=lambda event: event.noise_multiplier)
    assert private.epsilon(delta=1e-3) == pytest.approx(epsilon(charged, 1e-3).value)
    assert private.run.ledger.run["schedule"] == "step:decay=0.25,every=1"
    assert "step:decay=0.25,every=1, from 2" in private.statement().to_markdown()
    private.detach()


@pytest.mark.parametrize(
    "schedule",
    ["linear", "time", "auto-time", "step:every=3", "exponential", "dynamic", [1, 1.5, 0.5], lambda e: 1 / (1 + e)],
)
def test_a_target_is_met_over_the_whole_schedule(schedule):
    made = plan(schedule=schedule, epsilon=2.0, noise_multiplier=None)
    assert made.steps == 100
    spent = epsilon([made.event(step) for step in range(100)], 1e-5).value
    assert 2.0 * 0.999 <= spent <= 2.0


def test_equal_levels_are_constant():
    flat = plan(schedule=[1.0] * 10, epsilon=2.0, noise_multiplier=None)
    assert flat.noise_multiplier == plan(epsilon=2.0, noise_multiplier=None).noise_multiplier


def test_dynamic_meets_its_target_with_falling_noise():
    made = plan("dynamic", epsilon=2.0, noise_multiplier=None)
    assert made.total(99) / made.total(0) == pytest.approx(0.8 ** (99 / 100))
    assert 1.998 <= epsilon([made.event(step) for step in range(100)], 1e-5).value <= 2.0
    assert made.total(500) == pytest.approx(made.total(0) * 0.8)


@pytest.mark.parametrize("schedule", ["constant", "step:every=2", "exponential", [1.0, 1.3, 0.4]])
@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.sound])
def test_the_joint_noise_is_the_total_at_every_step(name, schedule):
    made = plan(name, schedule=schedule, noise_multiplier=1.2)
    for step in range(0, 100, 7):
        shares = made.shares(step)
        joint = joint_noise_multiplier([shares.gradient, *(side.noise_multiplier for side in shares.sides)])
        assert joint == pytest.approx(shares.total, rel=1e-12)
        assert shares.total == made.event(step).noise_multiplier


def test_a_side_query_must_leave_room_at_the_largest_level():
    method = make_method("dc-sgd-p", histogram_noise=2.0)
    plan(method, noise_multiplier=1.5)
    with pytest.raises(BadArgument, match=r"above 2\.25"):
        plan(method, noise_multiplier=1.5, schedule=[1.0, 1.5])
    gradient_share(2.25, [2.2501])  # what the message says works


def test_a_run_stops_before_the_schedule_overspends(tmp_path):
    """A second run on the same ledger, with falling noise, must stop where the budget ends: every step has its own cost."""
    options = {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-3, "epochs": 2, "schedule": "dynamic:decay=0.5"}
    for goes_on in (False, True):
        private, optimizer = attached(ledger=tmp_path / "ledger.jsonl", **options)
        if goes_on:
            with pytest.raises(BudgetExhausted):
                one_epoch(private, optimizer)
        else:
            one_epoch(private, optimizer)
            one_epoch(private, optimizer)
        assert private.epsilon() <= 3.0
        private.detach()


@pytest.mark.parametrize("schedule", ["wrong", "step:every=x", [], [1, -1], [math.nan]])
def test_a_bad_schedule_is_refused_before_data_is_touched(schedule):
    with pytest.raises(BadArgument):
        attached(schedule=schedule)


# Without a guarantee


def test_auto_dp_is_refused_unless_allowed_by_name():
    with pytest.raises(BadArgument, match=r"allow_unsound.*auto-dp-sound"):
        attached(method="auto-dp")


def test_auto_dp_runs_with_infinite_epsilon_and_a_claimed_one():
    private, optimizer = attached(method="auto-dp", allow_unsound=True, delta=1e-3, scale=2.0)
    private.run.stepper.noise = watched = Watched()
    one_epoch(private, optimizer)
    assert private.epsilon() == math.inf
    statement = private.statement()
    assert 0 < statement.claimed_epsilon < math.inf
    page = statement.to_markdown()
    assert "No meaningful guarantee" in page
    assert "*claimed*" in page
    state = private.run.state.method
    # sides come first: sum of 2 ||g||, then the gradient's std = sigma * sum / B
    gradients = watched.stds[1::2]
    assert watched.stds[0::2] == [0.0] * 3
    assert sum(gradients) / 3 == pytest.approx(2.0 * state.mean_sensitivity)
    assert json.loads(json.dumps(private.run.ledger.run))["sound"] is False
    private.detach()


def test_auto_dp_adds_no_noise_where_all_gradients_are_zero():
    """Why no guarantee holds: s is next to 0 (norms count what may have underflowed), and so is the noise."""
    model = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.zeros(60, 3)), batch_size=20)
    private = clipwise.attach(model, optimizer, loader, noise_multiplier=1.0, method="auto-dp", allow_unsound=True)
    for (x,) in private.loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        assert model.weight.grad.abs().max() < 1e-15
    private.detach()


def test_auto_time_decays_by_its_own_noise():
    """Paper 000 on MNIST: R = 1.4929 / 100, epsilon 1.5427 by RDP (tests/vectors/schedules.json, other orders there)."""
    facts = plans.Facts(size=60_000, parameters=10, batch_size=64)
    stated = {"schedule": "auto-time", "delta": 1e-5, "epochs": 100}
    made = plans.make(make(Mechanism, {**stated, "noise_multiplier": 1.4929}), facts)
    assert made.schedule == Schedule("time", decay=0.014929)
    assert epsilon(made.coming(0, 93750), 1e-5, "rdp").value == pytest.approx(1.5427, rel=0.01)
    planned = PlannedRun(64 / 60_000, 93750, Schedule("auto-time"))
    assert epsilon(planned.events(1.4929), 1e-5, "rdp").value == pytest.approx(1.5427, rel=0.01)
    again = plans.make(make(Mechanism, {**stated, "epsilon": 1.5427, "accountant": "rdp"}), facts)
    assert again.noise_multiplier == pytest.approx(1.4929, rel=0.01)
    assert again.schedule.decay == again.noise_multiplier / 100
