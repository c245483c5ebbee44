"""The wheel holds all that the package needs, and runs where the repository is not."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
needs_build = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("build", "setuptools")),
    reason="build and setuptools are not installed: no wheel was made",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, without network: the repository stays as it is."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "clipwise", source / "clipwise", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(source / "dist"), str(source)]
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    (found,) = (source / "dist").glob("*.whl")
    return found


@needs_build
def test_the_wheel_holds_every_file_of_the_package(wheel):
    """Styles, scripts and study files too: what is in the repository's package is in the wheel."""
    held = set(zipfile.ZipFile(wheel).namelist())
    there = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "clipwise").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there <= held, sorted(there - held)
    assert {"clipwise/lab/study/files/quick.toml", "clipwise/lab/report/page.css", "clipwise/py.typed"} <= there
    assert {name.split("/")[0].split("-")[0] for name in held} == {"clipwise"}  # no tests, no docs
    assert any(name.endswith("licenses/LICENSE") for name in held)


@needs_build
@pytest.mark.slow
def test_it_runs_in_an_empty_folder(wheel, tmp_path):
    """Train, predict, the list of studies, the report: from the wheel alone, beside the dependencies that are installed here."""
    place, empty = tmp_path / "installed", tmp_path / "empty"
    place.mkdir(), empty.mkdir()
    zipfile.ZipFile(wheel).extractall(place)
    known = {name: value for name, value in os.environ.items() if name != "CLIPWISE_DATA"}

    def clipwise(*words):
        done = subprocess.run(
            [sys.executable, "-m", "clipwise.cli", *words, "--json"],
            cwd=empty,
            env={**known, "PYTHONPATH": str(place)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    rows = [f"{i % 7},{'yes' if i % 7 > 3 else 'no'}" for i in range(400)]
    (empty / "own.csv").write_text("\n".join(["days,late", *rows]) + "\n")
    own = ("--data", "own.csv", "--label", "late", "--classes", "no,yes", "--range", "days=0:7", "--model", "linear")
    by_hand = ("--method", "fixed", "--epochs", "2", "--batch", "100", "--lr", "0.5")
    trained = clipwise("train", *own, *by_hand, "--out", "run")
    assert 0 < trained["epsilon"] <= 3
    clipwise("predict", "run", "own.csv", "--out", "predicted.csv")
    header, *predicted = (empty / "predicted.csv").read_text().splitlines()
    assert len(predicted) == 400
    assert header
    listed = {Path(row["file"]).stem: Path(row["file"]) for row in clipwise("study", "--list")}
    assert listed["quick"].is_relative_to(place)
    assert Path(empty, clipwise("report", "run")["page"]).is_file()
    assert clipwise("verify", "run")["verified"]
