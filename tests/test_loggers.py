"""`--log-to mlflow` and `wandb`: the values that TensorBoard's events hold, and no others. Fakes of the two, so that all is seen."""

import json
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from clipwise.cli import app
from clipwise.training import tensorboard

SMALL = (
    "--model",
    "linear",
    "--epochs",
    "2",
    "--batch",
    "300",
    "--accountant",
    "rdp",
    "--seed",
    "1",
    "--method",
    "quantile",
)
PUBLIC = {"epsilon", "noise_multiplier", "lr", "test/accuracy", "method/threshold"}


class Client:
    seen: ClassVar[list] = []

    def get_experiment_by_name(self, _):
        return None

    def create_experiment(self, name):
        self.seen.append(("experiment", name))
        return "7"

    def create_run(self, experiment, run_name):
        self.seen.append(("run", experiment, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def log_metric(self, _, tag, figure, timestamp, step):
        self.seen.append((tag, step, figure, timestamp))

    def set_terminated(self, run):
        self.seen.append(("ended", run))


def fake(monkeypatch, name, **parts):
    module = ModuleType(name)
    vars(module).update(parts)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(tensorboard, "require", lambda _: None)


def train(*words):
    result = CliRunner().invoke(app, ["train", *map(str, words), "--json"])
    return result.exit_code, json.loads(result.stdout)


def expected(run):
    path, epochs = (
        [json.loads(x) for x in (run / f).read_text().splitlines()] for f in ("path.jsonl", "metrics.jsonl")
    )
    return {("lr", line["step"], line["lr"]) for line in path} | {
        (tag, line["step"], line[name])
        for line in epochs
        for tag, name in (("epsilon", "epsilon"), ("test/accuracy", "accuracy"))
    }


def test_mlflow_gets_public_and_released_values_alone(monkeypatch, tmp_path):
    Client.seen = []
    fake(monkeypatch, "mlflow", MlflowClient=Client)
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: True)
    assert train(*SMALL, "--log-to", "mlflow", "--out", tmp_path / "mine")[0] == 0
    experiment, run, *points, ended = Client.seen
    assert (experiment, run, ended) == (("experiment", "clipwise"), ("run", "7", "mine"), ("ended", "r"))
    assert {tag for tag, *_ in points} == PUBLIC
    assert expected(tmp_path / "mine") <= {point[:3] for point in points}
    assert len({time for *_, time in points}) == 1  # the time of a step would tell the size of its batch


def test_wandb_gets_them_when_all_is_over(monkeypatch):
    seen = []

    @contextmanager
    def init(**options):
        seen.append(options)
        yield SimpleNamespace(log=lambda figures, step: seen.append((step, figures)))

    fake(monkeypatch, "wandb", init=init, Settings=dict)
    log = tensorboard.WandbLog("mine")
    log.step({"step": 1, "epoch": 0.5, "lr": 0.1, "threshold": 2.0, "noise_multiplier": 1.0})
    log.epoch({"step": 1, "epsilon": 1.5, "accuracy": 0.5, "test_loss": float("inf"), "train_loss": 3.0})
    assert not seen
    log.close()
    (options, (step, figures)) = seen
    assert options["project"] == "clipwise"
    assert options["settings"]["x_disable_stats"]
    assert (step, set(figures)) == (1, PUBLIC)


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_package_that_is_not_there_is_named(monkeypatch, name):
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    code, answer = train("--log-to", name)
    assert code == 2
    assert f"clipwise[{name}]" in answer["error"]


def test_the_real_ones(monkeypatch, tmp_path):
    mlflow, _ = pytest.importorskip("mlflow"), pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for make in tensorboard.LOGS.values():
        log = make("mine")
        log.step({"step": 1, "epoch": 0.5, "lr": 0.1, "threshold": 2.0})
        log.close()
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("clipwise").experiment_id])
    assert run.data.metrics == {"lr": 0.1, "method/threshold": 2.0}
    assert list((tmp_path / "wandb").glob("offline-run-*"))
