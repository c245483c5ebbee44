"""Every Python block of README and docs that stands alone runs; every link inside the repository leads somewhere."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_readme_example_runs(capsys):
    (code,) = blocks(ROOT / "README.md")
    assert len(code.splitlines()) <= 32
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert re.search(r"epsilon (2\.9|3\.0)\d* at delta 1e-5", printed)
    assert "Privacy statement" in printed


def test_the_method_of_the_docs_conforms_and_trains():
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import clipwise
    from clipwise.clipping.conformance import check

    (code,) = blocks(ROOT / "docs" / "adding_a_method.md")
    names: dict = {"__name__": "method"}
    exec(compile(code, "adding_a_method.md", "exec"), names)
    assert len(code.splitlines()) < 80
    method = names["Quantile"]()
    check(method)
    # .1 exp(.2 x .5): C = .1 and no gradient below it -> .110517
    from clipwise.clipping import Context
    from clipwise.types import Released

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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_pages_of_the_methods_are_up_to_date():
    """Options, side queries, guarantees and pictures as the code has them now; every method has a page."""
    spec = importlib.util.spec_from_file_location("make_methods", ROOT / "docs" / "make_methods.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, content in module.files().items():
        page = ROOT / "docs" / "methods" / name
        current = page.read_text() if page.exists() else ""
        assert current == content, f"{page} is out of date: run python docs/make_methods.py"
