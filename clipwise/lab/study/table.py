"""Results as tables: one row a variant, one column an epsilon, seeds as mean and spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clipwise.lab.study.definition import About
from clipwise.lab.study.tuning_table import PAID, tuning_section

NOT_PRIVATE = "not private"
LEGEND = (
    "Test accuracy in per cent, mean ± standard deviation over the seeds. Epsilon is the honest one, every step "
    "counted, and equal for all methods in a column."
)


@dataclass(frozen=True)
class Cell:
    """Accuracy in per cent of one variant at one epsilon on one data set and model."""

    data: str
    model: str
    variant: str
    epsilon: float | None  # the target; None for a run without privacy
    accuracies: tuple[float, ...]
    spent: float | None  # the largest honest epsilon of the runs
    published: float | None = None
    claimed: float | None = None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """Sample standard deviation over the seeds."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.spread is None else f" ± {self.spread:.2f}")


def summarise(about: About, lines: Iterable[Mapping[str, Any]]) -> list[Cell]:
    """Cells in the order of the study's variants and of rising epsilon."""
    order = {variant: place for place, variant in enumerate(about.published)}
    groups: dict[tuple[str, str, str, float | None], list[Mapping[str, Any]]] = {}
    for line in lines:
        if line.get("accuracy") is not None:
            key = (line["data"], line["model"], line["variant"], line["target_epsilon"])
            groups.setdefault(key, []).append(line)
    cells = []
    for (data, model, variant, epsilon), runs in groups.items():
        spent = [run["epsilon"] for run in runs]
        known = about.published.get(variant, {}).get("inf" if epsilon is None else f"{epsilon:g}")
        cells.append(
            Cell(
                data,
                model,
                variant,
                epsilon,
                tuple(100 * run["accuracy"] for run in runs),
                None if None in spent else max(spent),
                known,
                max((run["claimed_epsilon"] for run in runs if "claimed_epsilon" in run), default=None),
            )
        )
    return sorted(cells, key=lambda c: (c.data, c.model, order.get(c.variant, 0), _rank(c.epsilon)))


def to_markdown(about: About, lines: Sequence[Mapping[str, Any]]) -> str:
    cells = summarise(about, lines)
    parts = [
        f"# {about.title or about.name}",
        "",
        *(f"- {fact}" for fact in facts(about, lines)),
        "",
        legend(lines),
        "",
    ]
    if any(cell.published is not None for cell in cells):
        parts[-2] += " In brackets: the source's own figure."
    for data, model in dict.fromkeys((cell.data, cell.model) for cell in cells):
        here = [cell for cell in cells if (cell.data, cell.model) == (data, model)]
        parts += [f"## {data}, {model}", "", *_grid(here), ""]
        if not any(cell.epsilon is None for cell in here):
            parts += ["No run without privacy is part of this table.", ""]
    return "\n".join([*parts, *_errors(lines), *tuning_section(lines)]).rstrip() + "\n"


def _errors(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Runs that have a squared error on the test part, and no accuracy."""
    rows = [
        f"| {line['data']}, {line['model']} | {line['variant']} | {heading(line['target_epsilon'])} | {line['test_loss']:.4f} |"
        for line in lines
        if line.get("accuracy") is None and line.get("test_loss") is not None
    ]
    heads = ["| data, model | method | epsilon | squared error |", "| --- | --- | --- | ---: |"]
    return ["## Squared error on the test part", "", *heads, *rows, ""] if rows else []


def legend(lines: Sequence[Mapping[str, Any]]) -> str:
    """What the figures are."""
    return f"{LEGEND} {PAID}" if any("tuning" in line for line in lines) else LEGEND


def facts(about: About, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """How it was made and what it compares with, a sentence each."""
    said = [f"Made by `{about.command}`: {len(lines)} of {len(about.trials)} runs, clipwise {_versions(lines)}."]
    if about.source:
        said += [f"Compares with: {about.source}.", *([f"What differs: {about.differs}."] if about.differs else [])]
    else:
        said.append(f"Compares with nothing published{f': {about.differs}' if about.differs else ''}.")
    cost = {
        "none": "Tuning: none",
        "charged": "Tuning: charged (its cost is part of epsilon)",
        "not charged": "Tuning: not charged (epsilon is that of each run alone)",
    }.get(about.tuning_cost, "Tuning: not said whether it is charged")
    return [*said, f"{cost}; {about.tuning}." if about.tuning else f"{cost}."]


def heading(epsilon: float | None) -> str:
    return NOT_PRIVATE if epsilon is None else f"epsilon {epsilon:g}"


def _grid(cells: Sequence[Cell]) -> list[str]:
    epsilons = sorted({cell.epsilon for cell in cells}, key=_rank)
    heads = [heading(epsilon) for epsilon in epsilons]
    rows = [f"| method | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for variant in dict.fromkeys(cell.variant for cell in cells):
        of = {cell.epsilon: cell for cell in cells if cell.variant == variant}
        rows.append(f"| {variant} | {' | '.join(_shown(of.get(epsilon)) for epsilon in epsilons)} |")
    return rows


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return ""
    text = str(cell)
    if cell.epsilon is not None and cell.spent is None:
        text += " (no guarantee" + ("" if cell.claimed is None else f"; claimed epsilon {cell.claimed:.2f}") + ")"
    return text + ("" if cell.published is None else f" (published {cell.published:g})")


def _rank(epsilon: float | None) -> float:
    return math.inf if epsilon is None else epsilon


def _versions(lines: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(sorted({str(line.get("clipwise", "?")) for line in lines})) or "?"
