"""Regret by hand: two tasks, one of development, and a point where the grid has hardly run."""

from __future__ import annotations

import pytest

from clipwise.lab.study.regret import best_of, check_regret, cross_fitted, places, regret_section
from clipwise.lab.study.table import Cell
from clipwise.types import BadArgument

ASKED = {"of": "auto", "grid": ["sgd, ", "adam, "], "development": ["a, m"]}


def _cell(data: str, variant: str, at: float | None, *accuracies: float) -> Cell:
    return Cell(data, "m", variant, at, accuracies, at, seeds=tuple(range(len(accuracies))))


CELLS = [
    _cell("a", "sgd, 1", 3.0, 90.0, 92.0),
    _cell("a", "adam, 1", 3.0, 80.0),
    _cell("a", "auto", 3.0, 90.5),
    _cell("a", "quantile", 3.0, 70.0),
    _cell("a", "sgd, 1", None, 99.0),
    _cell("b", "sgd, 1", 3.0, 50.0),
    _cell("b", "adam, 1", 3.0, 52.0),
    _cell("b", "auto", 3.0, 53.0),
    _cell("b", "quantile", 3.0, 40.0),
    _cell("b", "sgd, 1", 8.0, 60.0),  # a quarter of the grid, which is not enough
    _cell("c", "sgd, 2", None, 60.0),
    _cell("c", "adam, 2", None, 60.0),
    _cell("b", "auto", 8.0, 10.0),
]


def test_regret_is_the_grids_best_mean_less_ones_own() -> None:
    found = places(ASKED, CELLS)
    assert [(p.task, p.at, p.held_out, p.best.variant, p.regret("auto")) for p in found] == [
        ("a, m", 3.0, False, "sgd, 1", 0.5),
        ("b, m", 3.0, True, "adam, 1", -1.0),
    ]


def test_development_and_held_out_are_told_apart_and_every_variant_is_ranked() -> None:
    text = "\n".join(regret_section(ASKED, CELLS))
    assert "| development | 1 | 0.50 | 0.50 | 0 | |" in text
    assert "| held out | 1 | -1.00 | -1.00 | 0 | |" in text
    assert text.index("| auto | -0.25 | 0.50 |") < text.index("| quantile | 16.50 | 21.00 |")


def test_what_is_picked_on_some_seeds_is_scored_on_the_others() -> None:
    lucky = _cell("a", "adam, 1", 3.0, 99.0, 80.0, 80.0)  # best by its mean, thanks to one seed
    steady = _cell("a", "adam, 2", 3.0, 85.0, 85.0, 85.0)
    fitted = cross_fitted([lucky, steady, _cell("a", "adam, 3", 3.0, 98.0)])  # the last has not run with all seeds
    assert fitted is not None
    assert fitted.scores == (85.0, 80.0, 80.0)  # without seed 0 the steady one is best, without another the lucky one
    assert fitted.settings == 2
    assert cross_fitted([_cell("a", "adam, 1", 3.0, 90.0), _cell("a", "adam, 2", 3.0, 91.0)]) is None


def test_a_seed_that_chose_which_settings_run_on_is_not_scored() -> None:
    """Seed 0 ran with all and chose two; its luck would come back if the fit were scored on it."""
    rest = [_cell("a", f"adam, {i}", 3.0, 70.0) for i in range(3)]
    grid = [_cell("a", "sgd, 1", 3.0, 99.0, 80.0, 82.0), _cell("a", "sgd, 2", 3.0, 98.0, 84.0, 80.0), *rest]
    fitted = cross_fitted(grid)
    assert fitted is not None
    assert fitted.scores == (80.0, 80.0)  # without seed 1 the first is best, without seed 2 the second
    assert fitted.settings == 2


def test_one_lucky_seed_is_not_held_against_the_mean_of_three() -> None:
    twice = [_cell("a", "sgd, 1", 3.0, 95.0, 85.0), _cell("a", "sgd, 2", 3.0, 94.0, 84.0)]
    assert best_of([*twice, _cell("a", "sgd, 3", 3.0, 93.0)]).variant == "sgd, 1"
    assert best_of([twice[1], _cell("a", "sgd, 3", 3.0, 93.0)]).variant == "sgd, 3"  # nothing to compare two seeds with


def test_the_cross_fitted_regret_stands_beside_the_plain_one_with_its_error() -> None:
    grid = [_cell("a", "sgd, 1", 3.0, 90.0, 94.0), _cell("a", "adam, 1", 3.0, 93.0, 89.0)]
    text = "\n".join(regret_section(ASKED, [*grid, _cell("a", "auto", 3.0, 90.0, 92.0)]))
    # picked without seed 0: sgd, which has 90 there; without seed 1: adam, which has 89 there
    assert "| 92.00 ± 2.83 | sgd, 1 (2) | 2 / 2 | 1.00 | 89.50 (2) | -1.50 ± 1.12 |" in text
    assert "| development | 1 | 1.00 | 1.00 | 1 | -1.50 ± 1.12 | -1.50 |" in text


@pytest.mark.parametrize("table", [{"of": "auto"}, {**ASKED, "grid": "sgd"}, {**ASKED, "more": 1}])
def test_a_table_that_says_less_or_more_is_refused(table: dict[str, object]) -> None:
    with pytest.raises(BadArgument, match=r"\[regret\]"):
        check_regret(table, "study.toml")
