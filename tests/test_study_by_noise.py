"""Studies that state sigma_0, and those that vary options: columns, honest epsilons, names, heat maps, curves."""

import json

import pytest

from clipwise.accounting import StepEvent, epsilon
from clipwise.lab.report.figures import Point, Series
from clipwise.lab.report.heat import Heat, draw_heat, heat_png
from clipwise.lab.report.study_curves import _seen
from clipwise.lab.report.study_report import write_study_report
from clipwise.lab.study import make_study, run_study, to_markdown
from clipwise.lab.study.table import facts
from clipwise.types import BadArgument

BY_NOISE = {
    "common": {"data": "digits", "model": "linear", "epochs": 2, "batch": 144, "delta": 1e-5, "seed": 0},
    "grid": {"noise_multiplier": [4]},
    "variant": [
        {"name": "fixed, halved", "method": "fixed", "schedule": "step:decay=0.25,every=1", "published": {"4": 50.0}},
        {"name": "plain", "epsilon": float("inf")},
    ],
}


def test_a_study_by_noise_reports_what_it_costs(tmp_path):
    """Two epochs of ten steps, sigma 4 and then 2."""
    study = make_study(BY_NOISE, tmp_path / "noise.toml")
    assert (study.keyed, len(study.trials)) == ("noise", 2)
    lines, failures = run_study(study, tmp_path / "out", jobs=2)
    assert not failures
    fixed = next(line for line in lines if line["method"] == "fixed")
    rate = 144 / 1437
    honest = epsilon([StepEvent(rate, 4.0, 10), StepEvent(rate, 2.0, 10)], 1e-5).value
    assert fixed["epsilon"] == pytest.approx(honest, rel=1e-6)
    about = study.about("clipwise study noise.toml")
    table = to_markdown(about, lines)
    assert "| method | sigma_0 4 | not private |" in table
    assert f"at epsilon {honest:.2f} (published 50)" in table
    about.write(tmp_path / "out")
    page, pictures = write_study_report(tmp_path / "out")
    assert "sigma_0 4" in page.read_text()
    names = {picture.name for picture in pictures}
    assert {"by-epoch-digits-linear-accuracy.png", "by-step-digits-linear-noise_multiplier.png"} <= names
    assert "by-step-digits-linear-lr.png" not in names  # it stands still


def ablation():
    return {
        "common": {"data": "digits", "model": "linear", "epsilon": 3, "seed": 0},
        "grid": {"lr": [0.1, 1], "method_options": {"percentile": [0.3, 0.5, 0.9]}},
        "picture": {"x": "percentile", "y": "lr"},
        "variant": [
            {"name": "p {percentile}, lr {lr}", "method": "dc-sgd-p", "method_options": {"bins": 10}},
            {"name": "half", "method": "dc-sgd-p", "method_options": {"percentile": 0.5}},
            {"name": "plain", "epsilon": float("inf")},
        ],
    }


def test_options_of_a_method_are_a_grid_and_names_have_their_values(tmp_path):
    trials = make_study(ablation(), tmp_path / "two.toml", check=False).trials
    named = {t.variant: t.config.method_options for t in trials}
    assert named["p 0.3, lr 0.1"] == {"percentile": 0.3, "bins": 10}
    assert named["half"] == {"percentile": 0.5}
    assert named["plain"] == {}
    assert len(trials) == 6 + 2 + 2  # a variant that states the percentile, or has no method, has no column for it


def test_two_options_are_drawn_as_a_heat_map(tmp_path):
    made = make_study(ablation(), tmp_path / "two.toml", check=False)
    lines = [
        {
            "id": trial.id,
            "variant": trial.variant,
            "target_epsilon": 3.0,
            "asked_method_options": trial.config.method_options,
            "asked_lr": trial.config.lr,
            "method": "dc-sgd-p",
            "data": "digits",
            "model": "linear",
            "epsilon": 3.0,
            "accuracy": trial.config.method_options["percentile"] * trial.config.lr,
            "seed": 0,
            "clipwise": "0",
        }
        for trial in made.trials
        if trial.variant.startswith("p ")
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made.about("clipwise study two.toml").write(tmp_path)
    page, pictures = write_study_report(tmp_path)
    alt = pictures[tmp_path / "report" / "digits-linear-dc-sgd-p-percentile-lr-epsilon-3.png"]
    assert "lr 0.1: 0.3 3.0 %, 0.5 5.0 %, 0.9 9.0 %; lr 1: 0.3 30.0 %, 0.5 50.0 %, 0.9 90.0 %" in alt
    assert "percentile 0.9, lr 1: 90.0 %" in page.read_text()


def test_a_heat_map_has_holes_and_one_value():
    heat = Heat(name="a", title="<t>", x_label="x", y_label="y", xs=("1", "2"), ys=("a",), values=((None, 3.0),))
    assert draw_heat(heat).count("<rect") == 1
    assert "&lt;t&gt;" in draw_heat(heat)
    assert heat.depth(3.0) == 0.5
    assert heat_png(heat)[:4] == b"\x89PNG"
    ends = Heat(
        name="a", title="t", x_label="x", y_label="y", xs=("1", "2"), ys=("a",), values=((0.0, 2.0),), low_is_good=True
    )
    assert (ends.depth(0.0), ends.depth(2.0)) == (1.0, 0.0)


def test_what_is_keyed_by_both_is_refused(tmp_path):
    mixed = {**BY_NOISE, "variant": [*BY_NOISE["variant"], {"name": "other", "epsilon": 1.0}]}
    with pytest.raises(BadArgument, match="some runs and noise_multiplier for others"):
        make_study(mixed, tmp_path / "mixed.toml", check=False)
    searched = {**BY_NOISE["variant"][0], "tuning": {"strategy": "grid-rdp", "candidates": 3}}
    with pytest.raises(BadArgument, match="no budget to share"):
        make_study({**BY_NOISE, "variant": [searched]}, tmp_path / "searched.toml", check=False)


def test_a_page_says_what_its_methods_did_otherwise(tmp_path):
    about = make_study(BY_NOISE, tmp_path / "noise.toml").about("")
    line = {"method": "dc-sgd-e", "clipwise": "0.1.0"}
    assert any("**Of before**: `dc-sgd-e`" in fact for fact in facts(about, [line]))
    for other in ({"clipwise": "0.2.0"}, {"method": "fixed"}):
        assert not any("Of before" in fact for fact in facts(about, [line | other]))


def test_lines_that_lie_on_each_other_are_one_with_both_names():
    low, high = (tuple(Point(x, y) for x in (0, 1)) for y in (1.0, 2.0))
    assert [s.label for s in _seen([Series("L", low), Series("S", low), Series("global", high)])] == ["L; S", "global"]
    assert [s.label for s in _seen([Series("L", low), Series("S", low)])] == ["all methods"]
