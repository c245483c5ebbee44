"""From the runs of a study to what privacy costs each group: one row for each variant and epsilon.

The runs are those of `clipwise study`, each in a folder with the model's answers to the public test records. Every row is
compared with the runs without privacy (epsilon = inf) of the same data set and model, seeds as one mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clipwise.fairness import intervals, metrics
from clipwise.fairness.grouping import BY_CLASS, group_index
from clipwise.fairness.intervals import Interval
from clipwise.fairness.metrics import Array, Measure
from clipwise.study.definition import Study
from clipwise.types import BadArgument

WITHOUT = "without privacy"
Pair = tuple[str, str]


@dataclass(frozen=True)
class Gap:
    """The privacy cost gap of two groups; `groups` is None where there is no pair to name."""

    groups: Pair | None
    gap: Measure
    interval: Interval
    published: float | None = None  # per cent, by the study's source

    def to_dict(self) -> dict[str, Any]:
        return {
            "groups": self.groups,
            "gap": self.gap.to_dict(),
            "interval": None if self.interval.low is None else [self.interval.low, self.interval.high],
            "published_per_cent": self.published,
        }


@dataclass(frozen=True)
class Row:
    """One variant at one epsilon. Costs and gaps are empty for the runs without privacy themselves."""

    data: str
    model: str
    variant: str
    epsilon: float | None  # the target; None without privacy
    spent: float | None  # the largest honest epsilon of the runs; None without a guarantee
    runs: int
    accuracy: tuple[float, float | None]  # mean, and standard deviation over the runs
    auc: Measure
    names: tuple[str, ...]
    by_group: tuple[Measure, ...]  # mean accuracy of each group
    worst_group: tuple[str | None, Measure]
    costs: tuple[Measure, ...] = ()  # pi_m of each group
    gaps: tuple[Gap, ...] = ()  # of the pairs that were asked for
    worst: Gap | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "model": self.model,
            "variant": self.variant,
            "target_epsilon": self.epsilon,
            "epsilon": self.spent,
            "runs": self.runs,
            "accuracy": self.accuracy[0],
            "accuracy_deviation": self.accuracy[1],
            "auc": self.auc.to_dict(),
            "accuracy_by_group": {n: m.to_dict() for n, m in zip(self.names, self.by_group, strict=True)},
            "worst_group": self.worst_group[0],
            "worst_group_accuracy": self.worst_group[1].to_dict(),
            "cost_by_group": {n: m.to_dict() for n, m in zip(self.names, self.costs, strict=False)},
            "gaps": [gap.to_dict() for gap in self.gaps],
            "worst_pair": None if self.worst is None else self.worst.to_dict(),
        }


@dataclass(frozen=True)
class _Runs:
    """The finished runs of one row, with their answers."""

    lines: Sequence[Mapping[str, Any]]
    right: Array  # (runs, records)
    groups: Array
    names: tuple[str, ...]

    @property
    def accuracies(self) -> list[list[Measure]]:
        return [metrics.mean_by_group(right, self.groups, len(self.names)) for right in self.right]

    @property
    def averages(self) -> tuple[Measure, ...]:
        nothing = [Measure(0.0) for _ in self.names]
        costs = metrics.accuracy_parity(self.accuracies, [nothing])  # an average minus nothing
        return tuple(costs)


def compare(
    study: Study,
    lines: Iterable[Mapping[str, Any]],
    folder: Path,
    *,
    group_by: str = BY_CLASS,
    pairs: Sequence[Pair] = (),
    resamples: int = intervals.RESAMPLES,
) -> list[Row]:
    """Rows in the order of the study, the runs without privacy first. Private runs without any to compare with are
    refused."""
    published = {trial.variant: trial.published_gap for trial in study.trials}
    order = list(dict.fromkeys(trial.variant for trial in study.trials))
    found: dict[tuple[str, str, str, float | None], list[Mapping[str, Any]]] = {}
    for line in lines:
        key = (line["data"], line["model"], WITHOUT if _plain(line) else line["variant"], line["target_epsilon"])
        found.setdefault(key, []).append(line)
    kept = {key: _read(some, folder, group_by) for key, some in found.items()}
    rows = []
    for (data, model, variant, epsilon), runs in kept.items():
        if variant == WITHOUT:
            rows.append(_row(data, model, variant, epsilon, runs))
            continue
        plain = kept.get((data, model, WITHOUT, None))
        if plain is None:
            raise BadArgument(
                f"study={study.name!r} has no finished run without privacy for {data}, {model}: there is nothing to compare "
                "with; add a variant with epsilon = inf"
            )
        known = published.get(variant, {}).get(f"{epsilon:g}") if epsilon is not None else None
        rows.append(_compared(_row(data, model, variant, epsilon, runs), runs, plain, pairs, known, resamples))
    place = {name: n for n, name in enumerate([WITHOUT, *(v for v in order if v != WITHOUT)])}
    return sorted(rows, key=lambda r: (r.data, r.model, place.get(r.variant, 0), r.epsilon or 0.0))


def _plain(line: Mapping[str, Any]) -> bool:
    return line["method"] == "none"  # what `clipwise train` writes for epsilon = inf


def _read(lines: Sequence[Mapping[str, Any]], folder: Path, group_by: str) -> _Runs:
    right, groups, names = [], None, None
    for line in lines:
        path = folder / line["run"] / "predictions.npz"
        figures = line.get("by_group", {}).get(group_by)
        try:
            with np.load(path, allow_pickle=False) as file:
                predicted, targets, own = file["predicted"], file["targets"], file[f"group {group_by}"]
        except (OSError, KeyError, ValueError) as error:
            raise BadArgument(
                f"{path} does not hold the answers by {group_by!r} ({error}); delete the line {line['id']} of results.jsonl to "
                "run it again"
            ) from error
        if figures is None or (groups is not None and not np.array_equal(own, groups)):
            raise BadArgument(f"{path}: the test records or their groups differ from run to run; start in a new folder")
        right.append(predicted == targets)
        groups, names = own, tuple(entry["group"] for entry in figures["groups"])
    return _Runs(lines, np.array(right), groups if groups is not None else np.zeros(0, int), names or ())


def _row(data: str, model: str, variant: str, epsilon: float | None, runs: _Runs) -> Row:
    accuracies = [line["accuracy"] for line in runs.lines]
    areas = [line["auc"] for line in runs.lines]
    missing = next((a.get("note", "none") for a in areas if a["value"] is None), None)
    auc = Measure(None, missing) if missing else Measure(statistics.fmean(a["value"] for a in areas))
    spent = [line["epsilon"] for line in runs.lines]
    worst, lowest = metrics.worst_group(runs.averages)
    return Row(
        data,
        model,
        variant,
        epsilon,
        None if None in spent else max(spent),
        len(runs.lines),
        (statistics.fmean(accuracies), statistics.stdev(accuracies) if len(accuracies) > 1 else None),
        auc,
        runs.names,
        runs.averages,
        (None if worst is None else runs.names[worst], lowest),
    )


def _compared(
    row: Row, runs: _Runs, plain: _Runs, pairs: Sequence[Pair], published: float | None, resamples: int
) -> Row:
    from dataclasses import replace

    if runs.names != plain.names or not np.array_equal(runs.groups, plain.groups):
        raise BadArgument(
            f"{row.variant}: other test records than those of the runs without privacy; start in a new folder"
        )
    costs = metrics.accuracy_parity(plain.accuracies, runs.accuracies)
    drawn = intervals.resample(plain.right, runs.right, runs.groups, len(runs.names), resamples=resamples).costs
    gaps = []
    for place, pair in enumerate(pairs):
        a, b = (group_index(runs.names, group, row.data) for group in pair)
        gaps.append(
            Gap(
                pair,
                metrics.privacy_cost_gap(costs, a, b),
                intervals.gap_interval(drawn, a, b),
                published if place == 0 else None,
            )
        )
    numbers, gap = metrics.worst_pair(costs)
    named = None if numbers is None else (runs.names[numbers[0]], runs.names[numbers[1]])
    worst = Gap(named, gap, intervals.worst_gap_interval(drawn))
    return replace(row, costs=tuple(costs), gaps=tuple(gaps), worst=worst)
