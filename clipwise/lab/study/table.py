"""Results as tables: one row a variant, one column an epsilon, seeds as mean and spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clipwise.lab.study.definition import About, Keyed
from clipwise.lab.study.regret import regret_section
from clipwise.lab.study.tuning_table import PAID, tuning_section

NOT_PRIVATE = "not private"
LEGEND = (
    "Test accuracy in per cent, mean ± standard deviation over the seeds. Epsilon is the honest one, every step "
    "counted, and equal for all methods in a column."
)
BY_NOISE = (
    "Test accuracy in per cent, mean ± standard deviation over the seeds. A column is one first noise multiplier, sigma_0, as the source "
    "has it; what it costs differs with the schedule and the method, so that each figure has its honest epsilon (every step counted) beside it."
)

# What a method does otherwise since a version, for pages that hold runs of that version: (version, method) -> what
CHANGED = {
    (
        "0.1.0",
        "dc-sgd-e",
    ): "since then the range of its histogram is read off the counts as released, and falls 10 to 40 times more quickly "
    "at batches of 64 to 128: its figures here may not be those of today"
}


@dataclass(frozen=True)
class Cell:
    """Accuracy in per cent (100 R², where numbers are learned) of one variant at one epsilon on one data set and model."""

    data: str
    model: str
    variant: str
    at: float | None  # its column: the epsilon, or sigma_0, that the file states; None for a run without privacy
    accuracies: tuple[float, ...]
    spent: float | None  # the largest honest epsilon of the runs
    published: float | None = None
    claimed: float | None = None
    seeds: tuple[int, ...] = ()  # of the accuracies, in their order

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
        if score(line) is not None:
            key = (line["data"], line["model"], line["variant"], stated(line))
            groups.setdefault(key, []).append(line)
    cells = []
    for (data, model, variant, at), runs in groups.items():
        spent = [run["epsilon"] for run in runs]
        known = about.published.get(variant, {}).get("inf" if at is None else f"{at:g}")
        cells.append(
            Cell(
                data,
                model,
                variant,
                at,
                tuple(100 * found for run in runs if (found := score(run)) is not None),
                None if None in spent else max(spent),
                known,
                max((run["claimed_epsilon"] for run in runs if "claimed_epsilon" in run), default=None),
                tuple(run["seed"] for run in runs),
            )
        )
    return sorted(cells, key=lambda c: (c.data, c.model, order.get(c.variant, 0), _rank(c.at)))


def score(line: Mapping[str, Any]) -> float | None:
    """Accuracy; R² on the test part of a run that learned numbers; None where there is neither."""
    accuracy = line.get("accuracy")
    found: float | None = (line.get("errors") or {}).get("r2") if accuracy is None else accuracy
    return found


def stated(line: Mapping[str, Any]) -> float | None:
    """The epsilon of a run, or its sigma_0, as its study states it; None without privacy."""
    target = line["target_epsilon"]
    return line.get("asked_noise_multiplier") if target is None else target


def to_markdown(about: About, lines: Sequence[Mapping[str, Any]]) -> str:
    cells = summarise(about, lines)
    parts = [
        f"# {about.title or about.name}",
        "",
        *(f"- {fact}" for fact in facts(about, lines)),
        "",
        legend(about, lines),
        "",
    ]
    if any(cell.published is not None for cell in cells):
        parts[-2] += " In brackets: the source's own figure."
    parts += regret_section(about.regret, cells)
    for data, model in dict.fromkeys((cell.data, cell.model) for cell in cells):
        here = [cell for cell in cells if (cell.data, cell.model) == (data, model)]
        parts += [f"## {data}, {model}", "", *_grid(about, here), ""]
        if not any(cell.at is None for cell in here):
            parts += ["No run without privacy is part of this table.", ""]
    return "\n".join([*parts, *_errors(about, lines), *tuning_section(lines)]).rstrip() + "\n"


def _errors(about: About, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Runs that have a squared error on the test part, and neither accuracy nor R²."""
    rows = [
        f"| {line['data']}, {line['model']} | {line['variant']} | {heading(stated(line), about.keyed)} | {line['test_loss']:.4f} |"
        for line in lines
        if score(line) is None and line.get("test_loss") is not None
    ]
    heads = ["| data, model | method | epsilon | squared error |", "| --- | --- | --- | ---: |"]
    return ["## Squared error on the test part", "", *heads, *rows, ""] if rows else []


def legend(about: About, lines: Sequence[Mapping[str, Any]]) -> str:
    """What the figures are."""
    figures = BY_NOISE if about.keyed == "noise" else LEGEND
    if any(line.get("accuracy") is None and score(line) is not None for line in lines):
        figures += " Where numbers are learned: 100 R² on the test part, in the place of accuracy."
    return f"{figures} {PAID}" if any("tuning" in line for line in lines) else figures


def facts(about: About, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """How it was made and what it compares with, a sentence each."""
    said = [f"Made by `{about.command}`: {len(lines)} of {len(about.trials)} runs, clipwise {_versions(lines)}."]
    said += [
        f"**Of before**: `{method}` was run by clipwise {version}; {since}."
        for (version, method), since in CHANGED.items()
        if any(line["method"] == method and line["clipwise"] == version for line in lines)
    ]
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


def heading(at: float | None, keyed: Keyed = "epsilon") -> str:
    return NOT_PRIVATE if at is None else f"{'sigma_0' if keyed == 'noise' else 'epsilon'} {at:g}"


def _grid(about: About, cells: Sequence[Cell]) -> list[str]:
    columns = sorted({cell.at for cell in cells}, key=_rank)
    heads = [heading(at, about.keyed) for at in columns]
    rows = [f"| method | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for variant in dict.fromkeys(cell.variant for cell in cells):
        of = {cell.at: cell for cell in cells if cell.variant == variant}
        rows.append(f"| {variant} | {' | '.join(_shown(about, of.get(at)) for at in columns)} |")
    return rows


def _shown(about: About, cell: Cell | None) -> str:
    if cell is None:
        return ""
    text = str(cell)
    if about.keyed == "noise" and cell.at is not None and cell.spent is not None:
        text += f" at epsilon {cell.spent:.2f}"
    if cell.at is not None and cell.spent is None:
        text += " (no guarantee" + ("" if cell.claimed is None else f"; claimed epsilon {cell.claimed:.2f}") + ")"
    return text + ("" if cell.published is None else f" (published {cell.published:g})")


def _rank(at: float | None) -> float:
    return math.inf if at is None else at


def _versions(lines: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(sorted({str(line.get("clipwise", "?")) for line in lines})) or "?"
