"""`fit`: model, data and epsilon in; trained model, history and statement out."""

import json
import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import clipwise
from clipwise.accounting import Ledger
from clipwise.types import BadArgument


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    return TensorDataset(x[:1400], y[:1400]), TensorDataset(x[1400:], y[1400:])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def fit(digits, **options):
    train, test = digits
    settings = {
        "method": "fixed",
        "epsilon": 8.0,
        "delta": 1e-5,
        "epochs": 5,
        "expected_batch_size": 200,
        "test": test,
        "seed": 1,
    } | options
    return clipwise.fit(network(), train, **settings)


def test_learns_and_stays_within_the_budget(digits, tmp_path):
    steps, lines = [], []
    path = tmp_path / "ledger.jsonl"
    result = fit(digits, on_step=lambda *pair: steps.append(pair), on_epoch=lines.append, ledger=path)
    assert result.accuracy > 0.75
    assert 7.9 < result.epsilon <= 8.0
    assert result.steps == 35 == len(steps)
    assert (steps[-1][0]["step"], steps[-1][1]) == (35, 35)
    assert {"lr", "threshold", "noise_multiplier"} <= set(steps[0][0])
    assert result.history == lines
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 5]
    assert lines[0]["epsilon"] < lines[-1]["epsilon"] == result.epsilon
    assert {"step", "accuracy", "threshold", "noise_multiplier", "lr"} <= set(lines[0])
    assert Ledger.read(path).epsilon(1e-5).value == pytest.approx(result.epsilon)
    json.dumps(result.statement.to_dict(), allow_nan=False)


@pytest.mark.parametrize("epsilon", [8.0, math.inf])
def test_the_average_of_the_weights_is_what_is_judged_and_returned(digits, epsilon):
    """By hand: a run of one epoch, then the same run with every step's weights kept."""
    kept = []
    model = network()
    options = {
        "method": "fixed",
        "epsilon": epsilon,
        "epochs": 1,
        "expected_batch_size": 200,
        "seed": 1,
        "delta": 1e-5,
        "test": digits[1],
    }
    first = model[0].weight.detach().clone()
    clipwise.fit(model, digits[0], on_step=lambda *_: kept.append(model[0].weight.detach().clone()), **options)
    for t, weight in enumerate(kept):
        first = torch.lerp(first, weight, 1 - min(0.5, (1 + t) / (10 + t)))
    averaged = clipwise.fit(network(), digits[0], average_weights=0.5, **options)
    torch.testing.assert_close(averaged.model[0].weight, first)
    x, y = digits[1].tensors
    assert averaged.accuracy == pytest.approx((averaged.model(x).argmax(1) == y).float().mean().item())
    assert averaged.steps == len(kept)


def test_seeded_runs_repeat_and_unseeded_ones_do_not(digits):
    def weights(**options):
        return torch.cat([p.flatten() for p in fit(digits, epochs=1, **options).model.parameters()])

    assert torch.equal(weights(), weights())
    assert not torch.equal(weights(), weights(seed=2))
    assert not torch.equal(weights(seed=None), weights(seed=None))


def test_virtual_batches_change_nothing(digits):
    one, two = fit(digits, epochs=1), fit(digits, epochs=1, max_physical_batch=33)
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert one.epsilon == two.epsilon


def test_without_privacy(digits):
    result = fit(digits, epsilon=math.inf, delta=None, epochs=10)
    assert result.accuracy > 0.88
    assert result.epsilon == math.inf
    assert "without privacy" in result.statement.to_markdown()
    with pytest.raises(BadArgument, match="epsilon=inf"):
        fit(digits, epsilon=math.inf, noise_multiplier=1.0)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.zeros(50), "class numbers"),
        (torch.full((50,), 10), r"outside 0 \.\.\. 9"),
        (torch.full((50,), -1), r"outside 0 \.\.\. 9"),
        (torch.zeros(50, 2, dtype=torch.long), "class numbers"),
        (torch.zeros(50, dtype=torch.bool), "class numbers"),
    ],
)
def test_bad_targets_are_refused_before_training(targets, message):
    model = network()
    before = [p.clone() for p in model.parameters()]
    data = TensorDataset(torch.randn(50, 64), targets)
    with pytest.raises(BadArgument, match=message):
        clipwise.fit(model, data, epsilon=3.0, delta=1e-5, epochs=1, expected_batch_size=10, method="fixed")
    assert all(torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": 1.5}, r"epochs=1\.5"),
        ({"expected_batch_size": 0}, "expected_batch_size=0"),
        ({"expected_batch_size": 5000}, "expected_batch_size=5000"),
        ({"epsilon": -1.0}, r"epsilon=-1\.0"),
        ({"method": "none"}, "method='none'"),
        ({"method_options": {"threshold": -1}}, "threshold=-1"),
    ],
)
def test_bad_arguments(digits, options, message):
    with pytest.raises(BadArgument, match=message):
        fit(digits, **options)


def test_a_loss_and_an_optimizer_of_ones_own(digits):
    train, _ = digits
    images = TensorDataset(train.tensors[0], train.tensors[0])
    model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 64))
    start = float(nn.functional.mse_loss(model(train.tensors[0]), train.tensors[0]).detach())
    clipwise.fit(
        model,
        images,
        epsilon=8.0,
        delta=1e-5,
        epochs=5,
        expected_batch_size=200,
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        seed=0,
        method="fixed",
    )
    assert float(nn.functional.mse_loss(model(train.tensors[0]), train.tensors[0]).detach()) < 0.8 * start


@pytest.mark.parametrize(
    ("epsilon", "said"), [(8.0, "at delta 1e-05, 7 steps, method fixed, accuracy "), (math.inf, "no privacy, 7 steps")]
)
def test_a_finished_run_is_shown_in_a_line(digits, epsilon, said):
    """It used to print its whole history; a statement that is printed is the text that an auditor reads."""
    done = fit(digits, epsilon=epsilon, epochs=1)
    assert said in repr(done)
    assert len(repr(done).splitlines()) == 1
    assert str(done.statement) == done.statement.to_markdown()
