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


def test_the_first_lines_of_the_readme_run():
    """What a newcomer copies first: an epsilon and nothing else, on the example's model and data."""
    page = (ROOT / "README.md").read_text()
    fit, attach = re.findall(r"^    (\w+ = clipwise\.\w+\(.*?\)) ", page, re.MULTILINE)
    assert attach in blocks(ROOT / "README.md")[0]  # which runs above
    names: dict = {}
    exec(blocks(ROOT / "README.md")[0].split(attach)[0], names)
    exec(fit, names)
    done = names["done"]
    assert 2.9 < done.epsilon <= 3
    assert any("learning rate" in line for line in done.statement.automatic)


def test_the_loops_of_the_docs_run():
    adversarial, views = ({"__name__": "loop"} for _ in range(2))
    for code, names in zip(blocks(ROOT / "docs" / "loops.md"), (adversarial, views), strict=True):
        exec(compile(code, "loops.md", "exec"), names)
    assert "private.outside() was used" in adversarial["private"].statement().to_markdown()
    assert views["private"].statement().steps == 5


@pytest.mark.parametrize("page", ["from_tf_privacy.md", "from_jax_privacy.md"])
def test_the_loop_of_a_page_for_who_comes_from_elsewhere_runs(page, capsys):
    (code,) = blocks(ROOT / "docs" / page)
    exec(compile(code, page, "exec"), {"__name__": "page"})
    assert re.match(r"epsilon \d+\.\d{3} at delta 1e-05", capsys.readouterr().out)


def test_the_loop_of_the_page_for_who_comes_from_opacus_runs(capsys):
    (code,) = blocks(ROOT / "docs" / "from_opacus.md")
    exec(compile(code, "from_opacus.md", "exec"), {"__name__": "page"})
    assert "Privacy statement" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # of transformers, about its own changes
def test_the_loops_of_the_page_on_hugging_face_run(capsys, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    *codes, of_trl = blocks(ROOT / "docs" / "hugging_face.md")
    assert len(codes) == 2
    for code in codes:
        exec(compile(code, "hugging_face.md", "exec"), {"__name__": "page"})
        assert "one class a record" in capsys.readouterr().out
    pytest.importorskip("trl")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    exec(compile(of_trl, "hugging_face.md", "exec"), {"__name__": "page"})
    assert "one loss a pair" in capsys.readouterr().out


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
