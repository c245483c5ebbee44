"""The one-way flow, kept by a test: stages import types and validate, never one another; only plan, step and run
import stages."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "clipwise"
STAGES = ("sampling", "norms", "clipping", "noise", "optim", "accounting")
SHARED = {f"clipwise.{name}" for name in ("types", "validate", "files", "keystream", "schedules", "randomness")} | {
    "clipwise"
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "clipwise":
                yield from (f"clipwise.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("stage", STAGES)
def test_stages_do_not_import_one_another(stage):
    files = list((PACKAGE / stage).rglob("*.py"))
    assert files
    for path in files:
        if path.name.endswith("_test.py"):
            continue
        for name in imports(path):
            if name.startswith("clipwise"):
                assert name in SHARED or name.startswith(f"clipwise.{stage}"), f"{path} imports {name}"


def test_only_the_command_line_imports_the_command_line():
    for path in PACKAGE.rglob("*.py"):
        inside = "cli" in path.relative_to(PACKAGE).parts or path.name in {"__main__.py", "conftest.py"}
        if not inside and not path.name.endswith("_test.py"):
            assert not [name for name in imports(path) if f"{name}.".startswith("clipwise.cli.")], path


def test_accounting_does_not_import_torch():
    code = "import sys, clipwise.accounting, clipwise.accounting.ledger, clipwise.accounting.calibrate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_outside_clipping_knows_a_method_by_name():
    """No `if method == "fixed"` in step, engine, optimizer or CLI: only defaults of arguments may name one."""
    for path in PACKAGE.rglob("*.py"):
        if "clipping" in path.parts or path.name.endswith("_test.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                for side in (node.left, *node.comparators):
                    assert not (isinstance(side, ast.Constant) and side.value == "fixed"), f"{path}:{node.lineno}"


def test_no_privacy_check_is_an_assert():
    """python -O drops asserts; the package itself must hold without them."""
    for path in PACKAGE.rglob("*.py"):
        if path.name.endswith("_test.py"):
            continue
        asserts = [node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]
        assert not asserts, f"{path}: {asserts}"
