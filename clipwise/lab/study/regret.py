"""How far a variant is below the best of a grid, for studies whose file has [regret]. Whether the grid's search is part of epsilon is the
study's `tuning_cost`.

[regret]
of = "auto"                             # the variant that is judged
grid = ["sgd, ", "adam, "]              # how the names of the grid's variants begin
development = ["digits, mlp"]           # tasks that the variant's own constants were chosen on; all others are held out
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.lab.study.table import Cell

_KEYS = {"of": str, "grid": list, "development": list}
WORDS = (
    "Regret is in points of test accuracy (of 100 R², where numbers are learned): the best mean of the grid at this task and epsilon, less the "
    "variant's own; below 0 the variant is ahead of all of the grid. The best is picked among the settings that have run with the most seeds (if two "
    "or more have), on the test records, so that it flatters the grid. A grid that misses more than two thirds of its "
    "settings at a point is left out there. Cross-fitted: the setting that is best on all other seeds is scored on the one that is left out, and "
    "the mean over the seeds is taken, so that nobody is judged by the runs that chose it; among the settings that have run with all of these "
    "seeds, two or more of them. Where more seeds were run with a few settings alone, the first ones chose those, and are not scored. ± is a "
    "standard error, of the spread between seeds on both sides (in the summary, of the mean of its cells); that all settings of a seed share "
    "batches and noise makes it no smaller."
)


class Fitted(NamedTuple):
    """The grid's best setting, picked on some seeds and scored on others."""

    scores: tuple[float, ...]  # one a seed that was left out
    settings: int  # among which it was picked

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)


class Place(NamedTuple):
    """One task at one epsilon."""

    task: str
    at: float
    held_out: bool
    best: Cell  # of the grid
    settings: int  # of the grid that were run here
    others: Mapping[str, Cell]  # by variant, the judged one among them
    fitted: Fitted | None  # None where the grid has one seed

    def regret(self, variant: str) -> float | None:
        return self.best.mean - self.others[variant].mean if variant in self.others else None

    def error(self, variant: str) -> float | None:
        """Of the cross-fitted regret; None where either side has one seed."""
        own = self.others[variant]
        if self.fitted is None or own.spread is None:
            return None
        if len(self.fitted.scores) < 2:
            return None
        variances = (statistics.variance(self.fitted.scores), own.spread**2)
        return math.hypot(
            *(math.sqrt(v / n) for v, n in zip(variances, (len(self.fitted.scores), len(own.accuracies)), strict=True))
        )


def check_regret(table: Mapping[str, Any], path: object) -> dict[str, Any] | None:
    if not table:
        return None
    if table.keys() != _KEYS.keys() or not all(isinstance(table[name], kind) for name, kind in _KEYS.items()):
        raise BadArgument(
            f"study={str(path)!r}: [regret] is {dict(table)!r}; it has of, a name, and grid and development, lists of names"
        )
    return dict(table)


def places(asked: Mapping[str, Any], cells: Sequence[Cell]) -> list[Place]:
    """Where the judged variant and enough of the grid have been run."""
    begins = tuple(asked["grid"])
    whole = len({cell.variant for cell in cells if cell.variant.startswith(begins)})
    found = []
    for data, model, at in dict.fromkeys((cell.data, cell.model, cell.at) for cell in cells):
        here = [cell for cell in cells if (cell.data, cell.model, cell.at) == (data, model, at)]
        grid = [cell for cell in here if cell.variant.startswith(begins)]
        others = {cell.variant: cell for cell in here if not cell.variant.startswith(begins)}
        if at is not None and asked["of"] in others and grid and 3 * len(grid) >= whole:
            task, held_out = f"{data}, {model}", f"{data}, {model}" not in asked["development"]
            found.append(Place(task, at, held_out, best_of(grid), len(grid), others, cross_fitted(grid)))
    return found


def best_of(grid: Sequence[Cell]) -> Cell:
    """Among the settings with the most seeds that two of them have: one lucky seed is not held against the mean of three."""
    most = sorted(len(cell.accuracies) for cell in grid)[-2:][0]
    return max((cell for cell in grid if len(cell.accuracies) >= most), key=lambda cell: cell.mean)


def cross_fitted(grid: Sequence[Cell]) -> Fitted | None:
    """Leave one seed out: picked by the mean over the others, scored on it. Seeds that one setting alone has do not count; and where some seeds
    were run with a few settings only, the others, which will have chosen these, are not left out."""
    runs = [dict(zip(cell.seeds, cell.accuracies, strict=True)) for cell in grid]
    having = {seed: sum(seed in run for run in runs) for run in runs for seed in run}
    seeds = [seed for seed, count in having.items() if count > 1]
    whole = [run for run in runs if all(seed in run for seed in seeds)]
    if len(seeds) < 2 or len(whole) < 2:
        return None
    scored = [seed for seed in seeds if 2 * having[seed] < max(having.values())] or seeds
    scores = []
    for left_out in scored:
        picked = max(whole, key=lambda run: sum(run[s] for s in seeds if s != left_out))
        scores.append(picked[left_out])
    return Fitted(tuple(scores), len(whole))


def regret_section(asked: Mapping[str, Any] | None, cells: Sequence[Cell]) -> list[str]:
    """Lines of Markdown: every place, then mean and worst of each variant."""
    if asked is None or not (found := places(asked, cells)):
        return []
    of = asked["of"]
    lines = [f"## Regret of {of}", "", WORDS, ""]
    lines += [
        f"| task | | epsilon | {of} | best of the grid | which (settings run) | seeds | regret | cross-fitted (settings) | regret by it |",
        f"|{' --- |' * 10}",
    ]
    for place in found:
        own = place.others[of]
        which = f"{place.best.variant} ({place.settings})"
        fitted = "" if place.fitted is None else f"{place.fitted.mean:.2f} ({place.fitted.settings})"
        by_it = "" if place.fitted is None else _with_error(place.fitted.mean - own.mean, place.error(of))
        lines.append(
            f"| {place.task} | {part(place)} | {place.at:g} | {own} | {place.best} | {which} | "
            f"{len(own.accuracies)} / {len(place.best.accuracies)} | {place.regret(of):.2f} | {fitted} | {by_it} |"
        )
    lines += [
        "",
        f"Seeds: of {of} / of the grid's best.",
        "",
        "| tasks | cells | mean | worst | cells with two seeds | mean, cross-fitted | worst |",
    ]
    lines += [f"|{' --- |' * 7}"]
    for words, some in (
        ("development", [p for p in found if not p.held_out]),
        ("held out", [p for p in found if p.held_out]),
        ("all", found),
    ):
        lines.append(
            f"| {words} | {_summary([p.best.mean - p.others[of].mean for p in some])} | {_fitted_summary(some, of)} |"
        )
    return [*lines, "", *_of_all(found, cells)]


def part(place: Place) -> str:
    return "held out" if place.held_out else "development"


def _of_all(found: Sequence[Place], cells: Sequence[Cell]) -> list[str]:
    """Every variant that was run at all places, and once more where the most variants were."""
    most = max(len(place.others) for place in found)
    most_run = [place for place in found if len(place.others) == most]
    return [*_ranked(found, cells), *(_ranked(most_run, cells) if len(most_run) < len(found) else [])]


def _ranked(where: Sequence[Place], cells: Sequence[Cell]) -> list[str]:
    means = {(f"{c.data}, {c.model}", c.at, c.variant): c.mean for c in cells}
    rows = []
    for variant in dict.fromkeys(c.variant for c in cells if c.at is not None):
        regrets = [p.best.mean - means[p.task, p.at, variant] for p in where if (p.task, p.at, variant) in means]
        if len(regrets) == len(where):
            rows.append((statistics.fmean(regrets), max(regrets), variant))
    named = dict.fromkeys(p.task for p in where)
    at = "; ".join(f"{task} at {', '.join(f'{p.at:g}' for p in where if p.task == task)}" for task in named)
    words = f"One variant for all tasks, by mean regret, on {len(where)} cells ({at}):"
    shown = [f"| {name} | {mean:.2f} | {worst:.2f} |" for mean, worst, name in sorted(rows)]
    return [words, "", "| variant | mean | worst |", "| --- | --- | --- |", *shown, ""]


def _summary(regrets: Sequence[float]) -> str:
    return f"{len(regrets)} | {statistics.fmean(regrets):.2f} | {max(regrets):.2f}" if regrets else "0 | |"


def _fitted_summary(where: Sequence[Place], of: str) -> str:
    regrets = [p.fitted.mean - p.others[of].mean for p in where if p.fitted is not None]
    if not regrets:
        return "0 | |"
    errors = [p.error(of) for p in where if p.fitted is not None]
    known = [error for error in errors if error is not None]
    error = math.hypot(*known) / len(known) if len(known) == len(errors) else None
    return f"{len(regrets)} | {_with_error(statistics.fmean(regrets), error)} | {max(regrets):.2f}"


def _with_error(value: float, error: float | None) -> str:
    return f"{value:.2f}" + ("" if error is None else f" ± {error:.2f}")
