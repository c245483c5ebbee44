"""Losses, learning-rate schedules, freezing and reconstruction in `fit`, in configs and in `clipwise train`."""

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import clipwise
from clipwise.cli import app
from clipwise.data import Recipe
from clipwise.optim import AdamWOSM
from clipwise.training.config import make_config
from clipwise.training.resolve import resolve
from clipwise.types import BadArgument

QUICK = ("train", "--noise-multiplier", "5", "--epochs", "2", "--batch", "500", "--accountant", "rdp", "--seed", "7")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(*words):
    return CliRunner().invoke(app, [*map(str, words), "--json"])


def answer(*words):
    result = run(*words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*words):
    result = run(*words)
    assert result.exit_code == 2, result.output
    return json.loads(result.stdout)["error"]


def fit(**options):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 4, generator=generator), torch.arange(60) % 3
    torch.manual_seed(0)
    settings = {
        "method": "fixed",
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "epochs": 3,
        "expected_batch_size": 20,
        "seed": 0,
    } | options
    return clipwise.fit(nn.Linear(4, 3), TensorDataset(x, y), **settings)


# -- fit -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("exponential:gamma=0.5", [0.5] * 3 + [0.25] * 3 + [0.125] * 3),
        ("cyclic:base_lr=0.1,max_lr=0.4,step_size_up=3", [0.1, 0.2, 0.3, 0.4, 0.3, 0.2, 0.1, 0.2, 0.3]),
    ],
)
def test_the_rate_of_each_step(text, want, private):
    """Stepped once an epoch, or once a logical step, however many physical batches that has."""
    seen = []
    options = {} if private else {"noise_multiplier": None, "epsilon": float("inf")}
    fit(lr_schedule=text, on_step=lambda values, _: seen.append(values["lr"]), max_physical_batch=7, **options)
    assert seen == pytest.approx(want)


def test_the_rate_moves_the_weights():
    assert not fit(lr_schedule="one-cycle").model.weight.equal(fit().model.weight)
    assert fit(lr_schedule="none").model.weight.equal(fit().model.weight)


def test_two_who_set_the_rate_are_refused():
    with pytest.raises(BadArgument, match="method='oso': this method sets the learning rate itself"):
        fit(method="oso", lr_schedule="cosine")
    with pytest.raises(BadArgument, match="optimizer='AdamWOSM': this optimizer sets the learning rate itself"):
        fit(optimizer=AdamWOSM, lr_schedule="cosine")


def test_plateau_needs_public_test_records_and_says_so():
    with pytest.raises(BadArgument, match="give test data"):
        fit(lr_schedule="plateau:on=public-test")
    same = TensorDataset(torch.zeros(6, 4), torch.arange(6) % 3)  # one output for all: accuracy stays at a third
    result = fit(lr_schedule="plateau:on=public-test,patience=1,factor=0.5", test=same, epochs=4)
    assert [line["lr"] for line in result.history] == [0.5, 0.5, 0.5, 0.25]
    assert any("plateau" in note and "public" in note for note in result.statement.notes)


def test_focal_weights_are_noted_and_counted():
    result = fit(loss="focal:gamma=2,alpha=0.2/0.3/0.5")
    assert any("stated by the user as public" in note for note in result.statement.notes)
    assert not fit(loss="focal").model.weight.equal(fit().model.weight)
    with pytest.raises(BadArgument, match="2 weights for 3 classes"):
        fit(loss="focal:alpha=0.25/0.75")


def test_a_weighted_loss_has_the_declared_mean():
    """No noise, nothing clipped, every record in the batch: the gradient is that of the plain mean of weighted losses."""
    big = {"method_options": {"threshold": 1e6}, "noise_multiplier": 0.0, "delta": None, "epochs": 1}
    loss = "cross-entropy:weights=1/2/5"
    made = fit(loss=loss, expected_batch_size=60, optimizer=lambda p: torch.optim.SGD(p, lr=1.0), **big).model
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    x, y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    each = nn.functional.cross_entropy(model(x), y, torch.tensor([1.0, 2.0, 5.0]), reduction="none")
    each.mean().backward()
    torch.testing.assert_close(made.weight, (model.weight - model.weight.grad).detach(), rtol=1e-4, atol=3e-5)


# -- config ----------------------------------------------------------------------------------------------------------------


def dataset(**more):
    facts = {
        "kind": "image",
        "classes": 10,
        "vocabulary_size": None,
        "padding": None,
        "shape": (1, 8, 8),
        "numbers": False,
    }
    return SimpleNamespace(train=range(1437), recipe=Recipe("mlp", 64, 5, 0.25), **(facts | more))


def test_config_round_trip():
    options = {"loss": "focal:gamma=1", "lr_schedule": "one-cycle:max_lr=0.5", "freeze": "but:3.", "seed": 1}
    config = resolve(make_config(options), dataset())
    assert (config.loss, config.lr_schedule) == ("focal:gamma=1.0", "one-cycle:max_lr=0.5")
    again = make_config(tomllib.loads(config.to_toml()))
    assert again == config
    assert resolve(again, dataset()) == again
    plain = resolve(make_config({}), dataset())
    assert (plain.loss, plain.lr_schedule, plain.freeze, plain.pretrained) == ("cross-entropy", "none", "none", None)
    assert resolve(make_config({"model": "autoencoder"}), dataset()).loss == "squared-error"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "hinge"}, "loss='hinge' is not known"),
        ({"lr_schedule": "plateau"}, "public or released"),
        ({"lr_schedule": "cosine", "optimizer": "adam-wosm"}, "sets the learning rate itself"),
    ],
)
def test_refused_before_any_data_is_read(options, message):
    with pytest.raises(BadArgument, match=message):
        make_config(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr_schedule": "cosine", "method": "oso"}, "method='oso': this method sets the learning rate"),
        ({"loss": "squared-error", "model": "cnn"}, "gives classes: use cross-entropy or focal"),
        ({"loss": "focal", "model": "autoencoder"}, "gives its input back: leave loss out"),
        ({"group_counts": 5.0, "model": "autoencoder"}, "count right answers"),
        ({"loss": "focal:alpha=1/2"}, "2 weights for 10 classes"),
        ({"vocabulary": "hashed", "model": "bert"}, "brings its own tokeniser"),
        ({"model": "nope"}, "model='nope' is not known"),
    ],
)
def test_refused_for_this_data(options, message):
    with pytest.raises(BadArgument, match=message):
        resolve(make_config(options), dataset())


# -- clipwise train --------------------------------------------------------------------------------------------------------


def test_train_an_autoencoder_and_repeat_it():
    by_hand = ("--method", "fixed", "--lr", 0.5, "--lr-schedule", "one-cycle")
    result = answer(*QUICK, "--model", "autoencoder", *by_hand, "--out", "a")
    assert result["accuracy"] is None
    assert 0 < result["test_loss"] < 1
    assert (result["loss"], result["lr_schedule"]) == ("squared-error", "one-cycle")
    lines = [json.loads(line) for line in Path("a/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["test_loss"] == result["test_loss"]
    assert answer("train", "--config", "a/config.toml", "--out", "b")["test_loss"] == result["test_loss"]
    shown = CliRunner().invoke(app, ["train", "--config", "a/config.toml", "--out", "c"])
    assert f"squared-error {result['test_loss']:.6f} on test data" in shown.stdout


def test_train_an_autoencoder_with_groups():
    assert answer(*QUICK, "--model", "autoencoder", "--method", "dpsgd-f", "--epochs", 1)["test_loss"] > 0


def test_train_from_weights_with_a_frozen_part():
    first = answer(*QUICK, "--model", "mlp", "--out", "a")
    words = ("--model", "mlp", "--pretrained", "a/model.safetensors", "--freeze", "but:3.", "--loss", "focal:gamma=1")
    again = answer(*QUICK, *words, "--out", "b")
    assert (again["parameters"], again["trained_parameters"]) == (first["parameters"], 128 * 10 + 10)
    before, after = (dict(np_weights(Path(folder) / "model.safetensors")) for folder in "ab")
    assert {name for name in before if not np.array_equal(before[name], after[name])} == {"3.weight", "3.bias"}
    assert "were not among those that these weights were trained on" in Path("b/statement.md").read_text()
    assert Path("b/config.toml").read_text().count(str(Path("a/model.safetensors").resolve())) == 1


def np_weights(path):
    from safetensors.numpy import load_file

    return load_file(path).items()


def test_what_train_refuses_leaves_nothing_behind():
    assert "sets the learning rate itself" in refused(*QUICK, "--method", "oso", "--lr-schedule", "cosine")
    assert "neither a path here nor" in refused(*QUICK, "--pretrained", "nowhere.pth")
    assert "not a rule of model" in refused(*QUICK, "--model", "mlp", "--freeze", "features")
    assert "plateau:on=public-test" in refused(*QUICK, "--lr-schedule", "plateau")
    assert "hinge" in refused(*QUICK, "--loss", "hinge")
    assert list(Path().iterdir()) == []


def test_models_prints_what_fits():
    found = {row["name"]: row for row in answer("models", "--data", "names")["models"]}
    assert found["lstm"]["parameters"] == {"names": 237_650}
    assert found["lstm"]["records"] == "tokens"
    assert found["cnn"]["parameters"] == {}
    assert "no_such" in refused("models", "--data", "no_such")
    shown = CliRunner().invoke(app, ["models", "--data", "mnist"]).stdout
    assert "26,010" in shown
