"""What `clipwise study` shows while it runs: the table on a terminal, lines in a log, and the time that is left."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from clipwise.cli.study_progress import Estimate, Progress
from clipwise.lab.study import Outcome, make_study

VALUES = {
    "title": "small",
    "common": {"data": "digits", "model": "linear"},
    "grid": {"epsilon": [1, 8], "seed": [0, 1]},
    "variant": [{"name": "fixed"}, {"name": "plain", "epsilon": float("inf")}],
}


@pytest.fixture
def study():
    return make_study(VALUES, Path("small.toml"))


def line(trial, accuracy, seconds=10.0):
    return {"id": trial.id, "accuracy": accuracy, "seconds": seconds}


def text(renderable):
    console = Console(file=io.StringIO(), width=120)
    console.print(renderable)
    return console.file.getvalue()


def cells(shown, name):
    row = next(row for row in shown.splitlines() if f"│ {name} " in row)
    return [cell.strip() for cell in row.strip("│").split("│")][1:]


def test_the_table_fills_up(study, tmp_path):
    log = io.StringIO()
    progress = Progress(study, tmp_path, 2, Console(file=log, width=120))
    one, plain, two, other, three, four = study.trials  # fixed at 1, 1, 8, 8, and plain twice
    progress.start([line(one, 0.5)])
    progress.began(two)
    progress.began(three)
    shown = text(progress.render())
    assert cells(shown, "fixed") == ["50.00 1/2 starting", "starting ·", ""]
    assert cells(shown, "plain") == ["", "", "··"]
    assert "1 done, 2 running, 3 waiting" in shown
    run = tmp_path / "runs" / two.id
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text(json.dumps({"epoch": 3, "accuracy": 0.625}) + "\n")
    assert cells(text(progress.render()), "fixed")[0] == "50.00 1/2 62.5 @3"
    progress.ended(Outcome(two, line(two, 0.75), None, 12.0))
    progress.ended(Outcome(three, None, "out of memory", 3.0))
    shown = text(progress.render())
    assert cells(shown, "fixed") == ["62.50", "failed ·", ""]
    assert "2 done, 0 running, 3 waiting, 1 failed" in shown
    # Without a terminal each run that ended has a line of its own.
    lines = log.getvalue().splitlines()
    assert lines[0] == "small: 6 runs, 1 done before, 2 at once"
    assert re.fullmatch(r"\[2/6\] fixed, epsilon 1, seed 1: 75.00% \(12 s; about \d+ s left\)", lines[1])
    assert lines[2].startswith("[3/6] fixed, epsilon 8, seed 0: failed: out of memory (3 s;")
    for trial in (four, plain, other):
        progress.ended(Outcome(trial, line(trial, 0.9), None, 12.0))
    assert log.getvalue().splitlines()[-1].endswith("all done)")
    assert plain.variant == "plain"


def test_on_a_terminal_the_table_is_drawn_and_only_failures_have_lines(study, tmp_path):
    log = io.StringIO()
    console = Console(file=log, width=120, force_terminal=True)
    with Progress(study, tmp_path, 2, console).shown() as progress:
        progress.start([])
        for place, trial in enumerate(study.trials):
            progress.began(trial)
            progress.ended(Outcome(trial, line(trial, 0.5) if place else None, None if place else "broken", 1.0))
    assert "failed: broken" in log.getvalue()
    assert "5 done, 0 running, 0 waiting, 1 failed" in log.getvalue()
    assert "[3/6]" not in log.getvalue()


def test_the_time_that_is_left(study):
    estimate = Estimate(jobs=2)
    fixed, *others = study.trials
    assert estimate.left(others, []) is None  # nothing has ended yet
    estimate.took(fixed, 20.0)
    estimate.took(fixed, 40.0)
    assert estimate.left(others[:4], []) == pytest.approx(4 * 30 / 2)
    assert estimate.left([], [(others[0], 10.0)]) == pytest.approx(20)
    assert estimate.left([], [(others[0], 100.0)]) == 0  # it takes longer than the others did
    assert estimate.left(others[:1], [(others[1], 25.0)]) == pytest.approx(30)  # the longest of them decides
