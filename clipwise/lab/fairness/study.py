"""From the runs of a study to what privacy costs each group: one row for each variant and epsilon.

The runs are those of `clipwise study`, each in a folder with the model's answers to the public test records. Every row is
compared with the runs without privacy (epsilon = inf) of the same data set and model, seeds as one mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clipwise.data.grouping import BY_CLASS, group_index
from clipwise.fairness import intervals, metrics
from clipwise.fairness.intervals import Interval
from clipwise.fairness.metrics import Array, Measure
from clipwise.lab.study.definition import Study
from clipwise.types import BadArgument

WITHOUT = "without privacy"
Pair = tuple[str, str]


class OverRuns(NamedTuple):
    """The mean of a figure over the runs, and the lowest and highest of them."""

    mean: Measure
    low: float | None = None
    high: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**self.mean.to_dict(), **({} if self.low is None else {"range": [self.low, self.high]})}


class Gradients(NamedTuple):
    """What the method does to the gradients of one group, at the end of the runs (see gradients.py)."""

    clipped_share: OverRuns
    direction_error: OverRuns
    kept: OverRuns

    def to_dict(self) -> dict[str, Any]:
        return {name: value.to_dict() for name, value in self._asdict().items()}


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
            "interval": self.interval.to_list(),
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
    auc_interval: Interval
    parity: Measure  # demographic parity difference, and
    odds: Measure  # equalised odds difference: means over the runs
    differences: intervals.Differences  # their intervals
    names: tuple[str, ...]
    by_group: tuple[Measure, ...]  # mean accuracy of each group
    worst_group: tuple[str | None, Measure]
    gradients: tuple[Gradients, ...] = ()  # of each group; empty for runs that clip nothing
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
            "auc": intervals.with_interval(self.auc, self.auc_interval),
            "demographic_parity_difference": intervals.with_interval(self.parity, self.differences.parity),
            "equalised_odds_difference": intervals.with_interval(self.odds, self.differences.odds),
            "accuracy_by_group": {n: m.to_dict() for n, m in zip(self.names, self.by_group, strict=True)},
            "worst_group": self.worst_group[0],
            "worst_group_accuracy": self.worst_group[1].to_dict(),
            "gradients_by_group": {n: g.to_dict() for n, g in zip(self.names, self.gradients, strict=False)},
            "cost_by_group": {n: m.to_dict() for n, m in zip(self.names, self.costs, strict=False)},
            "gaps": [gap.to_dict() for gap in self.gaps],
            "worst_pair": None if self.worst is None else self.worst.to_dict(),
        }


@dataclass(frozen=True)
class _Runs:
    """The finished runs of one row, with their answers."""

    lines: Sequence[Mapping[str, Any]]
    group_by: str
    predicted: Array  # (runs, records)
    scores: Array | None  # (runs, records, classes); None where a run did not keep them
    targets: Array
    groups: Array
    names: tuple[str, ...]

    @property
    def right(self) -> Array:
        return self.predicted == self.targets

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
            rows.append(_row(data, model, variant, epsilon, runs, resamples))
            continue
        plain = kept.get((data, model, WITHOUT, None))
        if plain is None:
            raise BadArgument(
                f"study={study.name!r} has no finished run without privacy for {data}, {model}: there is nothing to compare "
                "with; add a variant with epsilon = inf"
            )
        known = published.get(variant, {}).get(f"{epsilon:g}") if epsilon is not None else None
        rows.append(
            _compared(_row(data, model, variant, epsilon, runs, resamples), runs, plain, pairs, known, resamples)
        )
    place = {name: n for n, name in enumerate([WITHOUT, *(v for v in order if v != WITHOUT)])}
    return sorted(rows, key=lambda r: (r.data, r.model, place.get(r.variant, 0), r.epsilon or 0.0))


def _plain(line: Mapping[str, Any]) -> bool:
    return line["method"] == "none"  # what `clipwise train` writes for epsilon = inf


def _read(lines: Sequence[Mapping[str, Any]], folder: Path, group_by: str) -> _Runs:
    predictions: list[Array] = []
    scores: list[Array] = []
    names = None
    targets = groups = np.zeros(0, int)
    for line in lines:
        path = folder / line["run"] / "predictions.npz"
        figures = line.get("by_group", {}).get(group_by)
        try:
            with np.load(path, allow_pickle=False) as file:
                predicted, true, own = file["predicted"], file["targets"], file[f"group {group_by}"]
                scores += [file["scores"]] if "scores" in file else []
        except (OSError, KeyError, ValueError) as error:
            raise BadArgument(
                f"{path} does not hold the answers by {group_by!r} ({error}); delete the line {line['id']} of results.jsonl to "
                "run it again"
            ) from error
        differs = predictions and not (np.array_equal(own, groups) and np.array_equal(true, targets))
        if figures is None or differs:
            raise BadArgument(f"{path}: the test records or their groups differ from run to run; start in a new folder")
        predictions.append(predicted)
        targets, groups, names = true, own, tuple(entry["group"] for entry in figures["groups"])
    every = np.array(scores) if len(scores) == len(predictions) else None
    return _Runs(lines, group_by, np.array(predictions), every, targets, groups, names or ())


def _row(data: str, model: str, variant: str, epsilon: float | None, runs: _Runs, resamples: int) -> Row:
    accuracies = [line["accuracy"] for line in runs.lines]
    spent = [line["epsilon"] for line in runs.lines]
    worst, lowest = metrics.worst_group(runs.averages)
    of_groups = [line["by_group"][runs.group_by] for line in runs.lines]
    parity, odds = (
        _mean([figures.get(name, {}) for figures in of_groups]).mean
        for name in ("demographic_parity_difference", "equalised_odds_difference")
    )
    return Row(
        data,
        model,
        variant,
        epsilon,
        None if None in spent else max(spent),
        len(runs.lines),
        (statistics.fmean(accuracies), statistics.stdev(accuracies) if len(accuracies) > 1 else None),
        _mean([line["auc"] for line in runs.lines]).mean,
        _auc_interval(runs, resamples),
        parity,
        odds,
        _differences(runs, resamples),
        runs.names,
        runs.averages,
        (None if worst is None else runs.names[worst], lowest),
        _gradients(runs),
    )


def _mean(entries: Sequence[Mapping[str, Any]]) -> OverRuns:
    """Of figures as results hold them, {value, note}: none where one of them is none."""
    missing = next((entry.get("note", "none") for entry in entries if entry.get("value") is None), None)
    if missing is not None:
        return OverRuns(Measure(None, missing))
    values = [float(entry["value"]) for entry in entries]
    return OverRuns(Measure(statistics.fmean(values)), min(values), max(values))


def _auc_interval(runs: _Runs, resamples: int) -> Interval:
    if runs.scores is None:
        return Interval(None, None, "the runs did not keep their scores")
    fewer = min(resamples, intervals.AUC_RESAMPLES)
    return intervals.roc_auc_interval(runs.targets, runs.scores, resamples=fewer)


def _differences(runs: _Runs, resamples: int) -> intervals.Differences:
    if runs.group_by == BY_CLASS:
        nothing = Interval(None, None, "the groups are the classes")
        return intervals.Differences(nothing, nothing)
    classes = len(runs.lines[0]["by_group"][BY_CLASS]["groups"])
    return intervals.difference_intervals(
        runs.targets, runs.predicted, runs.groups, len(runs.names), classes, resamples=resamples
    )


def _gradients(runs: _Runs) -> tuple[Gradients, ...]:
    """Means over the runs, for the grouping of the comparison."""
    entries = [line["gradients"] for line in runs.lines if line.get("gradients", {}).get("group_by") == runs.group_by]
    if not entries or len(entries) < len(runs.lines):
        return ()
    return tuple(
        Gradients(*(_mean([_figure(entry["groups"][place], name) for entry in entries]) for name in Gradients._fields))
        for place in range(len(runs.names))
    )


def _figure(line: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"value": line[name], "note": line.get("note", "none")}


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
