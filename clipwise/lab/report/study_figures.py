"""The charts of a study: accuracy against epsilon, and against the option that the study's [picture] names."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clipwise.lab.report.figures import Figure, Point, Series, Target
from clipwise.lab.study import About, Cell
from clipwise.validate import finite_or_none

_Line = Mapping[str, Any]


def study_figures(about: About, lines: Sequence[_Line], cells: Sequence[Cell]) -> list[Figure]:
    """The picture first, then accuracy against epsilon where there are several."""
    figures = []
    if about.picture is not None:
        figures += _pictures(about.picture, [line for line in lines if line.get("accuracy") is not None])
    for data, model in dict.fromkeys((cell.data, cell.model) for cell in cells):
        here = [cell for cell in cells if (cell.data, cell.model) == (data, model)]
        if len({cell.epsilon for cell in here if cell.epsilon is not None}) > 1:
            figures.append(_against_epsilon(data, model, here))
    return figures


def _against_epsilon(data: str, model: str, cells: Sequence[Cell]) -> Figure:
    series = []
    for variant in dict.fromkeys(cell.variant for cell in cells if cell.epsilon is not None):
        own = [cell for cell in cells if cell.variant == variant]
        points = [_point(c.epsilon, [a / 100 for a in c.accuracies]) for c in own if c.epsilon is not None]
        series.append(Series(variant, tuple(points)))
    plain = [cell for cell in cells if cell.epsilon is None]
    return Figure(
        name=f"{data}-{model}".replace("/", "-"),
        title=f"{data}, {model}: accuracy against epsilon",
        x_label="epsilon",
        y_label="test accuracy",
        series=tuple(series),
        target=Target("without privacy", plain[0].mean / 100) if plain else None,
        percent=True,
        x_log=True,
        note=_spread(series),
    )


def _pictures(option: str, lines: Sequence[_Line]) -> list[Figure]:
    """For each data set, model and epsilon: a line for each method that was given the option, a level for all others."""
    figures = []
    private = [line for line in lines if line["target_epsilon"] is not None]
    for data, model, epsilon in dict.fromkeys((r["data"], r["model"], r["target_epsilon"]) for r in private):
        here = [r for r in private if (r["data"], r["model"], r["target_epsilon"]) == (data, model, epsilon)]
        moved = [r for r in here if _given(option, r) is not None]
        at = sorted({x for r in moved if (x := _given(option, r)) is not None})
        if len(at) < 2:
            continue  # nothing to draw against yet
        series = []
        for method in dict.fromkeys(r["method"] for r in moved):
            own = [r for r in moved if r["method"] == method]
            by_x = {x: _accuracies(r for r in own if _given(option, r) == x) for x in at}
            series.append(Series(method, tuple(_point(x, some) for x, some in by_x.items() if some)))
        for variant in dict.fromkeys(r["variant"] for r in here if _given(option, r) is None):
            level = statistics.fmean(_accuracies(r for r in here if r["variant"] == variant))
            series.append(Series(variant, tuple(Point(x, level) for x in at), dashed=True, marked=False))
        plain = _accuracies(r for r in lines if (r["data"], r["model"], r["target_epsilon"]) == (data, model, None))
        figures.append(
            Figure(
                name=f"{data}-{model}-{option}-epsilon-{epsilon:g}".replace("/", "-"),
                title=f"{data}, {model}, epsilon {epsilon:g}: accuracy against {option}",
                x_label=option.replace("_", " "),
                y_label="test accuracy",
                series=tuple(series),
                target=Target("without privacy", statistics.fmean(plain)) if plain else None,
                percent=True,
                x_log=at[0] > 0 and at[-1] / at[0] >= 4,
                note=f"dashed: methods that are not given a {option.replace('_', ' ')}; {_spread(series)}".rstrip("; "),
            )
        )
    return figures


def _given(option: str, line: _Line) -> float | None:
    """What the study file gave this run: an option of the method, or one of the run."""
    of_method = line.get("asked_method_options") or {}
    return finite_or_none(of_method.get(option, line.get(f"asked_{option}", line.get(option))))


def _accuracies(lines: Iterable[_Line]) -> list[float]:
    return [line["accuracy"] for line in lines]


def _point(x: float, accuracies: Sequence[float]) -> Point:
    y = statistics.fmean(accuracies)
    if len(accuracies) == 1:
        return Point(x, y)
    half = statistics.stdev(accuracies)
    return Point(x, y, y - half, y + half)


def _spread(series: Sequence[Series]) -> str:
    """What is drawn around the points: a bar where only one of a line has several seeds, a band otherwise."""
    most = max((sum(p.low is not None for p in s.points) for s in series), default=0)
    return f"{'bars' if most == 1 else 'bands'}: standard deviation over the seeds" if most else ""
