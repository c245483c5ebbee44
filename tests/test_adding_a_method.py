"""docs/adding_a_method.md, followed to the letter in a copy of the repository."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise.clipping import Context
from clipwise.clipping.conformance import check
from clipwise.types import Released

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "adding_a_method.md"
SCRIPT = Path(sys.executable).parent
PROGRAMS = {
    "python": [sys.executable],
    "pytest": [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider"],
    "clipwise": [sys.executable, "-m", "clipwise.cli"],
    "cp": ["cp"],
}


def sections():
    """(heading, text) of the page's numbered sections, in order."""
    parts = re.split(r"^## (\d\. .*)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def block(text, language):
    (found,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return found


def named_file(text, suffix):
    return re.search(rf"`((?:clipwise|docs)/[\w/]+\.{suffix})`", text)[1]


def apply(path, diff):
    """Puts each `+` line after the line that stands above it in the diff, which the file must hold once."""
    lines, above = path.read_text().splitlines(), None
    for line in diff.splitlines():
        if line.startswith("+"):
            assert lines.count(above) == 1, f"{path.name}: {above!r}"
            lines.insert(lines.index(above) + 1, line[1:])
        above = line[1:]
    path.write_text("\n".join(lines) + "\n")


def run(command, folder):
    program, *words = command.split()
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*PROGRAMS[program], *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A copy of the repository with the method of the page in it, and what the page's commands printed."""
    folder = tmp_path_factory.mktemp("house")
    ignored = shutil.ignore_patterns("__pycache__", "results", "*.png")
    for name in ("clipwise", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (_, first), (_, second), (_, third), (_, fourth) = sections()
    (folder / named_file(first, "py")).write_text(block(first, "python"))
    apply(folder / named_file(second, "py"), block(second, "diff"))
    apply(folder / named_file(third, "py"), block(third, "diff"))
    said = {command: run(command, folder) for command in block(fourth, "sh").splitlines()}
    return folder, said


def test_the_page_leads_to_a_method(house):
    folder, said = house
    for test in ("methods_test.py::test_conforms", "methods_test.py::test_facts", "vectors_test.py::test_weights"):
        assert re.search(
            rf"PASSED clipwise/clipping/{test}\S*my-quantile", said["pytest clipwise/clipping -k my-quantile"]
        )
    shown = said["clipwise methods my-quantile"]
    assert "how fast the threshold moves" in shown
    assert "Left to tune: target" in (folder / "docs" / "methods" / "my-quantile.md").read_text()
    assert (folder / "docs" / "methods" / "my-quantile.svg").exists()


def test_its_file_is_in_the_style_of_the_house(house):
    file = house[0] / named_file(sections()[0][1], "py")
    assert len(file.read_text().splitlines()) < 80
    for words in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [SCRIPT / "ruff", *words, "--no-cache", file, house[0] / "clipwise/clipping/__init__.py"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def test_a_broken_method_is_caught_by_the_copy(house):
    """The suites that the page relies on go red for a method that breaks its bound."""
    file = house[0] / named_file(sections()[0][1], "py")
    whole = file.read_text()
    broken = whole.replace("bounded(torch.ones_like(norms), norms, state.threshold)", "torch.ones_like(norms)")
    assert broken != whole
    file.write_text(broken)
    try:
        with pytest.raises(AssertionError, match="failed"):
            run("pytest clipwise/clipping/methods_test.py -k my-quantile", house[0])
    finally:
        file.write_text(whole)


@pytest.fixture
def my_quantile(tmp_path, monkeypatch):
    """The class of the page, in a package of one's own."""
    (tmp_path / "my_quantile.py").write_text(block(sections()[0][1], "python"))
    spec = importlib.util.spec_from_file_location("my_quantile", tmp_path / "my_quantile.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "my_quantile", module)
    spec.loader.exec_module(module)
    return module.MyQuantile


def test_it_needs_no_registry(my_quantile):
    method = my_quantile()
    check(method)
    # .1 exp(.2 x .5): C = .1 and no gradient below it -> .110517
    context = Context(expected_batch_size=100.0, noise_multiplier=1.0, parameters=3, steps=5, sample_rate=0.1)
    released = Released((torch.zeros(3),), {"below": torch.tensor([-50.0])})
    assert method.update(method.init(context), released, context, 0).threshold == pytest.approx(0.110517, abs=1e-6)

    model = torch.nn.Linear(4, 2)
    data = TensorDataset(torch.randn(200, 4), torch.randint(0, 2, (200,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = clipwise.attach(
        model, optimizer, DataLoader(data, batch_size=50), noise_multiplier=1.0, delta=1e-5, epochs=2, method=method
    )
    for inputs, targets in private.loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    assert private.run.state.method.threshold != 0.1
    assert "below" in private.statement().to_markdown()
    private.detach()
