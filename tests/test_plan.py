"""`clipwise.plan` and `clipwise plan`: the noise is the run's own, the parts add up to the budget, and nothing is read."""

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

import clipwise
from clipwise import forecast, plans
from clipwise.accounting import FixedSizeEvent, StepEvent, epsilon
from clipwise.automatic.prepare import phases
from clipwise.cli import app
from clipwise.types import BadArgument

SMALL = {"method": "fixed", "delta": 1e-4, "epochs": 2, "expected_batch_size": 100, "accountant": "rdp"}


def test_the_noise_is_that_of_the_run():
    data = TensorDataset(torch.randn(2000, 3), torch.randint(0, 2, (2000,)))
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(data, batch_size=100)
    stated = {"epsilon": 2.0, "delta": 1e-4, "epochs": 2, "expected_batch_size": 100, "accountant": "rdp"}
    found = clipwise.plan(2000, method="auto", **stated)
    with clipwise.Run(model, optimizer, loader, method="auto", before=phases, **stated) as run:
        assert found.noise_multiplier == run.plan.noise_multiplier
        assert (found.steps, found.sample_rate) == (run.plan.steps, run.plan.sample_rate)
    assert [part.name for part in found.parts[:-1]] == [phase.name for phase in run.facts.before]


def test_the_parts_are_the_whole_budget():
    """All that is measured, and the training, together: epsilon 2, and no part of it is forgotten."""
    found = clipwise.plan(5000, epsilon=2.0, accountant="rdp")
    events = [StepEvent(part.sample_rate, part.noise_multiplier, max(1, part.steps)) for part in found.parts]
    assert epsilon(events, found.delta, "rdp").value == pytest.approx(2.0, rel=1e-3)
    assert all(part.epsilon_alone < 2.0 for part in found.parts)
    assert all(part.raises_noise > 0 for part in found.parts[:-1])


def test_doubling():
    """Twice epsilon is the plan of twice epsilon; twice the records at a stated batch halve the sample rate."""
    found = clipwise.plan(2000, epsilon=2.0, **SMALL)
    as_planned, records, epochs, budget = found.changes
    assert as_planned.noise_multiplier == found.noise_multiplier
    assert budget.noise_multiplier == clipwise.plan(2000, epsilon=4.0, **SMALL).noise_multiplier
    assert records.steps == 2 * found.steps
    assert records.noise_multiplier < found.noise_multiplier < epochs.noise_multiplier
    assert [c.expected_batch_size for c in found.by_batch] == [12, 25, 50, 100, 200, 400]
    assert [c.steps for c in found.by_batch] == [2 * steps for steps in (167, 80, 40, 20, 10, 5)]


def test_a_stated_delta_does_not_stand_for_more_records_than_it_covers():
    found = clipwise.plan(6000, epsilon=2.0, **SMALL)
    assert (found.changes[0].delta, found.changes[1].delta) == (1e-4, 1e-5)


def test_time_is_measured_on_made_data_or_unknown():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    before = copy.deepcopy(model.state_dict())
    found = clipwise.plan(2000, epsilon=2.0, model=model, shape=(3, 4), classes=4, **SMALL)
    assert found.timing.seconds == pytest.approx(found.timing.seconds_a_step * found.steps)
    assert found.timing.seconds > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert clipwise.plan(2000, epsilon=2.0, model=model, **SMALL).timing is None
    tokens = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(15, 1))
    assert clipwise.plan(2000, epsilon=2.0, model=tokens, shape=(5,), vocabulary=9, **SMALL).timing is not None


def test_few_records_are_said():
    assert any(
        "few for this epsilon" in sentence for sentence in clipwise.plan(200, epsilon=0.5, accountant="rdp").said
    )


@pytest.mark.parametrize(
    ("records", "options", "match"),
    [
        (0, {"epsilon": 3.0}, "records=0"),
        (100, {}, "epsilon=None"),
        (100, {"epsilon": float("inf")}, "epsilon=inf"),
        (100, {"epsilon": 3.0, "size": "private"}, "size='private'"),
        (100, {"epsilon": 3.0, "delta": 0.5}, "delta=0.5"),
        (100, {"epsilon": 3.0, "expected_batch_size": 200}, "expected_batch_size=200"),
        (100, {"epsilon": 3.0, "method": "auto-dp"}, "auto-dp"),
    ],
)
def test_what_is_refused(records, options, match):
    with pytest.raises(BadArgument, match=match):
        clipwise.plan(records, **options)


def test_the_command(tmp_path, monkeypatch):
    """It knows a data set by its public facts, and reads none of its files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLIPWISE_DATA", str(tmp_path))  # where there is nothing
    words = ["plan", "--data", "mnist", "--model", "linear", "--epsilon", "3", "--method", "fixed", "--delta", "1e-5"]
    words += ["--epochs", "1", "--batch", "600", "--out", "p.png"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["records"], told["steps"], told["accuracy"]) == (60000, 100, None)
    assert told["timing"]["seconds_a_step"] > 0
    assert Path("p.png").read_bytes()[:4] == b"\x89PNG"
    shown = CliRunner().invoke(
        app, ["plan", "--records", "2000", "--epsilon", "3", "--method", "fixed", "--epochs", "1"]
    )
    assert shown.exit_code == 0, shown.output
    for part in ("training", "twice epsilon", "time: unknown", "accuracy: not forecast"):
        assert part in shown.stdout
    for wrong in (
        ["--epsilon", "3"],
        ["--records", "9", "--model", "cnn", "--epsilon", "3"],
        ["--data", "nil", "--epsilon", "3"],
    ):
        assert CliRunner().invoke(app, ["plan", *wrong]).exit_code == 2


def test_fixed_size_batches_have_their_own_events():
    found = clipwise.plan(2000, epsilon=2.0, sampling="fixed-size", **SMALL)
    event = FixedSizeEvent(found.sample_rate, found.noise_multiplier, found.steps)
    assert epsilon([event], found.delta, "rdp").value == pytest.approx(2.0, rel=1e-3)


def test_it_is_the_same_plan_whatever_the_model():
    """The noise does not depend on the number of parameters."""
    facts = plans.Facts(2000, 10**6)
    stated = clipwise.Mechanism(epsilon=2.0, **{**SMALL, "method": "fixed"})
    assert plans.make(stated, facts).noise_multiplier == forecast.plan(2000, epsilon=2.0, **SMALL).noise_multiplier
