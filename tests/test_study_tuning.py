"""Studies whose epsilon pays for a search: the noise of each run, the table that says so, and the stamp of what is not paid."""

import math
from pathlib import Path

import pytest

from clipwise.accounting import StepEvent, epsilon
from clipwise.lab.report.study_report import write_study_report
from clipwise.lab.study import read_study, run_study, to_markdown
from clipwise.lab.study.shared import shared_plan
from clipwise.types import BadArgument

FILE = """
title = "paid"
tuning_cost = "charged"
[common]
data = "digits"
model = "linear"
epochs = 1
batch = 256
delta = 1e-5
[grid]
epsilon = [4]
seed = [0]
[[variant]]
name = "fixed (10)"
method = "fixed"
method_options = { threshold = 1.0 }
tuning = { strategy = "grid-rdp", candidates = 10 }
[[variant]]
name = "fixed (10, free)"
method = "fixed"
method_options = { threshold = 1.0 }
tuning = { strategy = "none", candidates = 10, uncharged = true }
[[variant]]
name = "fixed"
method = "fixed"
method_options = { threshold = 1.0 }
"""
STEPS, RATE = math.ceil(1437 / 256), 256 / 1437


def written(folder, text=FILE):
    path = folder / "paid.toml"
    path.write_text(text)
    return path


def test_each_run_gets_its_share_and_the_table_says_so(tmp_path):
    study = read_study(written(tmp_path))
    assert len({trial.id for trial in study.trials}) == 3, (
        "the same options, with and without a search, are not one trial"
    )
    lines, failures = run_study(study, tmp_path / "out", jobs=2)
    assert not failures
    paid, free, alone = lines
    # The truth from outside: ten runs at this noise cost the column's epsilon.
    together = epsilon([StepEvent(RATE, paid["noise_multiplier"], 10 * STEPS)], 1e-5).value
    assert together == pytest.approx(paid["epsilon"], rel=1e-9)
    assert 3.99 < together <= 4.0
    assert paid["epsilon_of_run"] < 2.5
    assert free["noise_multiplier"] == pytest.approx(alone["noise_multiplier"], rel=1e-3)
    assert paid["noise_multiplier"] > 1.5 * alone["noise_multiplier"]

    about = study.about("clipwise study paid.toml")
    table = to_markdown(about, lines)
    assert "The epsilon of a column is that of the whole search" in table
    shown = f"{paid['noise_multiplier']:.3f} ({paid['epsilon_of_run']:.2f})"
    assert f"| fixed (10) | grid-rdp | 10 | threshold 1 | {shown} |" in table
    assert f"| fixed (10) | {paid['seconds']:.1f} | 10 | {10 * paid['seconds']:.0f} | 1.000 |" in table
    assert (
        f"| fixed | {alone['seconds']:.1f} | 1 | {alone['seconds']:.0f} | {alone['seconds'] / paid['seconds'] / 10:.3f} |"
        in table
    )
    # What is not paid for is stamped wherever it stands.
    stamped = "fixed (10, free) (SEARCH NOT CHARGED)"
    assert free["variant"] == stamped
    about.write(tmp_path / "out")
    page = write_study_report(tmp_path / "out").page.read_text()
    for text in (table, page):
        assert stamped in text
        assert "fixed (10, free)" not in text.replace(stamped, "")


def test_the_committed_study_counts_the_candidates_of_its_source():
    study = read_study(Path(__file__).parent.parent / "studies" / "tuning_paid.toml", check=False)
    assert len(study.trials) == 37
    counted = {(t.config.method, t.share.candidates) for t in study.trials if t.share}
    assert counted == {("fixed", 10), ("quantile", 45), ("dynamic", 90), ("dc-sgd-p", 9), ("oso", 7)}
    assert {t.config.method for t in study.trials if not t.share and t.config.epsilon < math.inf} == {
        "dc-sgd-e",
        "auto-s",
    }


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('"grid-rdp", candidates = 10', '"grid", candidates = 10', "'grid' is not known"),
        ('"grid-rdp", candidates = 10', '"grid-rdp"', "does not say how"),
        ('"grid-rdp", candidates = 10', '"grid-rdp", candidates = 1', "leave tuning out"),
        ('"grid-rdp", candidates = 10', '"exponential", candidates = 10', "on all records"),
        ('"grid-rdp", candidates = 10', '"public", candidates = 10', "on all records"),
        (", uncharged = true", "", "uncharged = true"),
        ('"grid-rdp", candidates = 10', '"grid-rdp", candidates = 10, uncharged = true', "with it alone"),
        ("epsilon = [4]", "epsilon = [inf]", "no budget to share"),
        ("epsilon = [4]", "epsilon = [1e-6]", "too small"),
    ],
)
def test_what_cannot_be_shared_is_refused_before_anything_runs(tmp_path, old, new, match):
    assert old in FILE
    with pytest.raises(BadArgument, match=match):
        read_study(written(tmp_path, FILE.replace(old, new)))


def test_a_plan_is_made_once(tmp_path):
    (trial, *_) = read_study(written(tmp_path), check=False).trials
    assert shared_plan(trial) is shared_plan(trial)
