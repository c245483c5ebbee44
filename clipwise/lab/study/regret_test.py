"""Regret by hand: two tasks, one of development, and a point where the grid has hardly run."""

from __future__ import annotations

import pytest

from clipwise.lab.study.regret import check_regret, places, regret_section
from clipwise.lab.study.table import Cell
from clipwise.types import BadArgument

ASKED = {"of": "auto", "grid": ["sgd, ", "adam, "], "development": ["a, m"]}


def _cell(data: str, variant: str, at: float | None, *accuracies: float) -> Cell:
    return Cell(data, "m", variant, at, accuracies, at)


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
    _cell("b", "sgd, 1", 8.0, 60.0),  # half of the grid, which is not enough
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
    assert "| development | 1 | 0.50 | 0.50 |" in text
    assert "| held out | 1 | -1.00 | -1.00 |" in text
    assert text.index("| auto | -0.25 | 0.50 |") < text.index("| quantile | 16.50 | 21.00 |")


@pytest.mark.parametrize("table", [{"of": "auto"}, {**ASKED, "grid": "sgd"}, {**ASKED, "more": 1}])
def test_a_table_that_says_less_or_more_is_refused(table: dict[str, object]) -> None:
    with pytest.raises(BadArgument, match=r"\[regret\]"):
        check_regret(table, "study.toml")
