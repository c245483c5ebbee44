"""`--tensorboard`: what the event files hold, read back, and what is refused."""

import importlib.util
import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from typer.testing import CliRunner

from clipwise.cli import app
from clipwise.training.tensorboard import EventLog
from clipwise.types import BadArgument

SMALL = ("--model", "linear", "--epochs", "2", "--batch", "300", "--accountant", "rdp", "--seed", "1")


def train(*words):
    result = CliRunner().invoke(app, ["train", *map(str, words), "--json"])
    return result.exit_code, json.loads(result.stdout)


def points(folder):
    """All scalar points, as (tag, step, value, time); an event of any other kind fails the test."""
    (file,) = Path(folder).glob("events.out.tfevents.*")
    found = []
    for event in EventFileLoader(str(file)).Load():
        if event.HasField("file_version") or event.HasField("source_metadata"):
            continue
        assert event.WhichOneof("what") == "summary"
        for value in event.summary.value:
            found.append((value.tag, event.step, value.tensor.float_val[0], event.wall_time))
    return found


@pytest.mark.parametrize(
    ("method", "state"),
    [
        ("quantile", {"method/threshold"}),
        ("dpsgd-f", {f"method/thresholds/{group}" for group in range(10)}),
        ("oso", {"method/threshold", "method/learning_rate"}),
    ],
)
def test_only_public_and_released_values_are_there(tmp_path, method, state):
    code, _ = train(*SMALL, "--method", method, "--tensorboard", "--out", tmp_path / "run")
    assert code == 0
    found = points(tmp_path / "run" / "tensorboard")
    assert {tag for tag, *_ in found} == {"epsilon", "noise_multiplier", "lr", "test/accuracy", *state}
    # The values are those of the run's own files, of which other tests say that they are public.
    path = [json.loads(line) for line in (tmp_path / "run" / "path.jsonl").read_text().splitlines()]
    epochs = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(s, v) for tag, s, v, _ in found if tag == "test/accuracy"] == [
        (line["step"], pytest.approx(line["accuracy"])) for line in epochs
    ]
    assert [v for tag, _, v, _ in found if tag == "epsilon"] == pytest.approx([line["epsilon"] for line in epochs])
    assert [v for tag, _, v, _ in found if tag == "lr"] == pytest.approx([line["lr"] for line in path])
    assert len({time for *_, time in found}) == 1  # the time of a step would tell the size of its batch


def test_a_folder_for_many_runs_and_without_privacy(tmp_path):
    code, _ = train(*SMALL, "--epsilon", "inf", "--tensorboard", tmp_path / "logs", "--out", tmp_path / "plain")
    assert code == 0
    tags = {tag for tag, *_ in points(tmp_path / "logs" / "plain")}
    assert tags == {"noise_multiplier", "lr", "test/accuracy"}  # epsilon is infinite, and has no point
    code, answer = train(*SMALL, "--tensorboard", tmp_path / "logs", "--out", tmp_path / "other" / "plain")
    assert code == 2
    assert "exists already" in answer["error"]
    assert not (tmp_path / "other" / "plain").exists()


def test_from_a_file_and_again(tmp_path):
    (tmp_path / "c.toml").write_text('tensorboard = true\nmodel = "linear"\nepochs = 1\nbatch = 300\nepsilon = inf\n')
    assert train("--config", tmp_path / "c.toml", "--out", tmp_path / "a")[0] == 0
    assert train("--config", tmp_path / "a" / "config.toml", "--out", tmp_path / "b")[0] == 0
    assert points(tmp_path / "b" / "tensorboard")


def test_without_the_package_nothing_is_touched(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "tensorboard" else find(name, *rest)
    )
    code, answer = train("--data", tmp_path / "not there.csv", "--tensorboard", "--out", tmp_path / "run")
    assert code == 2
    assert "pip install 'clipwise[tensorboard]'" in answer["error"]
    with pytest.raises(BadArgument, match="pip install"):
        EventLog(tmp_path / "log")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_never_starts_leaves_nothing(tmp_path):
    code, _ = train(*SMALL, "--method", "auto-dp", "--tensorboard", tmp_path / "logs", "--out", tmp_path / "run")
    assert code == 2
    assert list(tmp_path.iterdir()) == []
