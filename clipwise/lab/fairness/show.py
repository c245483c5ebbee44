"""The comparison as tables and as pictures: what privacy costs each group, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clipwise.fairness.intervals import LEVEL, Interval
from clipwise.fairness.metrics import Measure
from clipwise.lab.fairness.study import WITHOUT, Gap, Gradients, OverRuns, Row
from clipwise.lab.report.figures import Figure, Point, Series, Target, in_markdown
from clipwise.lab.report.grouped_bars import Bar, BarSeries, GroupedBars, as_series
from clipwise.lab.study.definition import Study

EXPLANATION = f"""\
Per cent, on the public test part; means over the seeds. The *cost* of privacy to a group is the accuracy of the models
without privacy on that group minus that of the private ones. The *gap* of two groups is the difference of their costs, in
absolute value: 0 is fair, whatever the accuracy. In brackets, {LEVEL:.0%} bootstrap intervals over test records and seeds.
Epsilon is the honest one, every step counted. The largest gap is over all pairs of groups, and for that reason comes out
too large rather than too small."""
WHY = """\
What clipping does to the gradients of each group's test records, by the finished models (no noise is added here):
*clipped* is the share of records whose gradient is scaled down more than a vanishing one would be, *turned* the angle in
degrees between the group's mean gradient before and after clipping, *kept* how much of its length is left, beside the
group that keeps most (100). Means over the seeds. A method that normalises clips every gradient."""


def to_markdown(
    study: Study, rows: Sequence[Row], command: str, group_by: str, pictures: Mapping[str, str] | None = None
) -> str:
    """`pictures` are files beside the page, each with its sentence for those who do not see it."""
    parts = [f"# {study.title or study.name}", "", f"Made by `{command}`."]
    parts += [f"Compares with: {study.source}."] if study.source else []
    parts += [f"What differs: {study.differs}."] if study.differs else []
    parts += [f"Tuning: {study.tuning}.", "", EXPLANATION, ""]
    for data, model in dict.fromkeys((row.data, row.model) for row in rows):
        here = [row for row in rows if (row.data, row.model) == (data, model)]
        parts += [f"## {data}, {model}, groups by {group_by}", "", *_table(here), ""]
        if any(row.gradients for row in here):
            parts += ["### Why: clipping by group", "", WHY, "", *_gradient_table(here), ""]
    if pictures:
        parts += ["## Pictures", "", *(in_markdown(file, alt) for file, alt in pictures.items())]
    return "\n".join(parts).rstrip() + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    pairs = next((tuple(gap.groups for gap in row.gaps) for row in rows if row.gaps), ())
    named = list(dict.fromkeys(group for pair in pairs if pair for group in pair))
    published = any(gap.published is not None for row in rows for gap in row.gaps)
    differences = any(row.parity.value is not None or row.odds.value is not None for row in rows)
    heads = ["method", "epsilon", "seeds", "accuracy", "AUC", *(f"accuracy of {group}" for group in named)]
    heads += [f"gap {a}, {b}" for a, b in (pair for pair in pairs if pair)]
    heads += ["published gap"] if published else []
    heads += ["largest gap", "lowest group"]
    heads += ["parity difference", "odds difference"] if differences else []
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for row in rows:
        accuracy, deviation = row.accuracy
        cells = [row.variant, _epsilon(row), str(row.runs)]
        cells += [f"{100 * accuracy:.2f}" + ("" if deviation is None else f" ± {100 * deviation:.2f}")]
        cells += [_area(row.auc, row.auc_interval)]
        cells += [_per_cent(row.by_group[row.names.index(group)]) for group in named]
        cells += [_gap(gap) for gap in row.gaps] or [""] * len(pairs)
        if published:
            known = [gap.published for gap in row.gaps if gap.published is not None]
            cells.append(f"{known[0]:g}" if known else "")
        cells.append("" if row.worst is None else _gap(row.worst, name=True))
        cells.append(f"{row.worst_group[0]}: {_per_cent(row.worst_group[1])}")
        if differences:
            cells += [_with(row.parity, row.differences.parity), _with(row.odds, row.differences.odds)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _gradient_table(rows: Sequence[Row]) -> list[str]:
    """A line a method, epsilon and group."""
    lines = ["| method | epsilon | group | clipped | turned | kept | cost of privacy |", f"|{' --- |' * 7}"]
    for row in rows:
        for place, (name, of_group) in enumerate(zip(row.names, row.gradients, strict=False)):
            cost = _per_cent(row.costs[place]) if row.costs else ""
            turned = of_group.direction_error.mean
            cells = [row.variant, _epsilon(row), name, _per_cent(of_group.clipped_share.mean)]
            cells += [f"none: {turned.note}" if turned.value is None else f"{turned.value:.2f}"]
            cells += [_per_cent(of_group.kept.mean), cost]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def short_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows for a terminal; the file has more."""
    pairs = next((tuple(gap.groups for gap in row.gaps) for row in rows if row.gaps), ())
    columns = ["method", "epsilon", "accuracy", *(f"gap {a}, {b}" for a, b in (pair for pair in pairs if pair))]
    lines = []
    for row in rows:
        cells = [row.variant, _epsilon(row), f"{100 * row.accuracy[0]:.2f}"]
        cells += [_gap(gap) for gap in row.gaps] or [""] * len(pairs)
        cells.append("" if row.worst is None else _gap(row.worst))
        lines.append([*cells, f"{row.worst_group[0]}: {_per_cent(row.worst_group[1])}"])
    return [*columns, "largest gap", "lowest group"], lines


def _epsilon(row: Row) -> str:
    if row.epsilon is None:
        return "infinite"
    return f"{row.epsilon:g}" + ("" if row.spent is not None else " (no guarantee)")


def _area(measure: Measure, interval: Interval) -> str:
    if measure.value is None:
        return f"none: {measure.note}"
    known = interval.low is not None and interval.high is not None
    return f"{measure.value:.4f}" + (f" ({interval.low:.4f} to {interval.high:.4f})" if known else "")


def _with(measure: Measure, interval: Interval) -> str:
    text = _per_cent(measure)
    if measure.value is None or interval.low is None or interval.high is None:
        return text
    return f"{text} ({100 * interval.low:.2f} to {100 * interval.high:.2f})"


def _per_cent(measure: Measure) -> str:
    return f"none: {measure.note}" if measure.value is None else f"{100 * measure.value:.2f}"


def _gap(gap: Gap, *, name: bool = False) -> str:
    if gap.gap.value is None:
        return f"none: {gap.gap.note}"
    text = _with(gap.gap, gap.interval)
    return text + (f", {gap.groups[0]} pays more than {gap.groups[1]}" if name and gap.groups else "")


def to_figures(rows: Sequence[Row]) -> list[Figure]:
    """The gap against epsilon, a line a method, for each pair that was asked for and for the worst; and the lowest
    accuracy of a group, beside that without privacy. Of the first data set and model, where there are several."""
    here = [row for row in rows if (row.data, row.model) == (rows[0].data, rows[0].model)] if rows else []
    private = [row for row in here if row.variant != WITHOUT and row.epsilon is not None]
    plain = next((row for row in here if row.variant == WITHOUT), None)
    figures = []
    pairs = next((tuple(gap.groups for gap in row.gaps) for row in private), ())
    for place, pair in enumerate(p for p in pairs if p):
        points = [(row, _point(row, row.gaps[place])) for row in private]
        title = f"Privacy cost gap between {pair[0]} and {pair[1]}"
        figures += _figure(f"gap-{place + 1}", title, "gap", points, note=f"band: {LEVEL:.0%} bootstrap interval")
    points = [(row, _point(row, row.worst)) for row in private if row.worst is not None]
    figures += _figure("gap-largest", "Largest privacy cost gap of two groups", "gap", points, note="")
    lowest = [(row, _lowest(row)) for row in private]
    target = None
    if plain is not None and plain.worst_group[1].value is not None:
        target = Target(WITHOUT, plain.worst_group[1].value)
    return figures + _figure(
        "lowest-group", "Accuracy of the group it is lowest for", "accuracy", lowest, target=target
    )


def to_charts(rows: Sequence[Row]) -> list[Figure | GroupedBars]:
    """`to_figures`, with bars in place of those whose lines would be single points, one above the other."""
    return [_as_bars(figure) if _is_one_column(figure) else figure for figure in to_figures(rows)]


def _is_one_column(figure: Figure) -> bool:
    return len({point.x for series in figure.series for point in series.points}) == 1


def _as_bars(figure: Figure) -> GroupedBars:
    (epsilon,) = {point.x for series in figure.series for point in series.points}
    bars = {series.label: Bar(*series.points[0][1:]) for series in figure.series}
    if figure.target is not None:
        bars[figure.target.label] = Bar(figure.target.y)
    return GroupedBars(
        name=figure.name,
        title=f"{figure.title} at epsilon {epsilon:g}",
        y_label=figure.y_label,
        categories=tuple(bars),
        series=(BarSeries(figure.y_label, tuple(bars.values())),),
        percent=figure.percent,
        note=figure.note.replace("band:", "whiskers:"),
    )


def to_bars(rows: Sequence[Row]) -> list[GroupedBars]:
    """Clipped share, direction error and what is kept, by group, a cluster a method, at the epsilon in the middle of those compared. Of the
    first data set and model, where there are several."""
    here = [row for row in rows if (row.data, row.model) == (rows[0].data, rows[0].model)] if rows else []
    known = [row for row in here if row.gradients]
    if not known:
        return []
    epsilons = sorted({row.epsilon for row in known if row.epsilon is not None})
    middle = epsilons[len(epsilons) // 2] if epsilons else None
    chosen = [row for row in known if row.epsilon == middle]
    pairs = [gap.groups for row in chosen[:1] for gap in row.gaps if gap.groups]
    strong = tuple(dict.fromkeys(group for pair in pairs for group in pair))
    at = "" if middle is None else f" at epsilon {middle:g}"
    charts = []
    for name, title, y_label, percent in (
        ("clipped_share", f"Share of gradients that are clipped{at}", "clipped", True),
        ("direction_error", f"How far clipping turns a group's mean gradient{at}", "degrees", False),
        ("kept", f"What clipping keeps of a group's mean gradient{at}", "of the most that a group keeps", True),
    ):
        columns = [[_bar(name, of_group) for of_group in row.gradients] for row in chosen]
        charts.append(
            GroupedBars(
                name=name.replace("_", "-"),
                title=title,
                y_label=y_label,
                categories=tuple(row.variant for row in chosen),
                series=as_series(chosen[0].names, columns),
                strong=strong if len(chosen[0].names) > len(strong) else (),
                percent=percent,
                note="whiskers: lowest and highest seed" if any(row.runs > 1 for row in chosen) else "",
            )
        )
    return charts


def _bar(name: str, of_group: Gradients) -> Bar | None:
    found: OverRuns = getattr(of_group, name)
    return None if found.mean.value is None else Bar(found.mean.value, found.low, found.high)


def _point(row: Row, gap: Gap) -> Point | None:
    if gap.gap.value is None or row.epsilon is None:
        return None
    return Point(row.epsilon, gap.gap.value, gap.interval.low, gap.interval.high)


def _lowest(row: Row) -> Point | None:
    value = row.worst_group[1].value
    return None if value is None or row.epsilon is None else Point(row.epsilon, value)


def _figure(
    name: str, title: str, y_label: str, points: Sequence[tuple[Row, Point | None]], **more: Any
) -> list[Figure]:
    by_variant: dict[str, list[Point]] = {}
    for row, point in points:
        if point is not None:
            by_variant.setdefault(row.variant, []).append(point)
    if not by_variant:
        return []
    series = tuple(Series(variant, tuple(some)) for variant, some in by_variant.items())
    return [
        Figure(
            name=name,
            title=title,
            x_label="epsilon",
            y_label=y_label,
            series=series,
            from_zero=True,
            percent=True,
            **more,
        )
    ]
