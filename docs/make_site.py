"""Builds the site: `make docs`, or python docs/make_site.py [FOLDER]. Notebooks are executed, and their pages hold what came out."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def executed(notebook: Path) -> Any:
    """The notebook with what its cells print; an error in a cell is an error here."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(notebook, as_version=4)
    NotebookClient(book, timeout=300, kernel_name="python3").execute()
    return book


def as_markdown(book: Any) -> str:
    parts = []
    for cell in book.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        said = "".join(out.get("text", "") or out.get("data", {}).get("text/plain", "") for out in cell.outputs)
        if said.strip():
            parts.append(f"```text\n{said.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        pages = Path(place) / "docs"
        shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("*.py", "*.ipynb", "__pycache__"))
        for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
            (pages / "notebooks" / f"{notebook.stem}.md").write_text(as_markdown(executed(notebook)), encoding="utf-8")
        shutil.copy(ROOT / "mkdocs.yml", place)
        words = [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--quiet",
            "-f",
            f"{place}/mkdocs.yml",
            "-d",
            str(out.absolute()),
        ]
        subprocess.run(words, cwd=ROOT, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site")
