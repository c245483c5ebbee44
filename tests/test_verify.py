"""`clipwise verify`: a run folder whose files agree, and every way in which they can be made not to."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import clipwise
from clipwise.accounting import Ledger, chain
from clipwise.cli import app
from clipwise.training.verify import NotVerified, RunTampered
from clipwise.types import BadArgument, ClipwiseError

GOLDEN = Path(__file__).parent / "golden" / "ledger-0.1.jsonl"
QUICK = (
    "train",
    "--method",
    "fixed",
    "--model",
    "linear",
    "--epochs",
    "2",
    "--batch",
    "500",
    "--accountant",
    "rdp",
    "--epsilon",
    "3",
)


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def answer(*words):
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, seed in (("one", 7), ("other", 8)):
        answer(*QUICK, "--seed", seed, "--out", folder / name)
    answer(*QUICK[:-2], "--epsilon", "inf", "--out", folder / "plain")
    return folder


@pytest.fixture
def folder(runs, tmp_path):
    return Path(shutil.copytree(runs / "one", tmp_path / "run"))


def test_a_run_verifies(runs, folder):
    found = clipwise.verify(folder)
    assert (found.finished, found.private, found.steps) == (True, True, 6)
    assert found.epsilon == pytest.approx(Ledger.read(folder / "ledger.jsonl").epsilon(found.delta, "rdp").value)
    assert set(found.files) == set(os.listdir(folder)) - {"ledger.jsonl", ".ledger.jsonl.head", "manifest.json"}
    told = answer("verify", folder)
    assert (told["verified"], told["epsilon"]) == (True, found.epsilon)
    assert "verified, 8 files; epsilon 2.9" in run("verify", folder).stdout
    run("report", folder)
    assert clipwise.verify(folder) == found  # a report is no part of the run
    plain = clipwise.verify(runs / "plain")
    assert (plain.finished, plain.private, plain.epsilon) == (True, False, None)
    assert "without privacy" in run("verify", runs / "plain").stdout


def cut_end(folder):
    """Without the ledger's last line, nor the file beside it that would tell."""
    path = folder / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    (folder / ".ledger.jsonl.head").unlink()


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _statement(folder, _):
    epsilon = json.loads((folder / "result.json").read_text())["epsilon"]
    edit(folder / "statement.md", f"({epsilon:.2f}"[:4], "(1.0")


def _result(folder, _):
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "epsilon": 1.0}, indent=2) + "\n")


def _weights(folder, other):
    shutil.copy(other / "model.safetensors", folder)


def _metrics(folder, other):
    shutil.copy(other / "metrics.jsonl", folder)


def _one_bit(folder, _):
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)


def _all_but_the_ledger(folder, other):
    for file in other.iterdir():
        if file.name != "ledger.jsonl":
            shutil.copy(file, folder)


def _ledger(folder, other):
    shutil.copy(other / "ledger.jsonl", folder)


def mend_manifest(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, about in manifest["files"].items():
        data = (folder / name).read_bytes()
        about |= {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def _statement_and_manifest(folder, other):
    _statement(folder, other)
    mend_manifest(folder)


def _weights_and_manifest(folder, other):
    _weights(folder, other)
    mend_manifest(folder)


def forge_close(folder, **facts):
    """Rewrite the end of the ledger, as whoever knows the format can."""
    path = folder / "ledger.jsonl"
    cut_end(folder)
    ledger = Ledger.read(path)
    last = chain.seal({"kind": "close", "steps": 6, "facts": facts}, ledger.head, None)
    path.write_bytes(path.read_bytes() + last + b"\n")


def _result_statement_manifest_and_close(folder, other):
    _statement(folder, other)
    _result(folder, other)
    mend_manifest(folder)
    digest = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    bound = {"weights": "model.safetensors", "statement": "statement.md", "result": "result.json"}
    bound["preprocessing"] = "preprocessing.json"
    forge_close(folder, manifest=digest["manifest.json"], **{what: digest[name] for what, name in bound.items()})


def _manifest_gone(folder, _):
    (folder / "manifest.json").unlink()


def _manifest_and_close_gone(folder, _):
    _manifest_gone(folder, _)
    cut_end(folder)


def _ledger_gone(folder, _):
    (folder / "ledger.jsonl").unlink()


def _ledger_and_manifest_gone(folder, _):
    _ledger_gone(folder, _)
    _manifest_gone(folder, _)


def _close_gone(folder, _):
    cut_end(folder)


def _close_gone_by_accident(folder, _):
    path = folder / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def _bytes_after_the_end(folder, _):
    with (folder / "ledger.jsonl").open("ab") as file:
        file.write(b"\x01x")


def _file_gone(folder, _):
    (folder / "predictions.npz").unlink()


def _file_unlisted(folder, _):
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["predictions.npz"]
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _file_outside(folder, other):
    edit(folder / "manifest.json", '"config.toml"', '"../other/config.toml"')
    shutil.copytree(other, folder.parent / "other")


def _link(folder, _):
    (folder / "model.safetensors").rename(folder.parent / "weights")
    (folder / "model.safetensors").symlink_to(folder.parent / "weights")


def _linked_ledger(folder, _):
    (folder / "ledger.jsonl").rename(folder.parent / "ledger")
    (folder / "ledger.jsonl").symlink_to(folder.parent / "ledger")


def _linked_pictures(folder, _):
    (folder.parent / "elsewhere").mkdir()
    (folder / "report").symlink_to(folder.parent / "elsewhere")


def _fifo(folder, _):
    (folder / "statement.md").unlink()
    os.mkfifo(folder / "statement.md")


def _no_manifest_of_a_manifest(folder, _):
    (folder / "manifest.json").write_text('{"files": {"config.toml": 3}}')


def _deep(folder, _):
    (folder / "manifest.json").write_text("[" * 100_000)


def _not_private(folder, other):
    _result(folder, other)
    edit(folder / "result.json", '"private": true', '"private": false')


ATTACKS = [
    (_statement, "statement.md"),
    (_result, "result.json"),
    (_not_private, "result.json"),
    (_weights, "model.safetensors"),
    (_one_bit, "model.safetensors"),
    (_metrics, "metrics.jsonl"),
    (_all_but_the_ledger, "ledger"),
    (_ledger, "ledger"),
    (_statement_and_manifest, "manifest.json"),
    (_weights_and_manifest, "manifest.json"),
    (_result_statement_manifest_and_close, "the ledger's charges give"),
    (_manifest_gone, "manifest.json is missing"),
    (_manifest_and_close_gone, "manifest.json is missing"),
    (_ledger_gone, "ledger.jsonl"),
    (_ledger_and_manifest_gone, "ledger.jsonl is missing"),
    (_close_gone, "no closing line"),
    (_bytes_after_the_end, "follows its closing line"),
    (_close_gone_by_accident, "cut off its end"),
    (_file_gone, "predictions.npz"),
    (_file_unlisted, "predictions.npz is not in"),
    (_file_outside, "manifest.json"),
    (_link, "model.safetensors is a link"),
    (_linked_ledger, "ledger.jsonl is a link"),
    (_linked_pictures, "report is a link"),
    (_fifo, "statement.md"),
    (_no_manifest_of_a_manifest, "manifest.json"),
    (_deep, "manifest.json"),
]


@pytest.mark.parametrize(("attack", "named"), ATTACKS, ids=lambda part: getattr(part, "__name__", "").strip("_"))
def test_what_does_not_agree_is_refused_by_name(runs, folder, attack, named):
    attack(folder, runs / "other")
    with pytest.raises((RunTampered, BadArgument), match=named):
        clipwise.verify(folder)
    before = sorted(os.listdir(folder))
    for command in ("verify", "report"):
        refused = run(command, folder, "--json")
        assert refused.exit_code in (1, 2)
        assert named in json.loads(refused.stdout)["error"]
    assert sorted(os.listdir(folder)) == before


def test_a_run_that_was_killed_is_told_apart(folder):
    _manifest_and_close_gone(folder, None)
    for name in ("result.json", "statement.md", "model.safetensors"):
        (folder / name).unlink()
    found = clipwise.verify(folder)
    assert (found.finished, found.steps, found.files) == (False, 6, ())
    assert "has not ended" in run("verify", folder).stdout
    assert answer("verify", folder)["verified"] is False
    edit(folder / "ledger.jsonl", '"sample_rate":0.3', '"sample_rate":0.2')
    with pytest.raises(RunTampered, match="ledger"):
        clipwise.verify(folder)


def test_a_failed_run_keeps_no_manifest(tmp_path, monkeypatch):
    """The disk is full when the ledger is closed: what was written before must not pass for a finished run."""
    monkeypatch.setattr(Ledger, "close", _fail_once(Ledger.close))
    failed = run(*QUICK, "--seed", 7, "--out", tmp_path / "run")
    assert failed.exit_code == 1
    assert "disk full" in json.loads((tmp_path / "run" / "result.json").read_text())["error"]
    assert not (tmp_path / "run" / "manifest.json").exists()
    assert clipwise.verify(tmp_path / "run").finished is False


def _fail_once(close):
    def failing(ledger, facts=None):
        if facts:
            raise ClipwiseError("disk full")
        close(ledger)

    return failing


def test_a_folder_of_version_0_1_is_not_verified(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({"epsilon": 1.0, "private": True, "steps": 22}))
    shutil.copy(GOLDEN, tmp_path / "ledger.jsonl")
    with pytest.raises(NotVerified, match=r"version 0\.1"):
        clipwise.verify(tmp_path)
    assert "NotVerified" in run("verify", tmp_path).stderr


@pytest.mark.parametrize("name", ["nowhere", "x" * 100_000, "a\0b"])
def test_what_is_no_folder_is_named(name):
    with pytest.raises(BadArgument, match="run="):
        clipwise.verify(name)
