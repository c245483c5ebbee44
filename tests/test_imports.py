"""The one-way flow, kept by a test: which rooms may import which, and no ring, neither of rooms nor of modules.

An import inside a function counts as any other: it is a dependency all the same. One that only a type checker reads
(`if TYPE_CHECKING:`) does not, and what the facade `clipwise/__init__.py` names as text, and loads on first use, does
not either. Unit tests beside the code may import what they like.
"""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parent.parent / "clipwise"
STAGES = ("sampling", "norms", "clipping", "noise", "optim", "accounting")

# A room (a module or a package directly in clipwise, or in clipwise/lab) may import rooms of the lines above its own,
# none of its own line and none below.
LAYERS = (
    ("types", "files"),
    ("validate",),
    (
        "devices",
        "keystream",
        "schedules",
        "named_text",
        "locks",
        "durable",
        "randomness",
        "statement",
        "fixing",
        "ranks",
        "proportion",
        "modes",
        "prepared",
    ),
    ("mechanism", "checkpoint", "guards", "losses", "shards"),
    STAGES,
    ("plans", "own_loss"),
    ("step", "facts", "checking"),
    ("state", "resuming"),
    ("run",),
    ("automatic",),
    ("dropin", "forecast"),
    ("loop",),
    ("integrations", "compat"),
    ("hf", "lightning"),
    ("data",),
    ("models", "fairness"),
    ("training", "estimators"),
    ("lab.processes",),
    ("lab.results", "lab.identity", "lab.claims", "lab.audit", "lab.bench", "lab.faults"),
    ("lab.tuning",),
    ("lab.study",),
    ("lab.report",),
    ("lab.fairness", "lab.watch", "lab.figures"),
    ("cli",),
    ("__main__",),
)
LAYER = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
SHARED = {
    "devices",
    "durable",
    "types",
    "validate",
    "keystream",
    "schedules",
    "files",
    "randomness",
}  # all that a stage may import beside itself


class Import(NamedTuple):
    by: str
    of: str
    line: int


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py") if not path.name.endswith("_test.py")}


def room(module):
    """Of a module: `clipwise.lab.study.table` is in `lab.study`; the facade itself is in none."""
    parts = module.split(".")[1:]
    if not parts:
        return None
    return ".".join(parts[:2]) if parts[0] == "lab" and len(parts) > 1 else parts[0]


def read(tree):
    """Nodes of a module that run, sooner or later: all but those for the type checker alone."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo.extend(node.orelse)
        else:
            todo.extend(ast.iter_child_nodes(node))


def imports_in(text, by):
    for node in read(ast.parse(text)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{by}:{node.lineno}: a relative import; write the whole name"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name if name in MODULES else node.module for name in whole]
        else:
            continue
        yield from (Import(by, name, node.lineno) for name in found if name.partition(".")[0] == "clipwise")


@cache
def imports():
    return tuple(chain.from_iterable(imports_in(path.read_text(), name) for name, path in MODULES.items()))


def forbidden(one):
    """Why an import goes against the flow, or None."""
    mine, other = room(one.by), room(one.of)
    if mine is None:
        return "the facade imports nothing: it names homes as text"
    if other is None or mine == other:  # of the facade: its version
        return None
    if mine in STAGES and other not in SHARED:
        return f"a stage imports {', '.join(sorted(SHARED))} and itself"
    if LAYER[other] >= LAYER[mine]:
        return f"{other} does not stand above {mine} in the table"
    return None


def ring(pairs):
    """A ring in these (by, of) pairs, or None."""
    graph = {}
    for by, of in pairs:
        if by != of:
            graph.setdefault(by, set()).add(of)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " <- ".join(error.args[1])
    return None


def test_every_room_has_one_place():
    assert {room(name) for name in MODULES} - {None, "lab"} == set(LAYER)
    assert len(LAYER) == sum(len(rooms) for rooms in LAYERS)


@pytest.mark.parametrize("name", sorted({room(name) for name in MODULES} - {None}))
def test_a_room_imports_only_what_stands_above_it(name):
    wrong = [
        f"{one.by}:{one.line} imports {one.of}: {why}"
        for one in imports()
        if room(one.by) == name and (why := forbidden(one))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_facade_imports_nothing():
    assert not [one for one in imports() if one.by == "clipwise"]


def test_there_is_no_ring_of_modules_nor_of_rooms():
    assert ring((one.by, one.of) for one in imports()) is None
    assert ring((room(one.by), room(one.of)) for one in imports() if room(one.of)) is None


def test_nothing_outside_lab_and_the_command_line_imports_lab():
    """Apart from the table, so that no new line of it can allow it."""
    for one in imports():
        assert not f"{one.of}.".startswith("clipwise.lab.") or f"{one.by}.".startswith(
            ("clipwise.lab.", "clipwise.cli.")
        ), one


def test_only_the_command_line_imports_the_command_line():
    for one in imports():
        assert not f"{one.of}.".startswith("clipwise.cli.") or f"{one.by}.".startswith(
            ("clipwise.cli.", "clipwise.__main__.")
        ), one


@pytest.mark.parametrize(
    ("by", "text", "why"),
    [
        ("clipwise.norms.record.tape", "from clipwise.clipping import Method", "a stage"),
        ("clipwise.norms.record.tape", "def f():\n    import clipwise.mechanism", "a stage"),
        ("clipwise.training.folder", "def f():\n    from clipwise.lab.report import page", "does not stand above"),
        ("clipwise.plans", "from clipwise import step", "does not stand above"),
        ("clipwise", "from clipwise.run import Run", "the facade"),
        ("clipwise.plans", "if TYPE_CHECKING:\n    from clipwise import step", None),
        ("clipwise.plans", "from clipwise import __version__, mechanism", None),
    ],
)
def test_what_goes_against_the_flow_is_seen(by, text, why):
    found = [forbidden(one) for one in imports_in(text, by)]
    assert (
        [reason for reason in found if reason] == [] if why is None else any(why in (reason or "") for reason in found)
    )


def test_a_ring_is_seen():
    assert ring([("a", "b"), ("b", "c"), ("c", "a")])
    assert not ring([("a", "b"), ("b", "c"), ("a", "c"), ("a", "a")])


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


def test_dir_shows_the_public_names_alone():
    import clipwise

    for name in clipwise.__all__:
        assert getattr(clipwise, name) is not None
    assert dir(clipwise) == sorted([*clipwise.__all__, "__version__"])  # after the modules behind them were loaded
    assert set(clipwise._HOME) == set(clipwise.__all__)
    assert {"Mechanism", "Performance", "Run", "losses", "private_step"} <= set(clipwise.__all__)
    with pytest.raises(AttributeError, match="'clipwise' has no attribute 'no_such_name'"):
        clipwise.no_such_name  # noqa: B018


def test_the_facade_alone_does_not_load_torch():
    code = "import sys, clipwise; dir(clipwise); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# What takes long to import and is not needed for it. (Making an optimizer imports torch's compiler; that is torch's own.)
SLOW = (
    "torch._dynamo",
    "sympy",
    "scipy.optimize",
    "scipy.signal",
    "scipy.stats",
    "dp_accounting",
    "sklearn",
    "matplotlib",
    "rich",
)


@pytest.mark.parametrize(
    ("code", "unneeded"),
    [
        ("from clipwise import attach, fit, Run", (*SLOW, "typer")),
        (
            "from clipwise.cli import app\n"
            "app(['account', '--noise-multiplier', '1', '--sample-rate', '0.01', '--steps', '100'], standalone_mode=False)",
            (*SLOW[2:-1], "torch"),
        ),
    ],
)
def test_slow_modules_are_not_imported_where_they_are_not_needed(code, unneeded):
    told = (
        f"import atexit, sys; atexit.register(lambda: print('loaded', *(m for m in {unneeded!r} if m in sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", f"{told}\n{code}"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded"


def test_attaching_waits_for_no_library_that_it_does_not_use():
    """scipy's special functions take a third of the import of `attach`, and only an epsilon asks for them."""
    code = "import sys; from clipwise import attach; sys.exit(str([m for m in sys.modules if m.startswith('scipy')] or '') or 0)"
    subprocess.run([sys.executable, "-c", code], check=True)
