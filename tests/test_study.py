"""Studies: from a file to a table, cut and gone on, and what is refused before the first run."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from clipwise.cli import app
from clipwise.data.names import NAMES
from clipwise.lab.report.study_report import write_study_report
from clipwise.lab.results import append_line, read_results
from clipwise.lab.study import Trial, Watcher, read_study, run_study, summarise, to_markdown
from clipwise.training.config import make_config
from clipwise.training.options import TrainConfig
from clipwise.types import BadArgument

TWO_BY_TWO = """
title = "small"
[common]
data = "digits"
model = "linear"
epochs = 1
[grid]
epsilon = [1, 8]
seed = [0, 1]
[[variant]]
name = "fixed"
method = "fixed"
published = { "8" = 91.5 }
[[variant]]
name = "plain"
epsilon = inf
[quick]
variants = ["plain"]
grid = { seed = [0] }
"""


def written(path, text=TWO_BY_TWO):
    file = path / "small.toml"
    file.write_text(text)
    return file


class Heard(Watcher):
    def __init__(self):
        self.starts, self.beginnings, self.outcomes = [], [], []

    def start(self, done):
        self.starts.append(len(done))

    def began(self, trial):
        self.beginnings.append(trial)

    def ended(self, outcome):
        self.outcomes.append(outcome)


def run(study, folder, jobs=2):
    heard = Heard()
    lines, failures = run_study(study, folder, jobs=jobs, watcher=heard)
    assert sorted(t.id for t in heard.beginnings) == sorted(o.trial.id for o in heard.outcomes)
    return lines, failures, heard.outcomes, heard.starts


def test_the_grid_is_every_combination_point_by_point_and_a_variant_may_override_it(tmp_path):
    study = read_study(written(tmp_path))
    seen = [(t.variant, t.config.epsilon, t.config.seed) for t in study.trials]
    first, second, *rest = [("fixed", e, s) for e in (1.0, 8.0) for s in (0, 1)]
    assert seen == [first, ("plain", float("inf"), 0), second, ("plain", float("inf"), 1), *rest]
    assert len({t.id for t in study.trials}) == 6
    assert [t.variant for t in read_study(written(tmp_path), quick=True).trials] == ["plain"]


def test_several_grids_add_up_and_quick_takes_the_first(tmp_path):
    two = "[[grid]]\nepsilon = [1, 8]\nseed = [0]\n[[grid]]\nepsilon = [8]\nseed = [1, 2]\n"
    file = written(tmp_path, TWO_BY_TWO.replace("[grid]\nepsilon = [1, 8]\nseed = [0, 1]\n", two))
    seen = [(t.variant, t.config.epsilon, t.config.seed) for t in read_study(file).trials]
    inf = float("inf")
    assert seen == [
        *(("fixed", 1.0, 0), ("plain", inf, 0), ("fixed", 8.0, 0)),
        *(("fixed", 8.0, 1), ("plain", inf, 1), ("fixed", 8.0, 2), ("plain", inf, 2)),
    ]
    assert [(t.variant, t.config.seed) for t in read_study(file, quick=True).trials] == [("plain", 0)]


def test_runs_resumes_and_makes_a_table(tmp_path):
    study = read_study(written(tmp_path))
    lines, failures, outcomes, starts = run(study, tmp_path / "out")
    assert not failures
    assert starts == [0]
    assert len(lines) == len(outcomes) == 6
    results = tmp_path / "out" / "results.jsonl"
    before = results.read_bytes()
    assert run(study, tmp_path / "out")[2:] == ([], [6])  # nothing left to do
    assert results.read_bytes() == before

    # One line lost, another torn by a crash, and a folder that was left half done: just these two run again.
    kept = before.splitlines(keepends=True)
    results.write_bytes(b"".join(kept[:4]) + kept[4][:20])
    lost = [json.loads(line)["id"] for line in kept[4:]]
    again = run(study, tmp_path / "out")
    assert {outcome.trial.id for outcome in again[2]} == set(lost)
    assert {line["id"]: line["accuracy"] for line in again[0]} == {line["id"]: line["accuracy"] for line in lines}
    assert len(read_results(results)) == 6

    about = study.about("clipwise study small.toml")
    cells = summarise(about, again[0])
    assert [(c.variant, c.at, len(c.accuracies)) for c in cells] == [
        ("fixed", 1.0, 2),
        ("fixed", 8.0, 2),
        ("plain", None, 2),
    ]
    assert cells[0].spent <= 1.0
    assert cells[2].spent is None
    table = to_markdown(about, again[0])
    assert f"{cells[1]} (published 91.5)" in table
    assert f"| plain |  |  | {cells[2]} |" in table
    assert "Squared error" not in table
    rebuilt = {
        **again[0][0],
        "accuracy": None,
        "test_loss": 0.0305,
        "model": "autoencoder",
    }  # has an error, no accuracy
    assert (
        f"| digits, autoencoder | {rebuilt['variant']} | epsilon {rebuilt['target_epsilon']:g} | 0.0305 |"
        in to_markdown(about, [rebuilt])
    )

    about.write(tmp_path / "out")
    append_line(results, {**again[0][0], "id": "of an earlier version of the file", "accuracy": 0.123456})
    drawn = write_study_report(tmp_path / "out")
    page = drawn.page.read_text()
    assert "0.123456" not in page
    for line in again[0]:
        assert f'<td class="number">{line["accuracy"]}</td>' in page
    assert [path.name for path in drawn.pictures] == ["digits-linear.png"]
    for cell in cells:
        assert f"{cell.variant}: {cell}" in page

    words = ("study", written(tmp_path), "--out", tmp_path / "out", "--publish", tmp_path / "docs")
    said = CliRunner().invoke(app, [str(word) for word in words])
    assert said.exit_code == 0, said.output
    published = {path.name: path.read_bytes() for path in (tmp_path / "docs").iterdir()}
    assert published.keys() == {"small.md", "small.jsonl", "small-digits-linear.png"}
    assert [json.loads(line) for line in published["small.jsonl"].splitlines()] == again[0]
    assert published["small-digits-linear.png"] == drawn.pictures.popitem()[0].read_bytes()
    shown = published["small.md"].decode()
    assert f"{cells[1]} (published 91.5)" in shown
    assert "](small-digits-linear.png)" in shown


SHORT_AND_LONG = """
[common]
data = "digits"
model = "linear"
epsilon = inf
seed = 0
[[variant]]
name = "short"
epochs = 1
[[variant]]
name = "long"
epochs = 100000
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_study_leaves_results_and_no_process(tmp_path, how):
    """Also where nothing could clean up after itself: the runs end with the study."""
    file, out = written(tmp_path, SHORT_AND_LONG), tmp_path / "o"
    _, long = read_study(file).trials
    command = [sys.executable, "-m", "clipwise.cli", "study", str(file), "--out", str(out), "--jobs", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        assert _within(120, (out / "runs" / long.id / "metrics.jsonl").exists)  # it has trained for an epoch
        process.send_signal(how)
        process.wait(60)
        assert [line["variant"] for line in read_results(out / "results.jsonl")] == ["short"]
        assert _within(60, lambda: not _lives(process.pid))  # no run is left behind
    finally:
        if _lives(process.pid):
            os.killpg(process.pid, signal.SIGKILL)


def _within(seconds, condition):
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return met


def _lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_failure_is_told_and_the_others_go_on(tmp_path):
    text = TWO_BY_TWO.replace('name = "plain"\nepsilon = inf', 'name = "no room"\nmethod = "auto-s"\nbatch = 100000')
    text = text[: text.index("[quick]")].replace("[1, 8]", "[8]").replace("[0, 1]", "[0]")
    lines, failures, _, _ = run(read_study(written(tmp_path, text)), tmp_path)
    assert len(lines) == 1
    assert len(failures) == 1
    assert "batch=100000" in failures[0].error
    assert len((tmp_path / "failures.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('title = "small"', "titel = 1", "titel"),
        ('title = "small"', "title = 1", "title=1"),
        ('title = "small"', 'minutes = "ten"', "minutes='ten'"),
        ('title = "small"', 'tuning_cost = "free"', "not charged"),
        ("[grid]", '[picture]\ny = "lr"\n[grid]', "picture"),
        ("epsilon = [1, 8]", "", "no epsilon"),
        ("epsilon = [1, 8]", "epsilon = [1, 8]\nnoise_multiplier = [1.0]", "both given"),
        ("seed = [0, 1]", "seed = [0, 1]\n[grid.method_options]\nthreshold = 1", r"grid\.method_options\.threshold"),
        ('name = "fixed"', 'name = "fixed, {treshold}"', "treshold"),
        ('{ "8" = 91.5 }', '{ "eight" = 91.5 }', "by epsilon"),
        ('model = "linear"', 'model = "lstm"', "lstm"),
        ('data = "digits"', 'data = "gone.csv"', "gone.csv"),
        ('data = "digits"', 'data = "no-such"', "no-such"),
        ("epsilon = [1, 8]", "epsilon = 1", r"grid\.epsilon"),
        ("seed = [0, 1]", "", "seed"),
        ('method = "fixed"', 'method = "fixd"', "fixd"),
        ('method = "fixed"', 'method = "fixed"\nmethod_options = { c = 1 }', "c=1"),
        ("epochs = 1", "epoch = 1", "epochs"),
        ('model = "linear"', 'model = "lenet"', "lenet"),
        ('variants = ["plain"]', 'variants = ["plane"]', "plane"),
        ('name = "plain"', "", "name"),
        ("[common]", "[common", "TOML"),
    ],
)
def test_bad_files_are_refused_before_anything_runs(tmp_path, old, new, match):
    assert old in TWO_BY_TWO
    with pytest.raises(BadArgument, match=match):
        read_study(written(tmp_path, TWO_BY_TWO.replace(old, new)), quick="plane" in new)


NUMBERS = "a,b,y\n" + "".join(f"{i},{i % 3},{i % 2}\n" for i in range(60))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (NUMBERS.replace("9,0,1", "9,0,1.5", 1), "integer|whole"),
        (NUMBERS.replace("9,0,1", "9,0,yes", 1), "integer|whole|number"),
        (NUMBERS.replace("9,0,1", "9,0", 1), "column|fields|cells|values"),
    ],
)
def test_a_file_of_ones_own_is_read_before_anything_runs(tmp_path, content, match):
    own = tmp_path / "own.csv"
    own.write_text(NUMBERS)
    text = TWO_BY_TWO.replace('"digits"', json.dumps(str(own)) + '\nlabel = "y"\ndelta = 1e-4')
    assert len(read_study(written(tmp_path, text)).trials) == 6
    own.write_text(content)
    with pytest.raises(BadArgument, match=match) as refused:
        read_study(written(tmp_path, text))
    assert "own.csv" in str(refused.value)


def test_records_of_the_wrong_shape_and_a_damaged_file_are_refused_first(tmp_path, monkeypatch):
    own = tmp_path / "own.npz"
    text = TWO_BY_TWO.replace('"digits"', json.dumps(str(own)) + "\ndelta = 1e-4")
    np.savez(own, x=np.zeros((40, 5), np.float32), y=np.arange(39) % 2)
    with pytest.raises(BadArgument, match=r"labels have shape \(39,\) for 40 records"):
        read_study(written(tmp_path, text))
    np.savez(own, x=np.zeros((40, 5), np.float32), y=np.arange(40) % 2)
    with pytest.raises(BadArgument, match="images"):
        read_study(written(tmp_path, text.replace('"linear"', '"cnn"')))
    monkeypatch.setenv("CLIPWISE_DATA", str(tmp_path))
    (tmp_path / "names").mkdir()
    for name in NAMES.editions[0].files:
        (tmp_path / name).write_text("Nobody\n")
    with pytest.raises(BadArgument, match=r"sha256.*put a fresh copy"):
        read_study(written(tmp_path, TWO_BY_TWO.replace('"digits"', '"names"').replace('"linear"', '"lstm"')))


def test_two_runners_on_one_folder_are_refused(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / ".lock").touch()
    with (tmp_path / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BadArgument, match="another study"):
            run(read_study(written(tmp_path)), tmp_path)


# Killed anywhere, a study goes on


ONE = """
title = "one run"
[common]
data = "digits"
model = "linear"
epochs = 2
epsilon = 3.0
accountant = "rdp"
seed = 4
method = "fixed"
[[variant]]
name = "fixed"
"""


def cut(trial, out, at):
    """The trial's run, ended by an exception after some steps, with a checkpoint every second step."""
    from clipwise.training import folder as run_folder
    from clipwise.training.execute import load_asked, make_network, train_into
    from clipwise.training.resolve import resolve

    class Cut(Exception):
        pass

    def on_step(values, _):
        if values["step"] == at:
            raise Cut

    dataset = load_asked(trial.config)
    settings = resolve(trial.config, dataset)
    folder = run_folder.create(str(out), dataset.name, settings.method)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the runs of a study have, two at once on two cores: others add in another order
    try:
        with pytest.raises(Cut):
            train_into(folder, settings, dataset, make_network(settings, dataset), every_steps=2, on_step=on_step)
    finally:
        torch.set_num_threads(threads)


def test_a_run_that_was_cut_goes_on_from_its_checkpoint_as_the_same_run(tmp_path, monkeypatch):
    from clipwise.lab.study import runner

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    study = read_study(written(tmp_path, ONE))
    (trial,) = study.trials
    (whole,), _ = run_study(study, tmp_path / "whole", jobs=2)
    cut(trial, tmp_path / "cut" / "runs" / trial.id, at=5)
    assert runner._command(trial, tmp_path / "cut")[1] == "resume"
    (again,), failures = run_study(study, tmp_path / "cut", jobs=2)
    assert not failures
    assert {**again, "seconds": 0} == {**whole, "seconds": 0}
    for name in ("model.safetensors", "metrics.jsonl"):
        found, expected = (tmp_path / folder / "runs" / trial.id / name for folder in ("cut", "whole"))
        assert found.read_bytes() == expected.read_bytes()
    # killed between the end of the run and its line: the line is written from the folder, and nothing runs again
    (tmp_path / "cut" / "results.jsonl").unlink()
    monkeypatch.setattr(runner, "forks", lambda trials, *_, **__: pytest.fail("it ran again") if trials else iter(()))
    (told,), _ = run_study(study, tmp_path / "cut", jobs=2)
    assert {**told, "seconds": 0} == {**whole, "seconds": 0}


def test_a_checkpoint_that_cannot_be_used_means_to_run_again(tmp_path):
    from clipwise.lab.study import runner

    (trial,) = read_study(written(tmp_path, ONE)).trials
    run = tmp_path / "runs" / trial.id
    cut(trial, run, at=5)
    for path in (run / "checkpoints").iterdir():
        (path / "state.json").write_text("{}")
    assert runner._command(trial, tmp_path)[1] == "train"
    assert not run.exists()


def test_a_run_on_a_file_is_known_by_the_content_of_the_file(tmp_path):
    def ids(text, seed=4):
        (tmp_path / "own.csv").write_text(text)
        described = ONE.replace('"digits"', f'"{tmp_path}/own.csv"\nlabel = "y"').replace("seed = 4", f"seed = {seed}")
        return [trial.id for trial in read_study(written(tmp_path, described), check=False).trials]

    rows = "a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40))
    first = ids(rows)
    assert first == ids(rows)
    assert first != ids(rows.replace("3,1", "4,1", 1))
    assert first != ids(rows, seed=5)


# What options are left at when nobody states them. Runs that leave one alone are known without it: if this table has to change,
# the changed option goes into _ALWAYS in clipwise/lab/study/trial.py, or old results would pass for new ones. A new option whose
# default is what was done before gets a line here and changes no id.
DEFAULTS = {
    **{"data": "digits", "method": "auto", "method_options": {}, "schedule": "constant", "sampling": "poisson"},
    **{"size": "public", "effort": "normal", "accountant": "best", "allow_unsound": False, "group_by": "class"},
    **{"lr_schedule": "none", "weight_decay": 0.0, "after": [], "unit": "one record (one row) of the training set"},
    **{"engine": "fast", "unsafe_diagnostics": False},
    **{"ranges": {}, "categories": {}, "texts": [], "dates": {}, "missing": {}, "drop": [], "learn_ranges": False},
    **{"learn_categories": [], "public_ranges": [], "public_categories": []},
    **{"image_size": [3, 32, 32], "test_fraction": 0.2, "text_length": 128},
}


def test_runs_are_known_by_what_changes_their_result_and_by_nothing_else(tmp_path):
    def id_of(**options):
        return Trial("any", make_config({"data": "digits", "epsilon": 3.0, "method": "fixed", "seed": 4, **options})).id

    known = id_of()
    words = '{"data": "digits", "epsilon": 3.0, "method": "fixed", "seed": 4}'
    assert (
        known == hashlib.sha256(words.encode()).hexdigest()[:12]
    )  # written by hand: an id of today is one of tomorrow
    stated = {"schedule": "constant", "lr_schedule": "none", "weight_decay": 0.0, "group_by": "class"}
    of_no_matter = {"out": str(tmp_path / "a"), "tensorboard": True, "max_physical_batch": 7, "unit": "a person"}
    assert known == id_of(**stated) == id_of(**of_no_matter)
    others = [{"method": "auto-s"}, {"seed": 5}, {"epsilon": 2.0}, {"weight_decay": 0.1}, {"schedule": "linear"}]
    others += [{"method_options": {"threshold": 2.0}}, {"lr": 0.1}, {"lr_schedule": "one-cycle"}, {"epochs": 3}]
    assert len({known, *(id_of(**other) for other in others)}) == 1 + len(others)


def test_the_defaults_behind_the_names_of_runs():
    fields = {name: field.get_default(call_default_factory=True) for name, field in TrainConfig.model_fields.items()}
    assert {name: value for name, value in fields.items() if value is not None} == DEFAULTS


def test_a_cut_study_is_shown_as_it_is(tmp_path):
    """--as-it-is makes table and page of the runs that have ended, and runs none."""
    file, folder = written(tmp_path, TWO_BY_TWO), tmp_path / "out"
    asked = ["study", str(file), "--out", str(folder), "--as-it-is", "--publish", str(tmp_path / "published")]
    folder.mkdir()
    refused = CliRunner().invoke(app, asked)
    assert refused.exit_code == 2
    assert "--as-it-is" in refused.output
    (first, *_) = read_study(file).trials
    line = {
        "id": first.id,
        "variant": "fixed",
        "target_epsilon": 1.0,
        "epsilon": 1.0,
        "accuracy": 0.75,
        "run": "runs/x",
    }
    append_line(folder / "results.jsonl", {**line, "data": "digits", "model": "linear", "seed": 0, "method": "fixed"})
    assert CliRunner().invoke(app, asked).exit_code == 0
    page = (tmp_path / "published" / "small.md").read_text()
    assert "1 of 6 runs" in page
    assert "75.00" in page
    assert not (folder / "runs").exists()
