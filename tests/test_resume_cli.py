"""`clipwise train`, stopped and killed from outside, and `clipwise resume`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from clipwise.accounting import Ledger

TRAIN = (
    "train",
    "--epochs",
    "6",
    "--batch",
    "100",
    "--accountant",
    "rdp",
    "--method",
    "quantile",
    "--average-weights",
    "0.9",
)


def command(*words):
    return [sys.executable, "-m", "clipwise.cli", *map(str, words)]


def clipwise(*words, code=0):
    done = subprocess.run(command(*words), capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr + done.stdout
    return done


def end_in_the_middle(folder, number, *words):
    """Start a run and send a signal when some steps have been kept."""
    process = subprocess.Popen(
        command(*TRAIN, "--out", folder, "--checkpoint-every", 3, *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    kept = Path(folder) / "checkpoints"
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        steps = [int(path.name[5:]) for path in kept.glob("step-*")] if kept.exists() else []
        if max(steps, default=0) >= 6:
            break
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    return process.returncode, out + err


def weights(folder):
    return {name: value.tolist() for name, value in load_file(Path(folder) / "model.safetensors").items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    clipwise(*TRAIN, "--out", folder, "--seed", 3)
    return folder


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_seeded_run_ends_as_if_nothing_had_happened(number, whole, tmp_path):
    code, said = end_in_the_middle(tmp_path / "run", number, "--seed", 3)
    assert code == (-9 if number == signal.SIGKILL else 128 + number), said
    assert not (tmp_path / "run" / "model.safetensors").exists()
    if number != signal.SIGKILL:
        failed = json.loads((tmp_path / "run" / "result.json").read_text())
        assert "clipwise resume" in failed["error"]
        assert Ledger.read(tmp_path / "run" / "ledger.jsonl").closed
    result = json.loads(clipwise("resume", tmp_path / "run", "--json").stdout)
    expected = json.loads((whole / "result.json").read_text())
    for each in (result, expected):
        each.pop("run_dir")
    assert result == expected
    assert weights(tmp_path / "run") == weights(whole)
    for file in ("metrics.jsonl", "path.jsonl", "predictions.npz"):
        assert (tmp_path / "run" / file).read_bytes() == (whole / file).read_bytes()
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_secure_run_pays_for_what_it_redoes_and_keeps_its_target(tmp_path):
    code, said = end_in_the_middle(tmp_path / "run", signal.SIGKILL)
    assert code == -9, said
    before = Ledger.read(tmp_path / "run" / "ledger.jsonl").epsilon(1e-5).value
    same = (*TRAIN, "--out", tmp_path / "run", "--resume", "--json")
    assert "epochs=7" in clipwise(*same, "--epochs", 7, code=2).stdout
    result = json.loads(clipwise(*same).stdout)
    assert before < result["epsilon"] <= 3.0
    assert sum(e.count for e in Ledger.read(tmp_path / "run" / "ledger.jsonl").events()) >= result["steps"]
    assert "has ended" in clipwise(*same, code=2).stdout


def test_a_run_is_ended_with_the_weights_of_its_last_checkpoint(tmp_path):
    run = tmp_path / "run"
    code, said = end_in_the_middle(run, signal.SIGKILL)
    assert code == -9, said
    before = Ledger.read(run / "ledger.jsonl").epsilon(1e-5, "rdp").value
    (last,) = sorted((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))[-1:]
    result = json.loads(clipwise("resume", run, "--finish", "--json").stdout)
    assert result["epsilon"] == pytest.approx(before)  # nothing was given back, nothing more was charged
    assert f"ended after {int(last.name[5:])} of" in (run / "statement.md").read_text()
    assert weights(run)
    assert "verified" in clipwise("verify", run).stdout
    assert "has ended" in clipwise("resume", run, "--finish", code=2).stderr


def test_a_new_run_beside_one_that_died_is_told_of_it_and_can_count_it(tmp_path):
    code, said = end_in_the_middle(tmp_path / "died", signal.SIGKILL)
    assert code == -9, said
    fresh = clipwise(*TRAIN, "--out", tmp_path / "fresh")
    assert "did not finish, and has spent epsilon" in fresh.stderr
    counted = clipwise(*TRAIN, "--out", tmp_path / "counted", "--after", tmp_path / "died", "--json")
    noises = [
        json.loads((tmp_path / name / "result.json").read_text())["noise_multiplier"] for name in ("fresh", "counted")
    ]
    assert noises[1] > noises[0]
    assert json.loads(counted.stdout)["epsilon"] <= 3.0


def test_two_processes_on_one_folder(tmp_path):
    process = subprocess.Popen(command(*TRAIN, "--epochs", 200, "--out", tmp_path / "run"), stderr=subprocess.PIPE)
    kept = tmp_path / "run" / "checkpoints"
    deadline = time.monotonic() + 120
    while not (kept.exists() and list(kept.glob("step-*"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "under way" in clipwise("resume", tmp_path / "run", "--json", code=2).stdout
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 143


def test_what_cannot_go_on_is_said(tmp_path):
    assert "holds no checkpoint" in clipwise("resume", tmp_path / "nothing", "--json", code=2).stdout
    assert "--out" in clipwise("train", "--resume", "--json", code=2).stdout


def test_a_full_disk_at_the_end_keeps_the_model_elsewhere(tmp_path, monkeypatch):
    """The folder takes no large file any more: what was trained is written to the rescue folder, the first error is shown."""
    import resource

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "rescue").mkdir()
    done = subprocess.run(
        command(*TRAIN, "--model", "mlp", "--out", tmp_path / "run", "--rescue", tmp_path / "rescue", "--json"),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit if hasattr(os, "fork") else None,
    )
    assert done.returncode == 1
    assert "File too large" in done.stdout
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").events()
