"""How the runs of a study went: accuracy by epoch, and threshold, noise and learning rate by step, a line a variant.

From the files of each run (metrics.jsonl and path.jsonl, which are public), so that a study without its runs has none. Lines
are means over the seeds, bands their standard deviation. A data set and a model each have a row of charts, at the column of
the table (an epsilon, or a sigma_0) that has the most runs.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clipwise.lab.report.figures import Figure, Point, Series
from clipwise.lab.study import About
from clipwise.lab.study.table import heading, stated
from clipwise.validate import finite_or_none

_Line = Mapping[str, Any]
_MOST_LINES = 16  # of a chart: with more, colours repeat and nothing is seen
# (file, x, y, title): charts in the order of a row
_CHARTS = (
    ("metrics.jsonl", "epoch", "accuracy", "accuracy"),
    ("metrics.jsonl", "epoch", "test_loss", "loss on the test part"),
    ("path.jsonl", "step", "threshold", "clipping threshold"),
    ("path.jsonl", "step", "norm_median", "median of the norms, as released"),
    ("path.jsonl", "step", "upper", "upper bound"),
    ("path.jsonl", "step", "mean_sensitivity", "mean norm, not noised"),
    ("path.jsonl", "step", "noise_multiplier", "noise multiplier"),
    ("path.jsonl", "step", "lr", "learning rate"),
)


def study_curves(about: About, lines: Sequence[_Line], folder: Path) -> list[Figure]:
    figures = []
    for data, model in dict.fromkeys((line["data"], line["model"]) for line in lines):
        here = [line for line in lines if (line["data"], line["model"]) == (data, model)]
        columns = Counter(at for line in here if (at := stated(line)) is not None)
        if not columns:
            continue
        at, _ = columns.most_common(1)[0]
        shown = [line for line in here if stated(line) == at]
        if len({line["variant"] for line in shown}) > _MOST_LINES:
            continue
        files = {
            line["id"]: {name: _read(folder, line, name) for name in ("metrics.jsonl", "path.jsonl")} for line in shown
        }
        for file, x, y, title in _CHARTS:
            series = [
                Series(variant, points, marked=False)
                for variant in dict.fromkeys(line["variant"] for line in shown)
                if len(points := _mean([files[r["id"]][file] for r in shown if r["variant"] == variant], x, y)) > 1
            ]
            series = _seen(series)
            if series and (y == "accuracy" or _moves(series)):
                where = f"{data}, {model}, {heading(at, about.keyed)}"
                figures.append(_figure(f"{data}-{model}-{y}".replace("/", "-"), f"{where}: {title}", x, title, series))
    return figures


def _figure(name: str, title: str, x: str, y: str, series: Sequence[Series]) -> Figure:
    several = any(p.low is not None for s in series for p in s.points)
    note = "bands: standard deviation over the seeds" if several else ""
    percent = y == "accuracy"
    return Figure(
        name=f"by-{x}-{name}", title=title, x_label=x, y_label=y, series=tuple(series), percent=percent, note=note
    )


def _seen(series: Sequence[Series]) -> list[Series]:
    """Lines that lie on each other as one, since only the last of them would be seen: it has all their names."""
    names: dict[tuple[Point, ...], list[str]] = {}
    for each in series:
        names.setdefault(each.points, []).append(each.label)
    if len(names) == 1 and len(series) > 1:
        return [Series("all methods", series[0].points, marked=False)]
    return [Series(_joined(of), points, marked=False) for points, of in names.items()]


def _joined(names: Sequence[str]) -> str:
    return "; ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"


def _moves(series: Sequence[Series]) -> bool:
    """A chart of constants tells nothing that the table does not."""
    return any(p.y != s.points[0].y for s in series for p in s.points)


def _mean(runs: Sequence[Sequence[_Line]], x: str, y: str) -> tuple[Point, ...]:
    """The mean over the runs (seeds) at every x that all of them have."""
    paths = []
    for lines in runs:
        pairs = ((finite_or_none(line.get(x)), finite_or_none(line.get(y))) for line in lines)
        paths.append({a: b for a, b in pairs if a is not None and b is not None})
    if not paths:
        return ()
    points = []
    for at in sorted(set.intersection(*(set(path) for path in paths))):
        ys = [path[at] for path in paths]
        half = statistics.stdev(ys) if len(ys) > 1 else None
        mean = statistics.fmean(ys)
        points.append(Point(at, mean) if half is None else Point(at, mean, mean - half, mean + half))
    return tuple(points)


def _read(folder: Path, line: _Line, name: str) -> list[_Line]:
    try:
        text = (folder / str(line.get("run")) / name).read_text(encoding="utf-8")
        return [found for row in text.splitlines() if isinstance(found := json.loads(row), dict)]
    except (OSError, ValueError):
        return []  # the run's folder is gone, or not whole
