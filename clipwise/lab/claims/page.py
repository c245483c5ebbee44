"""The claims as tables: a section for each table of a paper, with what its rows share said once.

Inputs that are the same in all rows stand above the table, and sentences that many rows have in common below it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from clipwise.lab.claims import PAPERS, Claim
from clipwise.lab.claims.claim import Inputs

COLUMNS = ("row", "published", "recomputed", "honest RDP", "honest PLD", "inputs", "why")

_HEAD = """\
# Published privacy figures, recomputed

Made by `{command}`.

Four papers that Clipwise builds on publish privacy figures; here each stands beside what its own
formula gives with our code, and beside what the run costs when every step is counted. The papers' ideas are what
Clipwise implements, and most of their mechanisms are sound: this page is about figures, so that nobody compares a
Clipwise epsilon with one that was computed differently.

- **published** is what the paper prints: an epsilon, unless the table says otherwise.
- **recomputed** is the paper's own formula with our code; "-" where the paper does not print an input that it needs.
- **honest RDP** and **honest PLD** are upper bounds on epsilon by Clipwise's two accountants, at the claim's delta,
  with every step counted, for Poisson batches and neighbours that differ by one record. PLD is tight; RDP is
  a bound too, and above 1,000 a poor one. "none" says that no finite epsilon holds.
- **why** points to the notes below each table.

`clipwise claims --json` prints the same rows for programs (null for "-" and "none").
"""


class Section(NamedTuple):
    """One table of a paper."""

    title: str
    shared: str  # inputs that all rows have in common
    cells: list[list[str]]
    notes: list[str]  # numbered from 1 in the last column


def sections(claims: Iterable[Claim]) -> list[Section]:
    """In the order given, one for each run of claims of the same table."""
    return [_section(list(group)) for _, group in groupby(claims, key=lambda claim: (claim.paper, claim.table))]


def _section(claims: Sequence[Claim]) -> Section:
    first = claims[0]
    shared = {key: value for key, value in first.inputs.items() if all(c.inputs.get(key) == value for c in claims)}
    notes = list(dict.fromkeys(sentence for claim in claims for sentence in _sentences(claim.why)))
    cells = [
        [
            claim.row,
            f"{claim.published:.7g}",
            figure(claim.recomputed),
            figure(claim.honest_rdp),
            figure(claim.honest_pld),
            _listed(claim.inputs, shared, claim.row),
            "".join(f"[{notes.index(sentence) + 1}]" for sentence in _sentences(claim.why)),
        ]
        for claim in claims
    ]
    return Section(f"{first.paper}, {first.table}", _listed(shared), cells, notes)


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=\.) (?=[A-Z])", text)


def figure(value: float | None) -> str:
    if value is None:
        return "-"
    if math.isinf(value):
        return "none"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4f}"


def _listed(inputs: Inputs, shared: Collection[str] = (), row: str = "") -> str:
    """Inputs by name, without those that stand above the table or in the name of the row."""
    listed = {key: value if isinstance(value, str) else _short(value) for key, value in inputs.items()}
    return ", ".join(
        f"{key.replace('_is', ' is')} {value}"
        for key, value in listed.items()
        if key not in shared and f"{key} {value}" not in row
    )


def _short(value: float) -> str:
    if math.isinf(value):
        return "none"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.5g}"


def markdown(claims: Sequence[Claim], command: str) -> str:
    parts = [_HEAD.format(command=command)]
    for paper, of_paper in groupby(claims, key=lambda claim: claim.paper):
        module = PAPERS[paper]
        parts.append(f"## {paper}: {module.TITLE}\n")
        parts.append(module.introduction())
        for section in sections(of_paper):
            parts.append(f"### {section.title}\n")
            parts.append(f"{section.shared}\n")
            lines = [list(COLUMNS), ["---"] * len(COLUMNS), *section.cells]
            parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n")
            parts.append("\n".join(f"- [{place}] {note}" for place, note in enumerate(section.notes, 1)) + "\n")
    return "\n".join(parts)
