"""What a chart shows, apart from how it is drawn: `svg.py` draws a figure for a page, `plots.py` the same one as PNG.

A run's figures are made from the lines of its metrics, whatever numbers these hold: a new method or schedule needs
nothing here. Numbers that are not finite are left out of a chart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from clipwise.proportion import wilson
from clipwise.validate import finite_or_none


class Point(NamedTuple):
    x: float
    y: float
    low: float | None = None  # an interval around y
    high: float | None = None


@dataclass(frozen=True)
class Series:
    label: str
    points: tuple[Point, ...]
    dashed: bool = False
    marked: bool = True  # each point gets a mark, unless there are many
    published: tuple[Point, ...] = ()  # another's figures for the same, drawn as diamonds


class Target(NamedTuple):
    """A level to compare with, drawn across the chart."""

    label: str
    y: float


@dataclass(frozen=True, kw_only=True)
class Figure:
    name: str  # also the name of its file
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    target: Target | None = None
    from_zero: bool = False  # the y axis starts at 0
    percent: bool = False
    x_log: bool = False  # for an option whose candidates are factors apart; all x are above 0
    y_log: bool = False  # also where the values alone would not ask for it; all y are above 0
    note: str = ""

    @property
    def log(self) -> bool:
        """Values over several orders of magnitude are drawn on a log scale."""
        if self.y_log:
            return True
        ys = [p.y for s in self.series for p in s.points]
        linear = self.from_zero or self.percent or not ys or min(ys) < 1e-300  # a log scale has no 0
        return not linear and max(ys) / min(ys) > 50

    @property
    def constant(self) -> bool:
        """Nothing moves: a number says it all."""
        return all(p.y == s.points[0].y for s in self.series for p in s.points)

    def shown(self, y: float) -> str:
        """A value of this chart, for people."""
        return f"{100 * y:.2f} %" if self.percent else short(y)

    def alt(self) -> str:
        """The chart in a sentence, for those who do not see it."""
        parts = []
        for s in self.series:
            first, last = s.points[0], s.points[-1]
            if all(p.y == first.y for p in s.points):
                parts.append(f"{s.label} is {self.shown(first.y)} throughout")
            else:
                span = f"{self.x_label} {short(first.x)} to {short(last.x)}"
                top = max(s.points, key=lambda p: p.y)
                peak = f" to {self.shown(top.y)} at {short(top.x)} and" if top.y > max(first.y, last.y) else ""
                parts.append(f"{s.label} goes from {self.shown(first.y)}{peak} to {self.shown(last.y)} over {span}")
        target = f"; {self.target.label} {self.shown(self.target.y)}" if self.target else ""
        return f"{self.title}: {'; '.join(parts)}{target}."


def in_markdown(file: str, alt: str) -> str:
    """A picture in Markdown; brackets in its sentence would end it."""
    flat = alt.replace("[", "(").replace("]", ")").replace("\n", " ")
    return f"![{flat}]({file})\n"


# Numbers that belong in one chart, in the order of the page; all others follow, a chart each.
_FIGURES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Privacy spent", "epsilon", ("epsilon", "claimed_epsilon")),
    ("Accuracy on test data", "accuracy", ("accuracy",)),
    ("Clipping threshold C", "threshold", ("threshold", "thresholds", "norm_median", "norm_90")),
    ("Upper bound Z", "upper bound", ("upper",)),
    ("Noise multiplier (noise std / l2 bound)", "noise multiplier", ("noise_multiplier",)),
    ("Learning rate", "learning rate", ("lr", "learning_rate")),
)
_LABELS = {
    "lr": "lr, of the last step",
    "learning_rate": "learning_rate, of the next step",
    "threshold": "threshold C",
    "norm_median": "median of the norms, as released",
    "norm_90": "90th percentile of the norms, as released",
}
_POSITIONS = ("step", "epoch")


def run_figures(
    lines: Sequence[Mapping[str, Any]],
    path: Sequence[Mapping[str, Any]] = (),
    *,
    target_epsilon: float | None = None,
    test_size: int | None = None,
) -> list[Figure]:
    """A figure for every number that the lines hold, over steps; by the lines of `path`, a step each, for those that
    these hold."""
    every = [*lines, *path]
    x_name = next(
        (name for name in _POSITIONS if any(finite_or_none(line.get(name)) is not None for line in every)), "line"
    )
    keys = list(dict.fromkeys(key for line in every for key in line if key not in _POSITIONS))
    by_step = {key for line in path for key in line}
    known = {key for _, _, group in _FIGURES for key in group}
    others = [(key, key.replace("_", " ")) for key in keys if key not in known]
    groups = [*_FIGURES, *((words[:1].upper() + words[1:], words, (key,)) for key, words in others)]
    figures: list[Figure] = []
    for title, y_label, group in groups:
        series = [
            s
            for key in group
            for s in _series(path if key in by_step else lines, x_name, key, test_size if key == "accuracy" else None)
        ]
        if not series:
            continue
        if len(series) > 1:
            series = [Series(_LABELS.get(s.label, s.label), s.points) for s in series]
        intervals = any(p.low is not None for s in series for p in s.points)
        figures.append(
            Figure(
                name=_file_name(group[0], {figure.name for figure in figures}),
                title=title,
                x_label=x_name,
                y_label=y_label,
                series=tuple(series),
                target=Target("target", target_epsilon) if group[0] == "epsilon" and target_epsilon else None,
                from_zero=group[0] == "epsilon",
                percent=group[0] == "accuracy",
                note=f"band: 95 % interval (Wilson) for {test_size} test records" if intervals else "",
            )
        )
    return figures


def _series(lines: Sequence[Mapping[str, Any]], x_name: str, key: str, test_size: int | None) -> list[Series]:
    """One series for a number, one an entry for a list of numbers (a threshold for each group)."""
    found: dict[str, list[Point]] = {}
    for place, line in enumerate(lines, start=1):
        x = finite_or_none(line.get(x_name)) if x_name != "line" else float(place)
        value = line.get(key)
        entries = enumerate(value) if isinstance(value, list) else [(None, value)]
        for entry, item in entries:
            y = finite_or_none(item)
            if x is not None and y is not None:
                label = key if entry is None else f"{key} {entry}"
                found.setdefault(label, []).append(Point(x, y, *(wilson(y, test_size) if test_size else ())))
    return [Series(label, tuple(points)) for label, points in found.items()]


def short(value: float) -> str:
    """Six significant digits, for people; tables hold the whole number."""
    return f"{value:.6g}"


def _file_name(key: str, taken: set[str]) -> str:
    stem = re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")[:40] or "value"
    names = (stem, *(f"{stem}-{n}" for n in range(2, len(taken) + 3)))
    return next(name for name in names if name not in taken)


def thinned(points: Sequence[Point], most: int = 800) -> list[Point]:
    """At most about `most` of the points, the highest and lowest of each stretch among them: a long run stays small."""
    if len(points) <= most:
        return list(points)
    width = math.ceil(2 * len(points) / most)
    kept: set[int] = {0, len(points) - 1}
    for start in range(0, len(points), width):
        stretch = range(start, min(start + width, len(points)))
        kept |= {min(stretch, key=lambda i: points[i].y), max(stretch, key=lambda i: points[i].y)}
    return [points[i] for i in sorted(kept)]
