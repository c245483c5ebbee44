"""A number at the top of a module says what it is: its unit, and why it has that value."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Whole tables of figures, explained where they stand.
LEFT_OUT = ("clipwise/lab/claims/", "clipwise/lab/audit/edges/")


def is_figure(node):
    """A literal that a person chose: not what follows from other names."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.BinOp):
        return is_figure(node.left) and is_figure(node.right)
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(is_figure(each) for each in node.elts)
    return isinstance(node, ast.UnaryOp) and is_figure(node.operand)


def unexplained(text):
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Tuple):
            name = ast.unparse(node.targets[0])
            said = "#" in lines[node.end_lineno - 1] or lines[node.lineno - 2].lstrip().startswith("#")
            if name.isupper() and is_figure(node.value) and not said:
                yield node.lineno, name


def test_every_constant_says_what_it_is():
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted((ROOT / "clipwise").rglob("*.py"))
        if not path.name.endswith("_test.py") and not path.relative_to(ROOT).as_posix().startswith(LEFT_OUT)
        for line, name in unexplained(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_one_that_does_not_is_seen():
    assert list(unexplained("import math\n\nMOST = 10 * 1024\nLEAST = 2  # rows\nDOUBLE = 2 * MOST\n")) == [(3, "MOST")]
    assert list(unexplained("import math\n\nA, B = 1, 2\n")) == [(3, "(A, B)")]
