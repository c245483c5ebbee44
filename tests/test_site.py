"""The notebooks of the docs run, in a kernel of their own; `make docs` puts what they print on their pages."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SAID = {
    "attach": "differentially private",
    "csv_to_prediction": "prediction,probability of no",
    "choosing_epsilon": "guessing: 1 %",
    "fairness": "(rare)",
    "auditing": "exit code 1",
}


def test_every_notebook_is_known():
    assert {path.stem for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")} == set(SAID)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_a_notebook_runs(name):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    spec = importlib.util.spec_from_file_location("make_site", ROOT / "docs" / "make_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.as_markdown(module.executed(ROOT / "docs" / "notebooks" / f"{name}.ipynb"))
    assert SAID[name] in page.split("```text", 1)[1]
