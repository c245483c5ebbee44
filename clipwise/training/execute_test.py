"""A run folder that cannot be written: what was trained is kept elsewhere, and the first error is the one that is told."""

import json

import pytest
from safetensors.torch import load_file

from clipwise.training import folder as run_folder
from clipwise.training.config import make_config
from clipwise.training.execute import load_asked, make_network, train_into
from clipwise.training.folder import RunFolder
from clipwise.training.resolve import resolve
from clipwise.types import ClipwiseError

OPTIONS = {"data": "digits", "model": "linear", "epochs": 1, "epsilon": 3.0, "accountant": "rdp", "seed": 2}


def train(out, **more):
    asked = make_config(OPTIONS, "the test")
    dataset = load_asked(asked)
    settings = resolve(asked, dataset)
    folder = run_folder.create(str(out), dataset.name, settings.method)
    return train_into(folder, settings, dataset, make_network(settings, dataset), **more)


def test_results_that_find_no_room_are_kept_in_the_rescue_folder(tmp_path, monkeypatch):
    whole, _ = train(tmp_path / "whole")
    write, run = RunFolder.write, tmp_path / "run"

    def full(self, name, content):
        if self.path == run and name in ("model.safetensors", "result.json"):
            raise OSError(28, f"No space left for {name}")
        write(self, name, content)

    monkeypatch.setattr(RunFolder, "write", full)
    (tmp_path / "rescue").mkdir()
    with pytest.raises(ClipwiseError, match=r"No space left for model\.safetensors.*were kept in") as told:
        train(run, rescue=str(tmp_path / "rescue"))
    (kept,) = (tmp_path / "rescue").iterdir()
    assert str(kept) in str(told.value)
    assert {path.name for path in kept.iterdir()} >= {
        "model.safetensors",
        "statement.md",
        "result.json",
        "metrics.jsonl",
    }
    result = json.loads((kept / "result.json").read_text())
    assert {**result, "run_dir": ""} == {**whole, "run_dir": ""}
    one, other = (load_file(folder / "model.safetensors") for folder in (kept, tmp_path / "whole"))
    assert all(one[name].equal(other[name]) for name in other)
    assert (run / "ledger.jsonl").exists()
    assert (run / "checkpoints").exists()  # so that the run can end there as well, when there is room


def test_a_folder_that_takes_no_checkpoints_is_trained_in_all_the_same(tmp_path, monkeypatch):
    from clipwise.checkpoint import Checkpoints

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Checkpoints, "save", full)
    told = []
    result, _ = train(tmp_path / "run", every_steps=1, rescue=str(tmp_path), notice=told.append)
    assert result["steps"] > 1
    assert [sentence for sentence in told if "checkpoint could not be written" in sentence] == told
    assert len(told) == 1
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_whichever_file_finds_no_room_the_folder_is_named_and_nothing_is_lost(tmp_path, monkeypatch):
    write, names = RunFolder.write, []
    monkeypatch.setattr(
        RunFolder, "write", lambda self, name, content: (names.append(name), write(self, name, content))
    )
    whole, _ = train(tmp_path / "whole")
    (tmp_path / "rescue").mkdir()
    for last in range(len(names)):  # config.toml, preprocessing.json, ..., result.json, manifest.json
        run, seen = tmp_path / f"run {last}", []

        def full(self, name, content, run=run, seen=seen, last=last):
            seen.append(name)
            if self.path == run and len(seen) > last:
                raise OSError(28, "No space left on device")
            write(self, name, content)

        monkeypatch.setattr(RunFolder, "write", full)
        with pytest.raises(
            ClipwiseError, match=r"cannot be written \((\[Errno 28\] )?No space left on device\)"
        ) as told:
            train(run, rescue=str(tmp_path / "rescue"))
        assert str(run) in str(told.value)
        if run.exists():  # a step was taken
            (kept,) = [path for path in (tmp_path / "rescue").iterdir() if str(path) in str(told.value)]
            assert json.loads((kept / "result.json").read_text())["accuracy"] == whole["accuracy"]
        else:
            assert "no step was taken" in str(told.value)
