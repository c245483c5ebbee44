"""The command line: pure JSON on stdout, exit codes, errors with a remedy, and a run folder that repeats its run."""

import hashlib
import json
import math
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import clipwise.training.execute
from clipwise import __version__
from clipwise.cli import app
from clipwise.types import BudgetExhausted

# A run of a second: three steps of a linear model, noise given, so that nothing has to be calibrated.
QUICK = [
    *("train", "--model", "linear", "--noise-multiplier", "5", "--epochs", "1"),
    *("--method", "fixed", "--batch", "500", "--accountant", "rdp", "--seed", "7"),
]
KEYS = {
    *("method", "data", "model", "epsilon", "delta", "accountant", "noise_multiplier"),
    *("sample_rate", "steps", "accuracy", "run_dir"),
}
FILES = {
    "config.toml",
    "preprocessing.json",
    "metrics.jsonl",
    "path.jsonl",
    "ledger.jsonl",
    ".ledger.jsonl.head",
    "model.safetensors",
    "statement.md",
    "result.json",
    "predictions.npz",
    "manifest.json",
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def answer(*words):
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return strict(result.stdout)


def strict(text):
    """One line, one JSON object, and no NaN or Infinity in it."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    assert text.endswith("\n")
    assert text.count("\n") == 1
    value = json.loads(text, parse_constant=refuse)
    assert isinstance(value, dict | list)
    return value


def refused(*words, code=2):
    """The message of a command that must fail, the same with --json and without, and nothing left behind."""
    before = sorted(os.listdir())
    plain = run(*words)
    assert (plain.exit_code, plain.stdout) == (code, ""), plain.output
    assert "Traceback" not in plain.output
    as_json = run(*words, "--json")
    assert as_json.exit_code == code
    assert as_json.stderr == ""
    value = strict(as_json.stdout)
    assert set(value) == {"error", "kind"}
    assert re.sub(r"\s", "", value["error"]) in re.sub(r"\s", "", plain.stderr)
    assert sorted(os.listdir()) == before
    return value["error"]


def test_version():
    assert run("--version").stdout == f"clipwise {__version__}\n"
    assert answer("--version") == {"version": __version__}


def test_help_names_every_command():
    words = run("--help").stdout
    for command in ("train", "account", "calibrate", "methods", "data", "models"):
        assert command in words
        assert run(command, "--help").exit_code == 0


RATE = ("--sample-rate", 0.01, "--steps", 1000, "--delta", 1e-5)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_calibrate_and_account_agree(accountant):
    found = answer("calibrate", "--epsilon", 3, *RATE, "--accountant", accountant)
    sigma = found["noise_multiplier"]
    spent = answer("account", "--noise-multiplier", repr(sigma), *RATE, "--accountant", accountant)
    assert 2.99 < spent["epsilon"] <= 3
    assert spent["epsilon"] == found["epsilon"]
    assert spent["accountant"] == found["accountant"] == accountant
    less = answer("account", "--noise-multiplier", repr(sigma * 0.999), *RATE, "--accountant", accountant)
    assert less["epsilon"] > 3


def test_best_is_the_smaller_and_is_named():
    best, rdp, pld = (
        answer("account", "--noise-multiplier", 1, *RATE, "--accountant", name)["epsilon"]
        for name in ("best", "rdp", "pld")
    )
    assert best == min(rdp, pld)
    assert "pld accountant" in run("account", "--noise-multiplier", 1, *RATE).stdout


def test_no_noise_is_null_and_not_private():
    spent = answer("account", "--noise-multiplier", 0, *RATE)
    assert (spent["epsilon"], spent["private"]) == (None, False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("account", "--noise-multiplier", -1, *RATE), "noise_multiplier=-1.0"),
        (("account", "--noise-multiplier", "nan", *RATE), "noise_multiplier=nan"),
        (("account", "--noise-multiplier", 1, *RATE, "--accountant", "gdp"), "accountant='gdp'"),
        (("account", "--noise-multiplier", 1, *RATE[:4], "--delta", 1), "delta=1.0"),
        (("account", "--noise-multiplier", 1, "--sample-rate", 2, "--steps", 5), "sample_rate=2.0"),
        (("account", "--noise-multiplier", 1, "--sample-rate", 0.1, "--steps", "x"), "--steps"),
        (("account",), "Missing option"),
        (("calibrate", "--epsilon", 0, *RATE), "epsilon=0.0"),
        (("calibrate", "--epsilon", -1, *RATE), "epsilon=-1.0"),
        (("methods", "nope"), "method='nope'"),
        (("nonsense",), "No such command"),
        (("data", "--what"), "No such option"),
    ],
)
def test_bad_arguments(words, message):
    assert message in refused(*words)


def test_methods():
    methods = {m["name"]: m for m in answer("methods")}
    fixed = methods["fixed"]
    assert {"name", "sound", "side_queries", "options", "reference"} <= set(fixed)
    assert (fixed["sound"], fixed["side_queries"]) == (True, [])
    assert fixed == answer("methods", "fixed")
    option, common = fixed["options"]
    assert (common["name"], common["type"], common["default"]) == ("normalise", "bool", False)
    assert (option["name"], option["type"], option["default"]) == ("threshold", "float", 1.0)
    for part in ("fixed", "Abadi", "sound"):
        assert part in run("methods").stdout
    for part in ("threshold", "weight x norm <= C", "Abadi et al., Deep"):
        assert part in run("methods", "fixed").stdout


def test_side_queries_of_methods_with_their_shares():
    """By hand: the split (sigma, sigma_H) = (1, 5) leaves the gradient 1.0206207."""
    dc, oso = answer("methods", "dc-sgd-e"), answer("methods", "oso")
    (histogram,) = dc["side_queries"]
    assert histogram == {"name": "histogram", "width": 20, "l2_bound": 1.0, "noise_multiplier": 5.0, "share": 0.04}
    assert dc["gradient_noise"] == pytest.approx(1.0206207, abs=1e-7)
    assert dc["tune"] == ["lr"]  # the user's own rate is left; oso starts from an option of that name
    assert oso["tune"] == ["threshold", "lr"]
    assert "l2 bound 1, noise multiplier 5, 4.00% of the budget" in run("methods", "dc-sgd-e").stdout


def test_an_unsound_method_is_said_to_be():
    described = answer("methods", "auto-dp")
    assert (described["sound"], described["gradient_noise"]) == (False, None)
    assert described["side_queries"][0]["l2_bound"] is None  # unbounded
    assert described["guarantee"] in run("methods", "auto-dp").stdout
    assert "GUARANTEE" in run("methods").stdout  # the sound ones say only "sound"


def test_data_and_models(monkeypatch):
    monkeypatch.delenv("CLIPWISE_DATA", raising=False)
    found = {d["name"]: d for d in answer("data")["datasets"]}
    assert (found["digits"]["found"], found["digits"]["train"], found["digits"]["test"]) == (True, 1437, 360)
    assert (found["mnist"]["found"], found["mnist"]["where"]) == (False, None)
    assert "to get it: clipwise data get mnist" in run("data").stdout
    sizes = {m["name"]: m["parameters"] for m in answer("models")["models"]}
    assert sizes["cnn"]["mnist"] == 26010
    assert "26,010" in run("models").stdout


def test_train_on_fixed_features(tmp_path):
    """Computed once, kept for a built-in data set, and said; the model that is written holds the last layer alone."""
    result = run(*QUICK, "--model", "scattering", "--out", "runs/wavelets")
    assert result.exit_code == 0, result.output
    said = "".join(result.stderr.split())  # lines are folded anywhere
    assert f"computedonceandkeptin{tmp_path / 'cache' / 'clipwise'}" in said
    written = json.loads(Path("runs/wavelets/result.json").read_text())
    assert (written["model"], written["trained_parameters"]) == ("scattering", 81 * 4 * 10 + 10)
    assert set(load_file("runs/wavelets/model.safetensors")) == {"head.weight", "head.bias"}


def test_train_leaves_a_whole_run_folder():
    result = answer(*QUICK, "--out", "runs/a")
    assert set(result) >= KEYS
    assert set(os.listdir("runs/a")) == FILES
    assert json.loads(Path("runs/a/result.json").read_text()) == result
    assert (result["method"], result["data"], result["model"]) == ("fixed", "digits", "linear")
    assert (result["noise_multiplier"], result["steps"], result["run_dir"]) == (5.0, 3, "runs/a")
    assert result["sample_rate"] == pytest.approx(500 / 1437)
    spent = answer(
        *("account", "--noise-multiplier", 5, "--steps", 3, "--sample-rate", 500 / 1437),
        *("--delta", result["delta"], "--accountant", "rdp"),
    )
    assert result["epsilon"] == pytest.approx(spent["epsilon"], rel=1e-12)
    (line,) = map(json.loads, Path("runs/a/metrics.jsonl").read_text().splitlines())
    assert (line["epoch"], line["step"], line["accuracy"]) == (1, 3, result["accuracy"])
    assert load_file("runs/a/model.safetensors")["1.weight"].shape == (10, 64)
    statement = Path("runs/a/statement.md").read_text()
    assert "# Privacy statement" in statement
    assert "test part included" in statement  # the defaults for digits were tuned on digits, and it says so
    assert "nothing was tuned" not in statement
    # Readable by whom the user's umask says, not only by the one who ran it.
    modes = {stat.S_IMODE(os.stat(f"runs/a/{name}").st_mode) for name in ("result.json", "model.safetensors")}
    umask = os.umask(0)
    os.umask(umask)
    assert modes == {0o666 & ~umask}


def test_the_recorded_config_repeats_the_run_and_options_win_over_it():
    first = answer(*QUICK, "--out", "a", "--threshold", 0.5, "--standardize", "0.3:0.25")
    assert "pixels: less 0.3, divided by 0.25" in Path("a/statement.md").read_text()
    again = answer("train", "--config", "a/config.toml", "--out", "b")
    assert {**again, "run_dir": "a"} == first
    assert Path("a/model.safetensors").read_bytes() == Path("b/model.safetensors").read_bytes()
    assert Path("a/config.toml").read_text() == Path("b/config.toml").read_text()
    other = answer("train", "--config", "a/config.toml", "--out", "c", "--seed", 8, "--epsilon", "inf")
    assert (other["seed"], other["noise_multiplier"]) == (8, 0)
    recorded = tomllib.loads(Path("c/config.toml").read_text())
    assert (recorded["epsilon"], recorded["model"]) == (math.inf, "linear")
    assert recorded["method_options"] == {"threshold": 0.5, "normalise": False}
    assert recorded["standardize"] == [0.3, 0.25]
    assert "noise_multiplier" not in recorded


def test_without_privacy_epsilon_is_null():
    result = answer("train", "--model", "linear", "--epsilon", "inf", "--epochs", 2, "--seed", 0)
    assert (result["epsilon"], result["private"], result["accountant"]) == (None, False, "none")
    assert result["accuracy"] > 0.5
    assert "without privacy" in Path(f"{result['run_dir']}/statement.md").read_text()


def test_people_see_progress_on_stderr_and_a_summary_on_stdout():
    result = run(*QUICK, "--out", "a")
    assert result.exit_code == 0
    assert "epoch 1/1" in result.stderr
    assert "epoch" not in result.stdout
    for part in ("accuracy", "epsilon = ", "delta = 1e-05", "rdp accountant", "a/statement.md"):
        assert part in result.stdout


def test_run_folders_are_never_overwritten():
    os.mkdir("taken")
    assert "exists already" in refused(*QUICK, "--out", "taken")
    first, second = (answer(*QUICK)["run_dir"] for _ in range(2))
    assert first != second
    assert re.fullmatch(r"runs/\d{8}-\d{6}-digits-fixed(-2)?", second)
    Path("file").touch()
    assert "cannot be made" in refused(*QUICK, "--out", "file/run")


def test_a_failed_run_keeps_its_folder_only_if_something_was_spent(monkeypatch):
    def nothing_spent(*_, **__):
        raise BudgetExhausted("none left")

    def half_way(*_, ledger, **__):
        ledger.write_text("{}\n")
        raise RuntimeError("lost")

    monkeypatch.setattr(clipwise.training.execute, "fit", nothing_spent)
    assert refused(*QUICK, "--out", "a", code=1) == "none left"
    monkeypatch.setattr(clipwise.training.execute, "fit", half_way)
    result = run(*QUICK, "--out", "a", "--json")
    assert result.exit_code == 1
    assert strict(result.stdout)["kind"] == "RuntimeError"
    assert "--debug" in strict(result.stdout)["error"]
    kept = json.loads(Path("a/result.json").read_text())
    assert (kept["error"], kept["kind"]) == ("lost", "RuntimeError")
    assert kept["ledger_head"] == hashlib.sha256(b"{}").hexdigest()
    assert {"ledger.jsonl", "config.toml"} <= set(os.listdir("a"))

    def stopped(*_, ledger, **__):
        ledger.write_text("{}\n")
        raise KeyboardInterrupt

    monkeypatch.setattr(clipwise.training.execute, "fit", stopped)
    result = run(*QUICK, "--out", "c", "--json")
    assert result.exit_code == 130
    assert strict(result.stdout)["error"].startswith("interrupted")
    assert json.loads(Path("c/result.json").read_text())["error"].startswith("interrupted")

    monkeypatch.setattr(clipwise.training.execute, "fit", half_way)
    debugged = run(*QUICK, "--out", "b", "--debug")
    assert debugged.exit_code == 1
    assert "Traceback" in debugged.stderr
    assert run("account", "--delta", 5, "--debug").exit_code == 2  # as without it


def test_a_run_that_diverges_keeps_what_it_has_and_says_why(monkeypatch):
    plain = clipwise.training.execute.fit

    def diverges(model, *args, on_end, **options):
        def end(done):
            next(model.parameters()).data.fill_(math.inf)
            return on_end(done)

        return plain(model, *args, on_end=end, **options)

    monkeypatch.setattr(clipwise.training.execute, "fit", diverges)
    result = run(*QUICK, "--out", "a")
    assert result.exit_code == 1
    assert "no longer finite" in result.stderr
    assert {"model.safetensors", "statement.md", "ledger.jsonl", "metrics.jsonl"} <= set(os.listdir("a"))


def test_no_words_and_json_before_the_command():
    assert "Usage" in run().stdout
    numbers = ("account", "--sample-rate", 0.1, "--steps", 3, "--noise-multiplier", 1, "--delta", 1e-5)
    assert strict(run("--json", *numbers).stdout) == answer(*numbers)


def test_absurd_numbers_are_refused():
    plain = ("account", "--sample-rate", 0.1, "--delta", 1e-5)
    assert "noise_multiplier=1e+300" in refused(*plain, "--steps", 3, "--noise-multiplier", 1e300)
    assert "noise_multiplier=1e-300" in refused(*plain, "--steps", 3, "--noise-multiplier", 1e-300)
    assert "steps=" in refused(*plain, "--steps", 10**20, "--noise-multiplier", 1)
    assert "seed=" in refused(*QUICK, "--seed", 10**25)


def test_a_config_file_may_name_the_threshold():
    Path("c.toml").write_text("threshold = 0.5\n")
    assert answer(*QUICK, "--config", "c.toml", "--out", "a")["method"] == "fixed"
    assert tomllib.loads(Path("a/config.toml").read_text())["method_options"]["threshold"] == 0.5


def test_a_ledger_whose_end_was_cut():
    """Of a finished run the manifest asks for a closing line, and the statement names one before it; of one that was stopped
    the result does; else the end is not vouched for."""
    run(*QUICK, "--out", "a")
    for name in ("b", "c"):
        shutil.copytree("a", name)
    lines = Path("a/ledger.jsonl").read_bytes().splitlines(keepends=True)
    for name in ("b", "c"):
        Path(name, "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
        assert "cut off" in refused("ledger", name, code=1)
        Path(name, ".ledger.jsonl.head").unlink()  # by whoever cut it, say
    assert "cut off" in refused("ledger", "b", code=1)
    assert "cut off" in refused("report", "b", code=1)
    Path("b/manifest.json").unlink()
    assert "manifest.json is missing" in refused("report", "b", code=1)
    Path("b/ledger.jsonl").write_bytes(b"".join(lines[:2]))
    assert "cut off" in refused("ledger", "b", code=1)
    assert answer("ledger", "a")["end_checked"]
    for name in ("statement.md", "result.json", "manifest.json"):
        Path("c", name).unlink()
    assert not answer("ledger", "c")["end_checked"]
    assert "would not show" in run("ledger", "c").stdout
    Path("c/result.json").write_text(json.dumps({"error": "x", "kind": "y", "ledger_head": "0" * 64}))
    assert "cut off" in refused("ledger", "c", code=1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--epsilon", 0), "epsilon=0.0"),
        (("--epsilon", -3), "epsilon=-3.0"),
        (("--epsilon", "nan"), "epsilon=nan"),
        (("--epsilon", 3, "--noise-multiplier", 1), "leave one out"),
        (("--noise-multiplier", -1), "noise_multiplier=-1.0"),
        (("--delta", 0), "delta=0.0"),
        (("--delta", 1), "delta=1.0"),
        (("--delta", 0.001), "1 / 1437"),
        (("--method", "nope"), "method='nope'"),
        (("--data", "nope"), "data='nope'"),
        (("--data", "gone.csv"), "data='gone.csv' is not a file"),
        (("--model", "nope"), "model='nope'"),
        (("--threshold", 0), "threshold=0.0"),
        (("--threshold", "nan"), "threshold=nan"),
        (("--method-option", "bogus=1"), "bogus=1"),
        (("--method-option", "threshold"), "NAME=VALUE"),
        (("--method-option", "threshold=big"), "threshold='big'"),
        (("--range", "1"), "LOW:HIGH"),
        (("--standardize", "0.1307"), "0.1307:0.3081"),
        (("--standardize", ""), "0.1307:0.3081"),
        (("--standardize", "0.5:0.25", "--model", "autoencoder"), "leave it out"),
        (("--range", "0:1"), "fixed data set"),
        (("--label", "y"), "fixed data set"),
        (("--epochs", 0), "epochs=0"),
        (("--batch", 2000), "batch=2000"),
        (("--optimizer", "lbfgs"), "optimizer='lbfgs'"),
        (("--config", "gone.toml"), "cannot be read"),
    ],
)
def test_bad_training_arguments(words, message):
    assert message in refused("train", *words)


def test_config_file_with_an_unknown_key():
    Path("a.toml").write_text("epslion = 3\n")
    assert "a.toml is not an option; did you mean 'epsilon'" in refused("train", "--config", "a.toml")


def test_own_csv_and_npz():
    rows = "".join(f"{i % 7},{i % 100},{i % 2}\n" for i in range(200))
    Path("own.csv").write_text("a,b,kind\n" + rows)
    quick = ("--method", "fixed", "--noise-multiplier", 2, "--epochs", 1, "--accountant", "rdp", "--seed", 0)
    assert "name the label column" in refused("train", "--data", "own.csv", *quick)
    result = answer("train", "--data", "own.csv", "--label", "kind", "--range", "a=0:7", "--range", "0:100", *quick)
    assert result["model"] == "mlp"
    assert result["steps"] in (4, 5)  # batches are a quarter of the training part, rounded down
    recorded = tomllib.loads(Path(f"{result['run_dir']}/config.toml").read_text())
    assert recorded["ranges"] == {"a": [0.0, 7.0], "*": [0.0, 100.0]}
    assert recorded["data"] == os.path.abspath("own.csv")
    assert "treated as public" in Path(f"{result['run_dir']}/statement.md").read_text()

    np.savez("own.npz", x=np.zeros((40, 12, 12), np.float32), y=np.arange(40) % 3)
    assert answer("train", "--data", "own.npz", *quick)["model"] == "cnn"
    np.savez("table.npz", x=np.zeros((40, 12), np.float32), y=np.arange(40) % 3)
    assert "use model='mlp'" in refused("train", "--data", "table.npz", "--model", "cnn", *quick)


def test_a_private_number_of_records():
    """From the command line, and from the config that it leaves; nothing that is written names the exact number."""
    x = np.random.RandomState(0).rand(437, 4).astype(np.float32)
    np.savez("own.npz", x=x, y=np.arange(437) % 2)
    run = ("train", "--data", "own.npz", "--size", "private", "--epsilon", 3, "--epochs", 1, "--accountant", "rdp")
    assert "give delta" in refused(*run, "--batch", 50)
    assert "give batch" in refused(*run, "--delta", 1e-4)
    assert "size='private' and sample_rate" in refused(*run, "--delta", 1e-4, "--batch", 50, "--sample-rate", 0.1)
    result = answer(*run, "--delta", 1e-4, "--batch", 50, "--test-fraction", 0)
    assert 2.5 < result["epsilon"] <= 3
    assert "private: a count with noise" in Path(f"{result['run_dir']}/statement.md").read_text()
    assert tomllib.loads(Path(f"{result['run_dir']}/config.toml").read_text())["size"] == "private"
    config = f"{result['run_dir']}/config.toml"
    more = [answer("train", "--config", config, "--out", f"again-{i}")["sample_rate"] for i in range(3)]
    # Counted anew each time: all four alike, or all exact, by a chance of one in 10^4
    assert len({result["sample_rate"], *more}) > 1


def test_a_record_with_nan_does_not_stop_the_run():
    x = np.random.RandomState(0).rand(40, 5).astype(np.float32)
    x[:3] = [[np.nan], [np.inf], [1e38]]
    np.savez("own.npz", x=x, y=np.arange(40) % 2)
    result = answer("train", "--data", "own.npz", "--noise-multiplier", 1, "--epochs", 2, "--accountant", "rdp")
    weights = load_file(f"{result['run_dir']}/model.safetensors")
    assert all(np.isfinite(value).all() for value in weights.values())


def in_process(*words):
    return subprocess.run([sys.executable, "-m", "clipwise.cli", *map(str, words)], capture_output=True, text=True)


def test_as_a_process():
    done = in_process(*QUICK, "--json")
    assert done.returncode == 0, done.stderr
    assert set(strict(done.stdout)) >= KEYS
    failed = in_process("train", "--epsilon", -1)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "epsilon=-1.0" in failed.stderr


@pytest.mark.parametrize(
    "words", [["--version"], ["train", "--help"], ["data"], ["account", "--noise-multiplier", "1", *map(str, RATE)]]
)
def test_what_needs_no_torch_does_not_import_it(words):
    code = (
        "import sys, clipwise.cli\n"
        f"sys.argv = ['clipwise', *{words!r}]\n"
        "try: clipwise.cli.main()\n"
        "except SystemExit as end: sys.exit(end.code or int('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
