"""Draws a figure as SVG, for a page or as a file of its own. Colours are CSS classes, so that one drawing serves light
and dark; every text goes through `escape`."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from html import escape

from clipwise.lab.report.figures import Figure, Point, short, thinned

COLOURS = 8  # then they repeat, dashed
MARKED = 40  # a series of more points is a line without marks

CSS = """
.chart-svg{--ink:#1c2430;--faint:#5d6876;--grid:#dfe4ea;--c0:#0b62a8;--c1:#bc4a10;--c2:#12755a;--c3:#8a3f96;
--c4:#8c6100;--c5:#4d5a68;--c6:#b3246b;--c7:#1b7f94;font-family:system-ui,"Segoe UI",Helvetica,Arial,sans-serif}
@media (prefers-color-scheme:dark){.chart-svg{--ink:#e6ebf1;--faint:#a2adba;--grid:#333d49;--c0:#6cb4ff;--c1:#ff9d6b;
--c2:#58d3ac;--c3:#d5a4ff;--c4:#e5bb4f;--c5:#b4bfcb;--c6:#ff8fbf;--c7:#66d3e8}}
@media print{.chart-svg{--ink:#000;--faint:#333;--grid:#ccc;--c0:#0b62a8;--c1:#bc4a10;--c2:#12755a;--c3:#8a3f96;
--c4:#8c6100;--c5:#4d5a68;--c6:#b3246b;--c7:#1b7f94}}
.chart-svg text{font-size:12px;fill:var(--faint)}.chart-svg .legend{fill:var(--ink)}
.chart-svg .grid{stroke:var(--grid)}.chart-svg .axis{stroke:var(--faint)}
.chart-svg .line{fill:none;stroke-width:2;stroke-linejoin:round}.chart-svg .dashed{stroke-dasharray:6 4}
.chart-svg .band{fill-opacity:.16;stroke:none}.chart-svg .target{stroke:var(--ink);stroke-dasharray:3 4}
.chart-svg .cursor{stroke:var(--faint);visibility:hidden}.chart-svg .cursor.on{visibility:visible}
""" + "".join(f".chart-svg .c{i}{{stroke:var(--c{i})}}.chart-svg .f{i}{{fill:var(--c{i})}}" for i in range(COLOURS))
# A file of its own is shown on a page of unknown colour, so it brings its background.
BACK = ".chart-svg{background:#fff}@media (prefers-color-scheme:dark){.chart-svg{background:#12171d}}"
BOTTOM, LEGEND_LINE, LETTER = 44, 18, 6.8  # LETTER: width of one, about


class Canvas:
    """A figure laid out: scales, ticks and the place of every point, in the units of the drawing."""

    def __init__(self, figure: Figure, width: int, height: int):
        self.figure = figure
        self.series = [thinned(s.points) for s in figure.series]
        xs = [p.x for points in self.series for p in points] + [p.x for s in figure.series for p in s.published]
        ys = [y for points in self.series for p in points for y in (p.y, p.low, p.high) if y is not None]
        ys += [figure.target.y] if figure.target else []
        ys += [p.y for s in figure.series for p in s.published]
        self.x_ticks, x_low, x_high = _x_axis(xs, figure.x_log)
        self.x_text = short if figure.x_log else _tick_text(self.x_ticks)
        self.right = width - 8 - math.ceil(LETTER / 2 * len(self.x_text(self.x_ticks[-1])))
        if figure.log:
            self.y_ticks, y_low, y_high = _log_axis(min(ys), max(ys))
        else:
            low, high = min(ys), max(ys)
            self.y_ticks, y_low, y_high = _axis(0.0 if figure.from_zero else low, high, 6)
            if figure.percent:
                y_low, y_high = max(y_low, 0.0), min(y_high, 1.0)
                self.y_ticks = [t for t in self.y_ticks if y_low - 1e-9 <= t <= y_high + 1e-9]
        self.y_text = _percent if figure.percent else _tick_text(self.y_ticks)
        self.left = 34 + math.ceil(LETTER * max(len(self.y_text(t)) for t in self.y_ticks))
        self.legend = _legend(figure, self.left, self.right)
        self.top = 12 + (LEGEND_LINE * (1 + max((line for _, line, _ in self.legend), default=-1)))
        self.height = height + self.top - 12
        self.bottom = self.height - BOTTOM
        self.x = _scale(x_low, x_high, self.left, self.right, log=figure.x_log)
        self.y = _scale(y_low, y_high, self.bottom, self.top, log=figure.log)


def draw(figure: Figure, *, width: int = 560, height: int = 280, standalone: bool = False) -> str:
    """The drawing; `standalone` puts the style into it, for a file of its own."""
    canvas = Canvas(figure, width, height)
    parts = [
        *(_grid_line(canvas, t, canvas.y_text(t)) for t in canvas.y_ticks),
        *(
            f'<text x="{_n(canvas.x(t))}" y="{canvas.bottom + 18}" text-anchor="middle">{canvas.x_text(t)}</text>'
            for t in canvas.x_ticks
        ),
        f'<path class="axis" d="M{canvas.left} {canvas.bottom}H{canvas.right}"/>',
        f'<text x="{_n((canvas.left + canvas.right) / 2)}" y="{canvas.height - 8}" text-anchor="middle">'
        f"{escape(figure.x_label)}</text>",
        f'<text transform="rotate(-90)" x="{_n(-(canvas.top + canvas.bottom) / 2)}" y="14" text-anchor="middle">'
        f"{escape(figure.y_label)}</text>",
        *(_series(canvas, place) for place in range(len(figure.series))),
        _target(canvas),
        *(_legend_entry(*entry, figure) for entry in canvas.legend),
        f'<path class="cursor" d="M0 {canvas.top}V{canvas.bottom}"/>',
    ]
    style = f"<title>{escape(figure.title)}</title><style>{CSS}{BACK}</style>" if standalone else ""
    space = ' xmlns="http://www.w3.org/2000/svg"' if standalone else ""
    return (
        f'<svg{space} class="chart-svg" viewBox="0 0 {width} {canvas.height}" role="img" '
        f'aria-label="{escape(figure.alt())}">{style}{"".join(parts)}</svg>'
    )


def cursor_points(figure: Figure, *, width: int = 560, height: int = 280) -> str:
    """Where a cursor stops, from left to right, and what it says there; as JSON, for the script of the page."""
    canvas = Canvas(figure, width, height)
    stops: dict[float, list[str]] = {}
    for series, points in zip(figure.series, canvas.series, strict=True):
        for p in points:
            stops.setdefault(p.x, []).append(_value_text(figure, series.label, p))
    return json.dumps(
        [
            {"x": round(canvas.x(x), 1), "text": "\n".join([f"{figure.x_label} {short(x)}", *stops[x]])}
            for x in sorted(stops)
        ]
    )


def _value_text(figure: Figure, label: str, point: Point) -> str:
    show, low, high = figure.shown, point.low, point.high
    return f"{label} {show(point.y)}" + (
        f" ({show(low)} to {show(high)})" if low is not None and high is not None else ""
    )


def _series(canvas: Canvas, place: int) -> str:
    points, series = canvas.series[place], canvas.figure.series[place]
    colour = place % COLOURS
    dashed = " dashed" if series.dashed or place >= COLOURS else ""
    path = "M" + "L".join(f"{_n(canvas.x(p.x))} {_n(canvas.y(p.y))}" for p in points)
    parts = [_band(canvas, points, colour), f'<path class="line c{colour}{dashed}" d="{path}"/>']
    if series.marked and len(points) <= MARKED:
        parts += [
            f'<circle class="f{colour}" cx="{_n(canvas.x(p.x))}" cy="{_n(canvas.y(p.y))}" r="3"><title>'
            f"{escape(f'{canvas.figure.x_label} {short(p.x)}: {_value_text(canvas.figure, series.label, p)}')}"
            "</title></circle>"
            for p in points
        ]
    parts += [
        f'<path class="f{colour}" d="M{_n(canvas.x(p.x))} {_n(canvas.y(p.y) - 6)}l5 6l-5 6l-5 -6Z"><title>'
        f"{escape(f'{series.label}, published: {canvas.figure.shown(p.y)}')}</title></path>"
        for p in series.published
    ]
    return "".join(parts)


def _band(canvas: Canvas, points: Sequence[Point], colour: int) -> str:
    known = [(p.x, p.low, p.high) for p in points if p.low is not None and p.high is not None]
    if not known:
        return ""
    if len(known) == 1:  # a single point: its interval as a bar
        x, low, high = known[0]
        return f'<path class="line c{colour}" d="M{_n(canvas.x(x))} {_n(canvas.y(low))}V{_n(canvas.y(high))}"/>'
    upper = [f"{_n(canvas.x(x))} {_n(canvas.y(high))}" for x, _, high in known]
    lower = [f"{_n(canvas.x(x))} {_n(canvas.y(low))}" for x, low, _ in reversed(known)]
    return f'<path class="band f{colour}" d="M{"L".join(upper + lower)}Z"/>'


def _target(canvas: Canvas) -> str:
    if canvas.figure.target is None:
        return ""
    return f'<path class="target" d="M{canvas.left} {_n(canvas.y(canvas.figure.target.y))}H{canvas.right}"/>'


def _grid_line(canvas: Canvas, value: float, text: str) -> str:
    y = _n(canvas.y(value))
    return (
        f'<path class="grid" d="M{canvas.left} {y}H{canvas.right}"/>'
        f'<text x="{canvas.left - 8}" y="{y}" dy=".35em" text-anchor="end">{text}</text>'
    )


# The legend: (place of the series or None for the target, line, x). A chart of one series needs none.
_Entry = tuple[int | None, int, float]


def _legend(figure: Figure, left: float, right: float) -> list[_Entry]:
    places: list[int | None] = list(range(len(figure.series)))
    if figure.target:
        places.append(None)
    if len(places) < 2:
        return []
    entries: list[_Entry] = []
    x, line = left, 0
    for place in places:
        width = 38 + 1.06 * LETTER * len(_legend_text(place, figure))
        if x + width > right and x > left:
            x, line = left, line + 1
        entries.append((place, line, x))
        x += width
    return entries


def _legend_text(place: int | None, figure: Figure) -> str:
    if place is not None:
        return figure.series[place].label
    return f"{figure.target.label} {figure.shown(figure.target.y)}" if figure.target else ""


def _legend_entry(place: int | None, line: int, x: float, figure: Figure) -> str:
    y = 12 + LEGEND_LINE * line
    if place is None:
        kind = "target"
    else:
        dashed = " dashed" if figure.series[place].dashed or place >= COLOURS else ""
        kind = f"line c{place % COLOURS}{dashed}"
    return (
        f'<path class="{kind}" d="M{_n(x)} {y}h20"/><text class="legend" x="{_n(x + 25)}" y="{y}" dy=".35em">'
        f"{escape(_legend_text(place, figure))}</text>"
    )


def _scale(low: float, high: float, start: float, end: float, *, log: bool) -> Callable[[float], float]:
    if log:
        low, high = math.log(low), math.log(high)
        return lambda value: start + (math.log(value) - low) / (high - low) * (end - start)
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _axis(
    low: float, high: float, count: int, *, tight: bool = False, least: float = 0.0
) -> tuple[list[float], float, float]:
    """Ticks at round numbers, `least` apart or more, and the ends of the axis: at ticks, or (`tight`) at the values."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # a single value gets a margin on both sides
        margin = abs(high) * 0.1 or 1.0
        low, high, tight = (low, high + margin, False) if low == 0 else (low - margin, high + margin, False)
    raw = max((high - low) / count, least)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [i * step for i in range(first, last + 1)]
    if tight:
        return [t for t in ticks if low - step * 1e-6 <= t <= high + step * 1e-6], low, high
    return ticks, ticks[0], ticks[-1]


def _x_axis(xs: Sequence[float], log: bool) -> tuple[list[float], float, float]:
    if log and min(xs) < max(xs):
        few = sorted(set(xs))  # the candidates themselves are the best ticks, if they fit
        ticks = few if len(few) <= 10 else [t for t in _log_axis(few[0], few[-1])[0] if few[0] <= t <= few[-1]]
        return ticks, few[0] / 1.05, few[-1] * 1.05
    whole = all(x == int(x) for x in xs)  # steps and epochs: no tick between two of them
    return _axis(min(xs), max(xs), 8, tight=True, least=1.0 if whole else 0.0)


def _log_axis(low: float, high: float) -> tuple[list[float], float, float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / 8))
    return [10.0**power for power in range(first, last + 1, every)], 10.0**first, 10.0**last


def _tick_text(ticks: Sequence[float]) -> Callable[[float], str]:
    """All ticks of an axis with the same number of decimals."""
    step = min((b - a for a, b in itertools.pairwise(ticks)), default=1.0)
    largest = max((abs(t) for t in ticks), default=0.0)
    if largest >= 1e6 or step < 1e-5:
        return lambda value: f"{value:.4g}"
    if len(ticks) > 1 and ticks[0] > 0 and ticks[1] / ticks[0] >= 9:  # powers of ten
        return lambda value: f"{value:g}"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return lambda value: f"{value:,.{decimals}f}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
