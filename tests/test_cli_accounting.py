"""account and calibrate over schedules and samplings, ledger, plot-schedule and bench accounting, by the command line."""

import json
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import _in_an_empty_folder, answer, refused, run  # noqa: F401  (the fixture is used by all)

from clipwise.accounting import Ledger, PlannedRun, StepEvent, epsilon
from clipwise.lab.bench import accounting as bench_accounting
from clipwise.schedules import make_schedule

MNIST = ("--epochs", 100, "--batch", 64, "--samples", 60000)


def test_account_over_a_schedule():
    # tests/vectors/schedules.json: linear from 1.4929 on MNIST, by RDP 1.5595
    found = answer("account", "--schedule", "linear", *MNIST, "--noise-multiplier", 1.4929, "--accountant", "rdp")
    assert found["epsilon"] == pytest.approx(1.5595, rel=0.005)
    assert (found["steps"], found["levels"], found["schedule"]) == (93750, 100, "linear:decay=0.99")
    assert (found["sampling"], found["neighbours"]) == ("poisson", "add or remove one record")
    short = ("--epochs", 10, "--batch", 64, "--samples", 60000, "--noise-multiplier", 1.2)
    options = answer("account", "--schedule", "step", "--decay", 0.8, "--every", 2, *short)
    assert options == answer("account", "--schedule", "step:decay=0.8,every=2", *short)
    direct = PlannedRun(64 / 60000, 9375, make_schedule("step:decay=0.8,every=2"))
    assert options["epsilon"] == epsilon(direct.events(1.2), 1e-5).value


def test_calibrate_over_a_schedule():
    """tests/vectors/calibration.json, step: 21.4292 by RDP with other orders."""
    words = ("--schedule", "step", "--decay", 0.5, "--every", 10, *MNIST, "--accountant", "rdp")
    found = answer("calibrate", "--epsilon", 1, "--delta", 1e-5, *words)
    assert found["noise_multiplier"] == pytest.approx(21.4292, rel=0.01)
    assert 0.999 <= found["epsilon"] <= 1
    again = answer("account", *words, "--noise-multiplier", repr(found["noise_multiplier"]))
    assert again["epsilon"] == found["epsilon"]
    text = run("calibrate", "--epsilon", 1, *words).stdout
    assert "93750 steps" in text
    assert "add or remove one record" in text


def test_either_form_of_rate_and_length():
    one = answer("account", "--sample-rate", 0.01, "--steps", 500, "--noise-multiplier", 1, "--accountant", "rdp")
    other = ("account", "--batch", 10, "--samples", 1000, "--epochs", 5, "--noise-multiplier", 1)
    assert answer(*other, "--accountant", "rdp") == one


def test_sampling_is_named_and_has_its_own_bound():
    words = ("account", "--sample-rate", 256 / 50000, "--steps", 3906, "--noise-multiplier", 1.358, "--delta", 2e-5)
    fixed = answer(*words, "--sampling", "without-replacement")
    assert fixed["epsilon"] == pytest.approx(7.5, abs=0.05)  # OSO-DPSGD, see docs/claims.md
    assert (fixed["neighbours"], fixed["accountant"]) == ("replace one record", "rdp")
    shuffled = answer(*words, "--sampling", "none")
    assert shuffled["epsilon"] == epsilon([StepEvent(1.0, 1.358, 20)], 2e-5).value  # 3906 / 196 a pass
    assert "zero" in shuffled["neighbours"]
    assert "neighbours: replace one record" in run(*words, "--sampling", "without-replacement").stdout
    assert answer(*words)["epsilon"] < 1.2
    found = answer("calibrate", "--epsilon", 2, "--sample-rate", 0.01, "--steps", 99, "--sampling", "none")
    assert 1.998 <= found["epsilon"] <= 2


RATE = ("--sample-rate", 0.01, "--steps", 10)
NOISE = ("--noise-multiplier", 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("account", *NOISE), "--sample-rate (or --batch and --samples)"),
        (("account", *NOISE, "--sample-rate", 0.1), "--steps (or --epochs)"),
        (("account", *NOISE, "--batch", 10, "--steps", 10), "Missing option --samples"),
        (("account", *NOISE, "--samples", 10, "--steps", 10), "Missing option --batch"),
        (("account", *NOISE, *RATE, "--batch", 10), "both give the rate"),
        (("account", *NOISE, *RATE, "--epochs", 10), "both give the length"),
        (("account", *NOISE, "--batch", 20, "--samples", 10, "--steps", 1), "larger than samples"),
        (("account", *NOISE, *RATE, "--schedule", "cosine"), "schedule='cosine'"),
        (("account", *NOISE, *RATE, "--decay", 0.5), "--schedule"),
        (("account", *NOISE, *RATE, "--schedule", "linear", "--every", 3), "every=3"),
        (("account", *NOISE, *RATE, "--sampling", "shuffle"), "sampling='shuffle'"),
        (("account", *NOISE, *RATE, "--sampling", "without-replacement", "--accountant", "pld"), "fixed size"),
        (("account", *NOISE, "--sample-rate", 0.1, "--steps", -5), "steps=-5"),
        (("account", *NOISE, "--sample-rate", 0.1, "--epochs", 0), "epochs=0"),
        (("calibrate", "--epsilon", 1, "--batch", 0, "--samples", 10, "--epochs", 1), "batch=0"),
        (("calibrate", "--epsilon", 1), "--sample-rate"),
        (("ledger", "nowhere"), "nowhere"),
        (("plot-schedule", "linear", "--out", "a.txt"), ".png"),
        (("plot-schedule", "linear", "--out", "no/a.png"), "folder"),
        (("plot-schedule", "wavy", "--out", "a.png"), "wavy"),
        (("plot-schedule", "linear", "--out", "a.png", "--noise-multiplier", 0), "noise_multiplier"),
        (("plot-schedule", "--out", "a.png"), "Missing argument"),
        (("bench", "nonsense"), "what='nonsense'"),
        (("bench", "accounting", "--models", "cnn"), "--models"),
        (("bench", "accounting", "--markdown", "no/a.md"), "folder"),
    ],
)
def test_bad_arguments(words, message):
    assert message in refused(*words)


FACTS = {"method": "fixed", "delta": 1e-5, "target_epsilon": 2.0, "neighbours": "add or remove one record"}


@pytest.fixture
def folder():
    """A run folder whose ledger holds 40 steps of two noise levels, and a statement that names its end."""
    Path("run").mkdir()
    with Ledger.create("run/ledger.jsonl", run=FACTS) as ledger:
        for step in range(40):
            ledger.charge(step, StepEvent(0.05, 2.0 if step < 30 else 1.0), upcoming=10)
    Path("run/statement.md").write_text(f"| ledger | run/ledger.jsonl, head {ledger.head[:16]} |\n")
    return Path("run/ledger.jsonl")


def test_ledger_tells_budget_levels_and_curve(folder):
    told = answer("ledger", "run", "--delta", 1e-5, "--delta", 1e-7, "--points", 4, "--plot", "c.png")
    events = [StepEvent(0.05, 2.0, 30), StepEvent(0.05, 1.0, 10)]
    exact = [epsilon(events, delta).value for delta in (1e-5, 1e-7)]
    assert [row["epsilon"] for row in told["budget"]] == exact
    assert [row["remaining"] for row in told["budget"]] == [max(0, 2 - value) for value in exact]
    assert (told["verified"], told["sound"], told["steps_charged"], told["target_epsilon"]) == (True, True, 40, 2.0)
    assert [(row["noise_from"], row["taken"]) for row in told["levels"]] == [(2.0, 30), (1.0, 10)]
    assert [point["steps"] for point in told["curve"]] == [10, 20, 30, 40]
    assert told["curve"][-1]["epsilon"] == exact[0]
    assert told["curve"][1]["epsilon"] == epsilon([StepEvent(0.05, 2.0, 20)], 1e-5).value
    assert answer("ledger", folder, "--points", 4)["budget"] == told["budget"][:1]  # the run's own delta
    assert picture("c.png") > (500, 400)
    shown = run("ledger", "run").stdout
    for part in ("verified", "cleanly", "charged steps", "remaining", "epsilon over charged steps", "█"):
        assert part in shown


def test_ledger_with_another_budget_or_none(folder):
    assert answer("ledger", folder, "--epsilon", 50, "--points", 0)["budget"][0]["remaining"] > 40
    with Ledger.create("bare.jsonl", run={}) as ledger:
        ledger.charge(0, StepEvent(0.05, 2.0))
    assert "--delta" in refused("ledger", "bare.jsonl")
    (row,) = answer("ledger", "bare.jsonl", "--delta", 1e-5)["budget"]
    assert row["remaining"] is None
    assert "no target" in run("ledger", "bare.jsonl", "--delta", 1e-5).stdout


def edited(lines):
    return [*lines[:5], lines[5].replace(b'"noise_multiplier":2.0', b'"noise_multiplier":3.0'), *lines[6:]]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edited, "line 6: was edited"),
        (lambda lines: [*lines[:5], *lines[6:]], "line 6: does not follow"),
        (lambda lines: [*lines[:5], lines[6], lines[5], *lines[7:]], "line 6: does not follow"),
        (lambda lines: [*lines[:5], b"\n", *lines[6:]], "line 6: is not a ledger line"),
        (lambda lines: lines[:-1], "cut off its end"),  # found by the head that the statement names
        (lambda _: [], "no complete line"),
    ],
)
def test_a_touched_ledger_is_refused_by_name(folder, damage, message):
    lines = folder.read_bytes().splitlines(keepends=True)
    assert damage(lines) != lines
    folder.write_bytes(b"".join(damage(lines)))
    error = refused("ledger", "run", code=1)
    assert message in error
    assert "run/ledger.jsonl" in error


def test_a_head_of_ones_own(folder):
    head = Ledger.read(folder).head
    assert answer("ledger", folder, "--head", head, "--points", 0)["head"] == head
    assert "does not contain" in refused("ledger", folder, "--head", "0" * 64, code=1)
    assert "SHA-256" in refused("ledger", folder, "--head", "xyz")


def test_an_unsound_run_has_no_epsilon():
    with Ledger.create("bad.jsonl", run={**FACTS, "sound": False}) as ledger:
        ledger.charge(0, StepEvent(0.05, 2.0))
    told = answer("ledger", "bad.jsonl")
    assert told["sound"] is False
    assert (told["budget"][0]["epsilon"], told["budget"][0]["private"]) == (None, False)
    assert told["budget"][0]["remaining"] is None
    shown = run("ledger", "bad.jsonl").stdout
    assert "no valid guarantee" in shown
    assert "infinite" in shown


def test_a_real_run_is_told_as_it_reported():
    words = (
        "train",
        "--model",
        "linear",
        "--noise-multiplier",
        5,
        "--epochs",
        1,
        "--batch",
        500,
        "--schedule",
        "dynamic",
    )
    result = answer(*words, "--seed", 7, "--out", "a")
    told = answer("ledger", "a", "--points", 0)
    assert told["budget"][0]["epsilon"] == result["epsilon"]
    assert told["steps_taken"] == result["steps"]
    assert told["segments"][0]["run"]["schedule"] == "dynamic:decay=0.8"


def test_ledger_does_not_import_torch(folder):
    code = (
        "import sys, clipwise.cli\n"
        f"sys.argv = ['clipwise', 'ledger', {str(folder)!r}, '--plot', 'c.png']\n"
        "try: clipwise.cli.main()\n"
        "except SystemExit as end: sys.exit(end.code or int('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def picture(path):
    """Width and height of a PNG file."""
    data = Path(path).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_plot_schedule():
    words = ("plot-schedule", "all", "step:decay=0.8,every=20", "levels:1,2,by=step", "--out", "s.png")
    told = answer(*words, "--noise-multiplier", 2, "--epochs", 30, "--batch", 10, "--samples", 1000)
    assert picture("s.png") > (1000, 500)
    assert told["steps"] == 3000
    rows = {row["schedule"]: row for row in told["schedules"]}
    assert len(rows) == 9
    assert rows["step:decay=0.8,every=20"]["last"] == pytest.approx(2 * 0.8**0.5)
    assert rows["levels:1.0,2.0,by=step"]["most"] == 4
    assert (rows["constant"]["first"], rows["constant"]["last"]) == (2, 2)
    assert "step:decay=0.5,every=10" in run("plot-schedule", "step", "--out", "t.svg").stdout
    assert "<svg" in Path("t.svg").read_text()


def test_bench_accounting(monkeypatch):
    found = bench_accounting.importlib.util.find_spec
    monkeypatch.setattr(
        bench_accounting.importlib.util, "find_spec", lambda name: None if name == "prv_accountant" else found(name)
    )
    told = answer("bench", "accounting", "--quick", "--markdown", "page.md")
    rows = {(row["levels"], row["library"]): row for row in told["rows"]}
    for levels in (1, 3):
        ours, theirs = rows[levels, "clipwise"], rows[levels, "dp-accounting"]
        assert ours["epsilon"] == pytest.approx(theirs["epsilon"], rel=0.01)
        assert ours["seconds"] > 0
        assert ours["ratio"] == 1
        assert theirs["ratio"] == theirs["seconds"] / ours["seconds"]
    assert "not installed" in rows[1, "prv-accountant"]["note"]
    assert rows[1, "prv-accountant"]["epsilon"] is None
    page = Path("page.md").read_text()
    assert re.search(r"\| 3 levels x 100 steps \| dp-accounting \| \d", page)
    json.dumps(told, allow_nan=False)


def test_the_commands_of_the_docs_print_what_the_docs_say():
    page = (Path(__file__).parent.parent / "docs" / "accounting.md").read_text()
    shown = [pair for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL) for pair in block.split("$ ")[1:]]
    assert len(shown) == 7
    for command, expected in (pair.split("\n", 1) for pair in shown):
        done = run(*shlex.split(command)[1:])
        assert digits(done.stdout) == pytest.approx(digits(expected), rel=1e-5), command
        assert re.sub(NUMBER, "", done.stdout) == re.sub(NUMBER, "", expected), command
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "accounting.md", "exec"), {"__name__": "accounting"})


NUMBER = r"\d+\.?\d*(?:e-\d+)?"


def digits(text):
    return [float(number) for number in re.findall(NUMBER, text)]
