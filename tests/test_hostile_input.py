"""Configs, command lines and data files that mean harm: a named error at once, and never a run without privacy."""

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from clipwise import files, validate
from clipwise.accounting import Ledger, LedgerError
from clipwise.cli import app
from clipwise.data import load
from clipwise.training.config import make_config, read_config
from clipwise.types import BadArgument, ClipwiseError


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def config_of(tmp_path, text, suffix=".toml"):
    path = tmp_path / f"c{suffix}"
    path.write_text(text)
    return make_config(read_config(path), str(path))


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".toml", "epsilon = 1e400"),
        (".toml", "epsilon = +1_0e400"),
        (".toml", "noise_multiplier = 1e400"),
        (".yaml", "epsilon: 1.0e+400"),
        (".yaml", "epsilon: !!float 1e400"),
    ],
)
def test_a_number_that_is_too_large_is_not_infinity(tmp_path, suffix, text):
    with pytest.raises(BadArgument, match="too large for a number"):
        config_of(tmp_path, text, suffix)


@pytest.mark.parametrize(("suffix", "text"), [(".toml", "epsilon = inf"), (".yaml", "epsilon: .inf")])
def test_the_word_inf_still_trains_without_privacy(tmp_path, suffix, text):
    assert config_of(tmp_path, text, suffix).epsilon == float("inf")


def test_nor_on_the_command_line(tmp_path):
    for words in (("--epsilon", "1e400"), ("--epsilon=9e999",), ("--noise-multiplier", "1e400")):
        refused = run("train", "--model", "linear", *words, "--out", tmp_path / "run")
        assert refused.exit_code == 2, refused.output
        assert "too large for a number" in refused.stderr
    assert "not a valid float" in run("train", "--epsilon", "three").stderr
    assert not (tmp_path / "run").exists()


BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9))]
)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".toml", "x = " + "[" * 50_000),
        (".toml", "x = " + "[" * 40 + "]" * 40),
        (".toml", ".".join(["a"] * 30_000) + " = 1"),
        (".toml", "[" + ".".join(["a"] * 30_000) + "]"),
        (".toml", "x = {" + ".".join(["a"] * 30_000) + " = 1}"),
        (".toml", "epochs = " + "9" * 400),
        (".toml", "epochs = " + "9" * 5000),
        (".toml", "seed = 0x" + "f" * 5000),
        (".toml", "x = 1\n" * 100_000),
        (".yaml", "x: " + "[" * 50_000),
        (".yaml", "".join(f"{' ' * i}a:\n" for i in range(400))),
        (".yaml", BOMB),
        (".yaml", "a: &a [*a]"),
        (".yaml", "epochs: " + "9" * 400),
        (".yaml", "seed: " + "9" * 5000),
        (".yaml", "x: !!python/object/apply:os.system ['touch canary']"),
        (".yaml", "? [a, b]\n: 1"),
        (".yaml", "x: !!timestamp nonsense"),
        (".yaml", "1: 2"),
        (".toml", "\x00"),
        (".yaml", "\x00"),
    ],
    ids=range(21),
)
def test_a_hostile_config_is_refused_by_name(tmp_path, monkeypatch, suffix, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadArgument) as refused:
        config_of(tmp_path, text, suffix)
    assert len(str(refused.value)) < 2000
    assert not Path("canary").exists()


def test_what_is_no_ordinary_file_is_no_config(tmp_path):
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "huge.toml").touch()
    os.truncate(tmp_path / "huge.toml", 1 << 34)
    names = [*(tmp_path / f"{name}.toml" for name in ("fifo", "folder", "huge")), "/dev/full", "/dev/zero"]
    for path in (*names, "x" * 100_000, "a\0b"):
        with pytest.raises(BadArgument, match="config="):
            read_config(Path(path))


class Canary:
    def __reduce__(self):
        return os.system, ("touch canary",)


def test_hostile_data_files_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("pickled.npz", x=np.array([Canary()] * 9, dtype=object), y=np.zeros(9, np.int64))
    Path("plain.npz").write_bytes(pickle.dumps(Canary()))
    os.mkfifo("fifo.csv")
    Path("folder.npz").mkdir()
    Path("zero.csv").symlink_to("/dev/zero")
    np.savez("headless.npz", x=np.zeros((9, 2)), y=np.zeros(9, np.int64))
    with zipfile.ZipFile("headless.npz", "w") as archive:
        archive.writestr("x.npy", b"no header")
        archive.writestr("y.npy", b"none here")
    names = [
        "headless.npz",
        "pickled.npz",
        "plain.npz",
        "fifo.csv",
        "folder.npz",
        "zero.csv",
        "x" * 100_000 + ".csv",
        "a\0b.csv",
    ]
    for name in names:
        with pytest.raises(BadArgument) as refused:
            load(name, label="y")
        assert len(str(refused.value)) < 2000
    assert not Path("canary").exists()


@pytest.mark.parametrize("name", ["x" * 100_000, "a\0b", "/dev/full", "fifo"], ids=["long", "nul", "device", "fifo"])
@pytest.mark.parametrize(
    "option", ["--config", "--data", "--out", "--after", "--pretrained", "--tensorboard", "--rescue"]
)
def test_hostile_paths_on_the_command_line_have_a_name(tmp_path, monkeypatch, option, name):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    words = (
        "train",
        "--model",
        "linear",
        "--epochs",
        1,
        "--batch",
        500,
        "--noise-multiplier",
        5,
        "--accountant",
        "rdp",
    )
    result = run(*words, option, name)
    if option == "--rescue":  # looked at where it is needed only
        assert result.exit_code == 0
        return
    assert result.exit_code in (1, 2)
    assert "not expected" not in result.stderr, result.stderr[-500:]
    assert "Traceback" not in result.stderr


def test_other_commands_name_hostile_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    for command in ("ledger", "report", "verify", "resume"):
        for name in ("x" * 100_000, "/dev/full", "fifo"):
            result = run(command, name)
            assert result.exit_code in (1, 2), (command, name[:20])
            assert "not expected" not in result.stderr, (command, name[:20], result.stderr[-300:])


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000], ids=["large", "negative", "unshowable"])
def test_whole_numbers_beyond_any_float_are_refused_by_name(value):
    for check in (validate.count, validate.positive, validate.non_negative):
        with pytest.raises(BadArgument, match="epochs is too large"):
            check("epochs", value)
    with pytest.raises(ClipwiseError):
        make_config({"epochs": value})
    with pytest.raises(ClipwiseError):
        make_config({"seed": value})


def test_json_is_strict():
    for text in ("[" * 100_000, "NaN", "Infinity", "1e999", "9" * 5000, "{", '{"a": ' * 40 + "1" + "}" * 40):
        with pytest.raises(files.Malformed):
            files.parse_json(text)
    assert files.parse_json('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}


def test_a_ledger_on_a_full_device_is_refused(tmp_path):
    (tmp_path / "ledger").symlink_to("/dev/full")
    with pytest.raises(LedgerError, match="not an ordinary file"):
        Ledger.open(tmp_path / "ledger")
