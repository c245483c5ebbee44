"""From runs to rows: against figures worked by hand, on answers that were written by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from clipwise.fairness.metrics import Measure
from clipwise.lab.fairness import show
from clipwise.lab.fairness.study import WITHOUT, compare
from clipwise.lab.report.figures import Figure
from clipwise.lab.report.grouped_bars import GroupedBars
from clipwise.lab.study import make_study
from clipwise.types import BadArgument

TARGETS = np.array([0] * 4 + [1] * 10)
STUDY = {
    "title": "by hand",
    "common": {"data": "digits"},
    "grid": {"epsilon": [1, 8], "seed": [0, 1]},
    "variant": [
        {"name": "plain", "epsilon": math.inf},
        {"name": "fixed", "method": "fixed", "published_gap": {"1": 12.5}},
    ],
}


def run(folder, name, epsilon, right_of_0, right_of_1, *, names=("0", "1"), auc=0.9, clipped=(0.5, 1.0)):
    """A finished run that is right on so many of the four records of class 0 and the ten of class 1."""
    right = np.array([i < right_of_0 for i in range(4)] + [i < right_of_1 for i in range(10)])
    (folder / name).mkdir(parents=True)
    np.savez(
        folder / name / "predictions.npz",
        **{"predicted": np.where(right, TARGETS, 1 - TARGETS), "targets": TARGETS, "group class": TARGETS},
        scores=np.eye(2)[np.where(right, TARGETS, 1 - TARGETS)],
    )
    gradients = [
        {
            "group": n,
            "clipped_share": c,
            "direction_error": None if c == 1 else 10 * c,
            "kept": 1 - c / 2,
            "note": "turned",
        }
        for n, c in zip(names, (*clipped, 0.0), strict=False)
    ]
    return {
        "id": name,
        "run": name,
        "data": "digits",
        "model": "mlp",
        "variant": "plain" if epsilon is None else "fixed",
        "method": "none" if epsilon is None else "fixed",
        "target_epsilon": epsilon,
        "epsilon": epsilon,
        "accuracy": float(right.mean()),
        "auc": {"value": auc},
        "by_group": {"class": {"groups": [{"group": group} for group in names]}},
        **({} if epsilon is None else {"gradients": {"group_by": "class", "groups": gradients}}),
    }


def rows_of(folder, lines, pairs=(("0", "1"),)):
    return compare(make_study(STUDY, Path("by-hand")), lines, folder, pairs=pairs, resamples=200)


@pytest.fixture
def lines(tmp_path):
    return [
        run(tmp_path, "a", None, 4, 10),
        run(tmp_path, "b", None, 4, 8),
        run(tmp_path, "c", 1.0, 0, 9),
        run(tmp_path, "d", 1.0, 2, 8, clipped=(0.25, 0.5)),
        run(tmp_path, "e", 8.0, 4, 9),
    ]


def test_rows_by_hand(tmp_path, lines):
    plain, one, eight = rows_of(tmp_path, lines)
    assert (plain.variant, plain.epsilon, plain.runs, plain.gaps) == (WITHOUT, None, 2, ())
    assert [m.value for m in plain.by_group] == pytest.approx([1.0, 0.9])
    # Class 0: 1 - (0 + 1/2) / 2 = 3/4. Class 1: 9/10 - (9/10 + 8/10) / 2 = 1/20.
    assert [m.value for m in one.costs] == pytest.approx([0.75, 0.05])
    (gap,) = one.gaps
    assert gap.gap.value == pytest.approx(0.7)
    assert gap.published == 12.5
    assert gap.interval.low <= 0.7 <= gap.interval.high
    assert one.worst.groups == ("0", "1")
    assert one.worst.gap.value == pytest.approx(0.7)
    assert (one.worst_group[0], one.worst_group[1].value) == ("0", 0.25)
    assert one.accuracy[0] == pytest.approx(19 / 28)
    assert eight.gaps[0].gap.value == pytest.approx(0.0)
    assert eight.gaps[0].published is None
    json.dumps([row.to_dict() for row in (plain, one, eight)], allow_nan=False)
    # Scores of 0 and 1: a run's area is the mean of its two accuracies. (0, 9) and (2, 8): 0.45 and 0.65.
    low, high, _ = one.auc_interval
    assert 0.3 < low < 0.55 < high < 0.85


def test_gradients_are_averaged_over_the_runs(tmp_path, lines):
    plain, one, _ = rows_of(tmp_path, lines)
    assert plain.gradients == ()
    first, second = one.gradients
    assert first.clipped_share == (Measure(0.375), 0.25, 0.5)
    assert first.direction_error.mean.value == pytest.approx(3.75)
    assert second.clipped_share.mean.value == pytest.approx(0.75)
    assert second.direction_error.mean == Measure(None, "turned")  # one of the runs has none
    assert one.to_dict()["gradients_by_group"]["0"]["kept"] == {"value": 0.8125, "range": [0.75, 0.875]}
    charts = {chart.name: chart for chart in show.to_bars(rows_of(tmp_path, lines))}
    assert set(charts) == {"clipped-share", "direction-error", "kept"}
    share = charts["clipped-share"]
    assert share.title.endswith("at epsilon 8")  # the middle one of two, the later
    assert (share.categories, [s.label for s in share.series]) == (("fixed",), ["0", "1"])
    assert share.series[0].bars[0].value == 0.5
    assert charts["direction-error"].series[1].bars[0] is None
    table = show.to_markdown(make_study(STUDY, Path("x")), [plain, one], "c", "class", {"a.png": "a [b]"})
    assert "| fixed | 1 | 0 | 37.50 | 3.75 | 81.25 | 75.00 |" in table
    assert "| fixed | 1 | 1 | 75.00 | none: turned | 62.50 | 5.00 |" in table
    assert "![a (b)](a.png)" in table
    del lines[2]["gradients"]  # a run of another version
    assert rows_of(tmp_path, lines)[1].gradients == ()


def test_table_and_pictures(tmp_path, lines):
    rows = rows_of(tmp_path, lines)
    table = show.to_markdown(make_study(STUDY, Path("by-hand")), rows, "clipwise fairness", "class")
    line = next(text for text in table.splitlines() if text.startswith("| fixed | 1 |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[2] == "2"
    assert cells[3].startswith("67.86 ± ")
    assert cells[4].startswith("0.9000 (")
    assert cells[5:7] == ["25.00", "85.00"]
    assert cells[7].startswith("70.00 (")
    assert cells[8] == "12.5"
    assert cells[9].endswith("0 pays more than 1")
    figures = {figure.name: figure for figure in show.to_figures(rows)}
    assert set(figures) == {"gap-1", "gap-largest", "lowest-group"}
    (series,) = figures["gap-1"].series
    assert (series.label, [p.x for p in series.points]) == ("fixed", [1.0, 8.0])
    assert [p.y for p in series.points] == pytest.approx([0.7, 0.0])
    assert figures["lowest-group"].target.y == pytest.approx(0.9)


def test_a_group_without_test_records_is_named(tmp_path):
    lines = [run(tmp_path, n, e, 3, 9, names=("0", "1", "2")) for n, e in (("a", None), ("b", 1.0))]
    rows = rows_of(tmp_path, lines, [("0", "2")])
    assert rows[1].gaps[0].gap == (None, "group 2: the group has no members")
    assert rows[1].worst.gap.value == 0.0
    table = show.to_markdown(make_study(STUDY, Path("by-hand")), rows, "clipwise fairness", "class")
    assert "none: group 2: the group has no members" in table
    assert {figure.name for figure in show.to_figures(rows)} == {"gap-largest", "lowest-group"}


def test_an_auc_that_is_none_stays_none(tmp_path):
    line = run(tmp_path, "a", None, 4, 9)
    line["auc"] = {"value": None, "note": "a score is not finite"}
    (row,) = rows_of(tmp_path, [line])
    assert row.auc == (None, "a score is not finite")
    assert "none: a score is not finite" in show.to_markdown(make_study(STUDY, Path("x")), [row], "c", "class")


def test_refused(tmp_path, lines):
    with pytest.raises(BadArgument, match="without privacy"):
        rows_of(tmp_path, lines[2:])
    with pytest.raises(BadArgument, match="'9' is no group"):
        rows_of(tmp_path, lines, [("0", "9")])
    (tmp_path / "c" / "predictions.npz").write_bytes(b"torn")
    with pytest.raises(BadArgument, match=r"predictions\.npz"):
        rows_of(tmp_path, lines)
    (tmp_path / "c" / "predictions.npz").unlink()
    with pytest.raises(BadArgument, match=r"predictions\.npz"):
        rows_of(tmp_path, lines)


def test_one_epsilon_is_drawn_as_bars(tmp_path):
    lines = [run(tmp_path, n, e, 3, 9) for n, e in (("a", None), ("b", 1.0))]
    one, several = (
        [chart for chart in show.to_charts(rows_of(tmp_path, some))]
        for some in (lines, [*lines, run(tmp_path, "c", 8.0, 3, 9)])
    )
    assert {type(chart) for chart in one} == {GroupedBars}
    assert {type(chart) for chart in several} == {Figure}
    lowest = next(chart for chart in one if chart.name == "lowest-group")
    assert lowest.categories[-1] == "without privacy"
    assert "fixed: " in lowest.alt()
