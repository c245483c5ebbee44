"""docs/results/README.md has a verdict for every numbered table and figure of the four papers, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).parent.parent / "docs" / "results"
ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6, "VII": 7, "VIII": 8}
NUMBERED = {  # by the captions of the papers: how many tables and figures each has
    "000": {"Table": 17, "Figure": 2},
    "001": {"Table": 21, "Figure": 10},
    "002": {"Table": 8, "Figure": 11},
    "003": {"Table": 4, "Figure": 5},
}
VERDICTS = (
    *("holds", "hold ", "does not hold", "not testable", "not run", "not compared", "nothing to test"),
    *("a definition", "order", "close", "alike", "was not seen", "was seen", "not seen"),
)


def rows() -> list[list[str]]:
    lines = (RESULTS / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| 00[0-3] \|", line)
    ]
    assert all(len(row) == 6 for row in cells)
    return cells


def named(words: str) -> set[tuple[str, int]]:
    """("Tables 7 to 9, Figure 2") is Tables 7, 8, 9 and Figure 2."""
    found = set()
    for kind, numbers in re.findall(r"(Table|Figure)s? ((?:(?:\d+|[IV]+)(?:, | and | to )?)+)", words):
        numbers = re.sub(r"\b[IV]+\b", lambda roman: str(ROMAN[roman[0]]), numbers)
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
            found |= {(kind, n) for n in range(int(first), int(last or first) + 1)}
    return found


@pytest.mark.parametrize("paper", NUMBERED)
def test_every_table_and_figure_has_a_row(paper):
    found = set().union(*(named(row[1]) for row in rows() if row[0] == paper))
    assert found == {(kind, n) for kind, count in NUMBERED[paper].items() for n in range(1, count + 1)}


def test_every_row_has_a_verdict():
    assert [row[:2] for row in rows() if not any(word in f"{row[4]} " for word in VERDICTS)] == []


def test_every_link_leads_somewhere():
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", page) if "://" not in link]
    assert [link for link in links if not (RESULTS / link).exists()] == []


def test_the_words_are_read():
    assert named("Tables 7 to 9, Thinwall; Figures 7, 8") == {
        *(("Table", n) for n in (7, 8, 9)),
        ("Figure", 7),
        ("Figure", 8),
    }
    assert named("Tables II, III") == {("Table", 2), ("Table", 3)}
    assert named("Table 1, Figure 1") == {("Table", 1), ("Figure", 1)}
