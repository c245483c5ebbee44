"""Figures hold what the lines hold; drawings are well-formed, escaped, and place their points where the numbers are."""

import itertools
import json
import math
import re
import xml.etree.ElementTree as ET

import pytest

from clipwise.lab.report import svg
from clipwise.lab.report.bars import Bar, bars_png, in_words
from clipwise.lab.report.figures import Figure, Point, Series, Target, run_figures, thinned
from clipwise.lab.report.plots import png
from clipwise.lab.report.study_figures import _point, _spread, study_figures
from clipwise.lab.study import About
from clipwise.proportion import wilson

LINES = [
    {"epoch": 1, "step": 3, "accuracy": 0.5, "lr": 0.1, "epsilon": 1.5, "threshold": 2.0, "thresholds": [1.0, 4.0]},
    {"epoch": 2, "step": 6, "accuracy": 0.8, "lr": 0.1, "epsilon": 2.5, "threshold": 4.0, "thresholds": [2.0, 5.0]},
]


def by_name(lines, **options):
    return {figure.name: figure for figure in run_figures(lines, **options)}


def test_every_number_has_a_figure_over_steps():
    figures = by_name([*LINES, {"step": 9, "drift_of_it": 7}], target_epsilon=3.0)
    assert list(figures) == ["epsilon", "accuracy", "threshold", "lr", "drift-of-it"]
    assert figures["epsilon"].series == (Series("epsilon", (Point(3, 1.5), Point(6, 2.5))),)
    assert figures["epsilon"].target == Target("target", 3.0)
    assert [s.label for s in figures["threshold"].series] == ["threshold C", "thresholds 0", "thresholds 1"]
    assert figures["threshold"].series[2].points == (Point(3, 4.0), Point(6, 5.0))
    assert figures["drift-of-it"].series[0].points == (Point(9, 7.0),)


def test_what_is_known_by_step_is_drawn_by_step():
    path = [{"step": i, "threshold": float(i), "lr": 0.1} for i in range(1, 7)]
    figures = {figure.name: figure for figure in run_figures(LINES, path)}
    assert [p.x for p in figures["threshold"].series[0].points] == [1, 2, 3, 4, 5, 6]
    assert [p.x for p in figures["epsilon"].series[0].points] == [3, 6]


def test_what_is_no_finite_number_is_left_out():
    odd = {"step": 1, "a": None, "b": True, "c": "text", "d": math.inf, "e": 10**400, "f": {"g": 1}, "h": math.nan}
    assert run_figures([odd]) == []
    assert run_figures([]) == []


def test_without_steps_epochs_and_then_lines_count():
    assert run_figures([{"epoch": 2, "lr": 1.0}])[0].series[0].points == (Point(2, 1.0),)
    assert run_figures([{"lr": 1.0}, {"lr": 2.0}])[0].series[0].points == (Point(1, 1.0), Point(2, 2.0))


def test_wilson_against_published_values():
    """Newcombe 1998, Table I: 81 of 263 gives .2553 to .3662, 0 of 20 gives 0 to .1611, 29 of 29 gives .8830 to 1."""
    for right, size, low, high in ((81, 263, 0.2553, 0.3662), (0, 20, 0, 0.1611), (29, 29, 0.8830, 1)):
        assert wilson(right / size, size) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))
    assert wilson(1.2, 10) == (None, None)
    (figure,) = run_figures([{"step": 1, "accuracy": 81 / 263}], test_size=263)
    assert figure.series[0].points[0].low == pytest.approx(0.2553, abs=5e-5)
    assert "263" in figure.note
    assert run_figures([{"step": 1, "accuracy": 0.5}])[0].series[0].points[0].low is None


def test_names_of_files_are_safe_and_distinct():
    figures = run_figures([{"step": 1, "../../etc": 1, "..-..-etc": 2, "é": 3, "": 4}])
    assert [figure.name for figure in figures] == ["etc", "etc-2", "value", "value-2"]


def test_thinned_keeps_ends_and_extremes():
    points = [Point(i, math.sin(i)) for i in range(10_000)]
    points[4321] = Point(4321, 50.0)
    kept = thinned(points)
    assert len(kept) < 810
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert points[4321] in kept
    assert kept == sorted(kept)
    assert thinned(points[:100]) == points[:100]


def drawn(figure):
    return ET.fromstring(svg.draw(figure, standalone=True))


def test_points_stand_where_the_axis_says():
    """Marks lie on the straight line through the labelled ticks."""
    root = drawn(by_name(LINES, target_epsilon=3.0)["epsilon"])
    space = "{http://www.w3.org/2000/svg}"
    labels = {float(t.text): float(t.get("y")) for t in root.iter(space + "text") if t.get("text-anchor") == "end"}
    y0, per_unit = labels[0.0], labels[1.0] - labels[0.0]
    marks = [float(c.get("cy")) for c in root.iter(space + "circle")]
    assert marks == [pytest.approx(y0 + 1.5 * per_unit, abs=0.11), pytest.approx(y0 + 2.5 * per_unit, abs=0.11)]
    (target,) = [p.get("d") for p in root.iter(space + "path") if p.get("class") == "target" and "H" in p.get("d")]
    assert float(re.search(r" ([\d.]+)H", target)[1]) == pytest.approx(y0 + 3 * per_unit, abs=0.11)


def test_a_wide_span_is_drawn_on_a_log_scale():
    (figure,) = run_figures([{"step": i, "threshold": 10.0**i} for i in range(1, 5)])
    assert figure.log
    marks = [float(c.get("cy")) for c in drawn(figure).iter("{http://www.w3.org/2000/svg}circle")]
    gaps = [a - b for a, b in itertools.pairwise(marks)]
    assert gaps == [pytest.approx(gaps[0], abs=0.2)] * 3


@pytest.mark.parametrize(
    "values",
    [[0.0], [1.0], [-3.0, -3.0], [1e-12, 1e12], [5e-324, 1.0], [1e300, -1e300], [0.1, 0.1 + 1e-12], [0.0, 0.0]],
)
def test_any_values_can_be_drawn(values):
    (figure,) = run_figures([{"step": i, "x": value} for i, value in enumerate(values)])
    numbers = re.findall(r"nan|inf", svg.draw(figure))
    assert not numbers
    assert len(json.loads(svg.cursor_points(figure))) == len(values)
    assert png(figure).startswith(b"\x89PNG")


def test_text_is_escaped():
    nasty = "</svg><script>alert(1)</script>\"'&$x"
    figure = Figure(
        name="n", title=nasty, x_label=nasty, y_label=nasty, series=(Series(nasty, (Point(0, 1),)),) * 2, note=nasty
    )
    text = svg.draw(figure, standalone=True)
    assert "<script" not in text
    assert ET.fromstring(text).get("aria-label").startswith(nasty)
    assert png(figure)


def test_alt_text_says_what_is_seen():
    assert by_name(LINES)["lr"].alt() == "Learning rate: lr is 0.1 throughout."
    assert by_name(LINES, target_epsilon=3.0)["epsilon"].alt() == (
        "Privacy spent: epsilon goes from 1.5 to 2.5 over step 3 to 6; target 3."
    )
    peak = Series("fixed", (Point(0.1, 0.7), Point(3, 0.9), Point(10, 0.8)))
    figure = Figure(name="n", title="Sweep", x_label="threshold", y_label="y", series=(peak,), percent=True)
    assert figure.alt() == "Sweep: fixed goes from 70.00 % to 90.00 % at 3 and to 80.00 % over threshold 0.1 to 10."


@pytest.mark.parametrize(("seeds", "said"), [((1, 1), ""), ((1, 3), "bars"), ((3, 3), "bands")])
def test_a_studys_picture_says_what_is_drawn_around_its_points(seeds, said):
    points = tuple(_point(float(x), [0.5, 0.6, 0.7][:count]) for x, count in enumerate(seeds))
    assert _spread([Series("fixed", points)]).partition(":")[0] == said


def test_a_picture_has_a_line_for_each_schedule_and_the_papers_figures_as_marks():
    """Runs of one method with constant and with decaying noise are two lines, never one mean with a deviation."""
    names = ("title", "source", "differs", "tuning", "command")
    about = About(
        name="n",
        minutes=1,
        trials=(),
        published={"C = 1": {"2.8": 59.07}, "C = 5": {"2.8": 84.29}},
        picture="threshold",
        keyed="noise",
        **dict.fromkeys(names, ""),
    )
    lines = [
        {"data": "mnist", "model": "cnn", "method": "fixed", "variant": variant, "accuracy": accuracy}
        | {
            "target_epsilon": None,
            "asked_noise_multiplier": 2.8,
            "asked_schedule": schedule,
            "asked_method_options": {"threshold": threshold},
        }
        for variant, schedule, threshold, accuracy in (
            ("C = 1", "constant", 1.0, 0.8),
            ("C = 5", "constant", 5.0, 0.7),
            ("ADP, C = 1", "linear:decay=0.99", 1.0, 0.6),
        )
    ]
    (figure,) = study_figures(about, lines, [])
    assert [(s.label, [p.y for p in s.points]) for s in figure.series] == [
        ("fixed", [0.8, 0.7]),
        ("fixed, linear", [0.6]),
    ]
    assert [(p.x, p.y) for p in figure.series[0].published] == [
        (1.0, pytest.approx(0.5907)),
        (5.0, pytest.approx(0.8429)),
    ]
    assert figure.note == "diamonds: published"


def test_bars_as_a_picture_and_in_words():
    bars = [Bar("one", 90.0, 89.0, 91.0, "90.00 ± 1.00", mark=95.0), Bar("two", 10.0, 10.0, 10.0, "10.00", faint=True)]
    assert in_words("digits", bars) == "digits: one: 90.00 ± 1.00 (published 95); two: 10.00."
    alone, both = bars_png("digits", bars[:1]), bars_png("digits", bars)
    assert alone.startswith(b"\x89PNG")
    assert int.from_bytes(both[20:24]) > int.from_bytes(alone[20:24])  # a row more is higher
