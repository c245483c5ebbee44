"""Puts the table of architectures into docs/hugging_face.md: python docs/make_hugging_face.py (about five minutes)"""

from __future__ import annotations

import logging
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from clipwise.lab.audit import architectures

PAGE = Path(__file__).parent / "hugging_face.md"
START, END = "<!-- architectures: made by docs/make_hugging_face.py -->", "<!-- end of architectures -->"
SAID = {
    architectures.FAST: "fast",
    architectures.GENERIC: "exact, but slower (`torch.func`)",
    architectures.REFUSED: "refused",
    architectures.WRONG: "**wrong**",
    architectures.NOT_MADE: "not made small by its configuration, or in need of another package",
}


def table() -> str:
    logging.disable(logging.WARNING)  # of transformers, about its own defaults
    found = list(architectures.survey())
    counts = Counter(one.verdict for one in found)
    lines = [
        f"transformers {version('transformers')}, {len(found)} model types: "
        + ", ".join(f"{counts[verdict]} {verdict}" for verdict in SAID)
        + ".",
        "",
        "| way | task | model types |",
        "| --- | --- | --- |",
    ]
    for verdict, words in SAID.items():
        for task in architectures.TASKS:
            names = sorted(one.name for one in found if (one.verdict, one.task) == (verdict, task))
            if names:
                lines.append(f"| {words} | {task} | {' '.join(names)} |")
    return "\n".join(lines)


def main() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n{table()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
