"""`clipwise claims` from end to end, the page it makes, and the wall around its formulas."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clipwise.cli import app
from clipwise.lab.claims import rows

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "claims.md"
# Who may know the papers' formulas: they print claims as claims, and report no guarantee.
ALLOWED = {"clipwise/cli/claims.py"}
KEYS = {"paper", "table", "row", "inputs", "published", "recomputed", "honest_rdp", "honest_pld", "why"}


def run(*words):
    return CliRunner().invoke(app, ["claims", *words])


def test_json_is_a_list_of_claims_and_nothing_else():
    answer = run("--paper", "003", "--json")
    assert answer.exit_code == 0
    found = json.loads(answer.stdout)
    assert len(found) == len(rows("003"))
    for claim in found:
        assert claim.keys() == KEYS
        assert claim["paper"] == "003"
        assert claim["inputs"]["delta"] == 1e-5
        assert claim["why"].endswith(".")
        assert all(isinstance(claim[key], float) for key in ("published", "recomputed", "honest_rdp", "honest_pld"))
    line_13 = next(claim for claim in found if claim["table"] == "Algorithm 1, line 13")
    assert line_13["honest_rdp"] == pytest.approx(8.16, abs=5e-3)


def test_people_get_tables_with_notes(tmp_path):
    answer = run("--paper", "003", "--markdown", str(tmp_path / "page.md"))
    assert answer.exit_code == 0
    for text in ("003, Privacy Analysis", "7.124", "8.1628", "[1] Line 13", "joint_nu 0.97"):
        assert text in answer.stdout
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("# Published privacy figures, recomputed")
    assert "| MNIST, epsilon 3 | 3 | 2.9999 | 8.1628 |" in page
    assert "## 003: Online" in page
    assert "## 000" not in page


def test_infinities_are_null_and_dashes_are_null():
    """Auto DP rows, without the cost of a whole paper: what the command does with one claim of each kind."""
    from clipwise.lab.claims import page

    row = next(row for row in rows("000") if row.func.__name__ == "_auto" and "Table 5" in row.args)
    section = page.sections([row()])[0]
    assert section.cells[0][1:5] == ["2.04", "-", "none", "none"]
    from clipwise.cli import output

    claim = row()
    assert output.finite({"honest": claim.honest_pld, "recomputed": claim.recomputed}) == {
        "honest": None,
        "recomputed": None,
    }


@pytest.mark.parametrize("words", [("--paper", "004"), ("--paper", "")])
def test_an_unknown_paper_is_refused_by_name(words):
    answer = run(*words, "--json")
    assert answer.exit_code == 2
    said = json.loads(answer.stdout)
    assert said["kind"] == "BadArgument"
    assert f"paper={words[1]!r}" in said["error"]
    assert "000, 001, 002, 003" in said["error"]


def test_a_folder_that_is_not_there_is_refused_before_any_work():
    answer = run("--markdown", "/nowhere/at/all/page.md", "--json")
    assert answer.exit_code == 2
    assert "/nowhere/at/all" in json.loads(answer.stdout)["error"]


def figures_apart(text):
    """The text without its figures, and the figures."""
    number = r"(?<![\w.])\d[\d,]*\.?\d*(?:e[-+]\d+)?"
    return re.sub(number, "#", text), [float(each.replace(",", "")) for each in re.findall(number, text)]


def test_the_page_in_docs_is_the_commands(tmp_path):
    """Word for word, and figure for figure to 1e-3, on the papers that are quick; complete on all."""
    page = PAGE.read_text()
    assert "Made by `clipwise claims --markdown docs/claims.md`" in page
    run("--paper", "003", "--markdown", str(tmp_path / "page.md"))
    fresh = (tmp_path / "page.md").read_text()
    ours, theirs = (figures_apart(text[text.index("## 003") :]) for text in (page, fresh))
    assert ours[0] == theirs[0]
    assert ours[1] == pytest.approx(theirs[1], rel=1e-3)
    table_rows = [line for line in page.splitlines() if line.startswith("| ") and re.search(r"\[\d+\] \|$", line)]
    assert len(table_rows) == len(rows())


def test_no_part_that_reports_a_guarantee_knows_the_claims():
    package = ROOT / "clipwise"
    knowing = set()
    for path in package.rglob("*.py"):
        if path.name.endswith("_test.py") or (package / "lab" / "claims") in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            if any(name.startswith("clipwise.lab.claims") or name == ".claims" for name in names):
                knowing.add(path.relative_to(ROOT).as_posix())
    assert knowing == ALLOWED


def test_nothing_here_needs_torch():
    code = "import sys, clipwise.lab.claims.page; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
