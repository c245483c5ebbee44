"""The charts of a study: accuracy against epsilon, and against the option, or the two, that the study's [picture] names."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clipwise.lab.report.figures import Figure, Point, Series, Target
from clipwise.lab.report.heat import Heat
from clipwise.lab.study import About, Cell
from clipwise.lab.study.regret import part, places
from clipwise.lab.study.table import heading, stated
from clipwise.validate import finite_or_none

_Line = Mapping[str, Any]


def study_figures(about: About, lines: Sequence[_Line], cells: Sequence[Cell]) -> list[Figure]:
    """The picture first, then accuracy against epsilon where there are several."""
    figures = []
    if about.picture is not None and about.picture_y is None:
        figures += _pictures(about, about.picture, [line for line in lines if line.get("accuracy") is not None])
    for data, model in dict.fromkeys((cell.data, cell.model) for cell in cells):
        here = [cell for cell in cells if (cell.data, cell.model) == (data, model)]
        if len({cell.at for cell in here if cell.at is not None}) > 1:
            figures += _against_epsilon(about, data, model, here)
    return figures


def study_heats(about: About, lines: Sequence[_Line]) -> list[Heat]:
    """For each data set, model, epsilon and method: mean accuracy for each pair of the picture's two options."""
    if about.picture is None or about.picture_y is None:
        return []
    x, y = about.picture, about.picture_y
    known = [r for r in lines if r.get("accuracy") is not None and stated(r) is not None]
    keys = dict.fromkeys((r["data"], r["model"], stated(r), r["method"]) for r in known)
    heats = []
    for data, model, at, method in keys:
        here = [r for r in known if (r["data"], r["model"], stated(r), r["method"]) == (data, model, at, method)]
        xs, ys = (sorted({v for r in here if (v := _asked(name, r)) is not None}, key=_order) for name in (x, y))
        if len(xs) < 2 or len(ys) < 2:
            continue  # nothing to draw yet, or a method without these options
        found = [[_accuracies(r for r in here if (_asked(x, r), _asked(y, r)) == (a, b)) for a in xs] for b in ys]
        counts = {len(some) for row in found for some in row if some}
        seeds = f"mean of {min(counts)} to {max(counts)} seeds" if len(counts) > 1 else f"mean of {max(counts)} seeds"
        where = heading(at, about.keyed)
        heats.append(
            Heat(
                name=f"{data}-{model}-{method}-{x}-{y}-{where}".replace("/", "-").replace(" ", "-"),
                title=f"{method}: {data}, {model}, {where}",
                x_label=x.replace("_", " "),
                y_label=y.replace("_", " "),
                xs=tuple(map(_words, xs)),
                ys=tuple(map(_words, ys)),
                values=tuple(tuple(statistics.fmean(some) if some else None for some in row) for row in found),
                percent=True,
                note=f"test accuracy, {seeds if max(counts) > 1 else 'one seed'}",
            )
        )
    return heats


def regret_heats(about: About, cells: Sequence[Cell]) -> list[Heat]:
    """Tasks by epsilon, of a study that judges one variant against a grid."""
    if about.regret is None or not (found := places(about.regret, cells)):
        return []
    of = about.regret["of"]
    named = dict.fromkeys(f"{place.task} ({part(place)})" for place in found)
    epsilons = sorted({place.at for place in found})
    known = {(f"{place.task} ({part(place)})", place.at): round(place.regret(of) or 0.0, 2) for place in found}
    return [
        Heat(
            name=f"regret-of-{of}",
            title=f"Regret of {of}, in points",
            x_label="epsilon",
            y_label="task",
            xs=tuple(f"{at:g}" for at in epsilons),
            ys=tuple(named),
            values=tuple(tuple(known.get((name, at)) for at in epsilons) for name in named),
            note=f"against the grid's best, which was {about.tuning_cost}",
        )
    ]


def _against_epsilon(about: About, data: str, model: str, cells: Sequence[Cell]) -> list[Figure]:
    """Over the epsilon that the file states; where it states sigma_0, over the honest epsilon that each cell came to."""
    series = []
    for variant in dict.fromkeys(cell.variant for cell in cells if cell.at is not None):
        own = [(cell.spent if about.keyed == "noise" else cell.at, cell) for cell in cells if cell.variant == variant]
        placed = sorted(((x, cell) for x, cell in own if x is not None), key=lambda pair: pair[0])
        points = [_point(x, [a / 100 for a in cell.accuracies]) for x, cell in placed]
        theirs = [
            Point(x, c.published / 100) for x, c in placed if c.published is not None and about.keyed == "epsilon"
        ]
        if points:
            series.append(Series(variant, tuple(points), published=tuple(theirs)))
    if not series:
        return []
    plain = [cell for cell in cells if cell.at is None]
    marks = (
        "diamonds: published, at the source's own way of counting epsilon" if any(s.published for s in series) else ""
    )
    return [_epsilon_figure(data, model, series, plain, marks, honest=about.keyed == "noise")]


def _epsilon_figure(
    data: str, model: str, series: Sequence[Series], plain: Sequence[Cell], marks: str, *, honest: bool
) -> Figure:
    return Figure(
        name=f"{data}-{model}".replace("/", "-"),
        title=f"{data}, {model}: accuracy against epsilon",
        x_label="honest epsilon" if honest else "epsilon",
        y_label="test accuracy",
        series=tuple(series),
        target=Target("without privacy", plain[0].mean / 100) if plain else None,
        percent=True,
        x_log=True,
        note="; ".join(filter(None, [_spread(series), marks])),
    )


def _pictures(about: About, option: str, lines: Sequence[_Line]) -> list[Figure]:
    """For each data set, model and epsilon: a line for each method that was given the option, a level for all others."""
    figures = []
    private = [line for line in lines if stated(line) is not None]
    for data, model, at_ in dict.fromkeys((r["data"], r["model"], stated(r)) for r in private):
        here = [r for r in private if (r["data"], r["model"], stated(r)) == (data, model, at_)]
        where = heading(at_, about.keyed)
        moved = [r for r in here if _given(option, r) is not None]
        at = sorted({x for r in moved if (x := _given(option, r)) is not None})
        if len(at) < 2:
            continue  # nothing to draw against yet
        series = []
        for method in dict.fromkeys(map(_method, moved)):
            own = [r for r in moved if _method(r) == method]
            by_x = {x: _accuracies(r for r in own if _given(option, r) == x) for x in at}
            theirs = _published(about, option, own, at_)
            series.append(Series(method, tuple(_point(x, some) for x, some in by_x.items() if some), published=theirs))
        for variant in dict.fromkeys(r["variant"] for r in here if _given(option, r) is None):
            level = statistics.fmean(_accuracies(r for r in here if r["variant"] == variant))
            series.append(Series(variant, tuple(Point(x, level) for x in at), dashed=True, marked=False))
        plain = _accuracies(r for r in lines if (r["data"], r["model"], stated(r)) == (data, model, None))
        figures.append(
            Figure(
                name=f"{data}-{model}-{option}-{where.replace(' ', '-')}".replace("/", "-"),
                title=f"{data}, {model}, {where}: accuracy against {option}",
                x_label=option.replace("_", " "),
                y_label="test accuracy",
                series=tuple(series),
                target=Target("without privacy", statistics.fmean(plain)) if plain else None,
                percent=True,
                x_log=at[0] > 0 and at[-1] / at[0] >= 4,
                note=_picture_note(option, series),
            )
        )
    return figures


def _picture_note(option: str, series: Sequence[Series]) -> str:
    dashed = f"dashed: methods that are not given a {option.replace('_', ' ')}" if any(s.dashed for s in series) else ""
    marks = "diamonds: published" if any(s.published for s in series) else ""
    return "; ".join(filter(None, [dashed, _spread(series), marks]))


def _method(line: _Line) -> str:
    """What one line of a picture is: a method, and its noise where that is not constant."""
    schedule = str(line.get("asked_schedule") or "constant")
    return line["method"] if schedule == "constant" else f"{line['method']}, {schedule.partition(':')[0]}"


def _published(about: About, option: str, lines: Sequence[_Line], at: float | None) -> tuple[Point, ...]:
    """The source's own figures for these runs, where it has one, by the option."""
    column = f"{at:g}" if at is not None else ""
    known = {_given(option, r): about.published.get(r["variant"], {}).get(column) for r in lines}
    return tuple(Point(x, y / 100) for x, y in sorted(known.items()) if x is not None and y is not None)


def _asked(option: str, line: _Line) -> Any:
    """What the study file gave this run: an option of the method, or one of the run."""
    of_method = line.get("asked_method_options") or {}
    return of_method.get(option, line.get(f"asked_{option}", line.get(option)))


def _given(option: str, line: _Line) -> float | None:
    return finite_or_none(_asked(option, line))


def _order(value: Any) -> tuple[str, Any]:
    return ("", value) if isinstance(value, int | float) else ("text", str(value))


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, int | float) else str(value)


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
