"""A heat map: one value for each pair of two options, as SVG for a page and as PNG for papers.

The number stands in every cell, so that colour only helps the eye. The scale goes from the least value to the largest, by
one hue, light to dark (dark to light reads the same without colours).
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from html import escape
from typing import Any

from clipwise.lab.report.figures import short

_LIGHT, _DARK = (234, 243, 251), (11, 98, 168)  # of the scale; the dark end is the first colour of the charts
_CELL, _ROW, _TOP, _BOTTOM, _LETTER = 76, 34, 8, 44, 6.8  # in the units of the drawing


@dataclass(frozen=True, kw_only=True)
class Heat:
    name: str  # also the name of its file
    title: str
    x_label: str
    y_label: str
    xs: tuple[str, ...]
    ys: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]  # a row for each y
    percent: bool = False
    low_is_good: bool = False  # the scale then has its dark end at the least
    note: str = ""

    def shown(self, value: float) -> str:
        return f"{100 * value:.1f} %" if self.percent else short(value)

    def alt(self) -> str:
        """The map in a sentence, for those who do not see it."""
        rows = [
            f"{self.y_label} {y}: "
            + ", ".join(f"{x} {self.shown(v)}" for x, v in zip(self.xs, row, strict=True) if v is not None)
            for y, row in zip(self.ys, self.values, strict=True)
        ]
        return f"{self.title}, by {self.x_label}. {'; '.join(rows)}."

    def depth(self, value: float) -> float:
        """From 0, light, to 1, dark."""
        known = [v for row in self.values for v in row if v is not None]
        low, high = min(known), max(known)
        share = (value - low) / (high - low) if high > low else 0.5
        return 1 - share if self.low_is_good else share


def draw_heat(heat: Heat) -> str:
    """A figure of the page."""
    left = 40 + round(_LETTER * max(len(y) for y in heat.ys))
    width, bottom = left + _CELL * len(heat.xs) + 8, _TOP + _ROW * len(heat.ys)
    parts = []
    for row, (y, values) in enumerate(zip(heat.ys, heat.values, strict=True)):
        top = _TOP + _ROW * row
        parts.append(
            f'<text class="legend" x="{left - 8}" y="{top + _ROW / 2 + 4}" text-anchor="end">{escape(y)}</text>'
        )
        for column, value in enumerate(values):
            if value is not None:
                parts.append(
                    _cell(
                        heat, value, left + _CELL * column, top, f"{heat.x_label} {heat.xs[column]}, {heat.y_label} {y}"
                    )
                )
    for column, x in enumerate(heat.xs):
        middle = left + _CELL * (column + 0.5)
        parts.append(f'<text x="{middle}" y="{bottom + 16}" text-anchor="middle">{escape(x)}</text>')
    parts += [
        f'<text x="{(left + width) / 2}" y="{bottom + 36}" text-anchor="middle">{escape(heat.x_label)}</text>',
        f'<text transform="rotate(-90)" x="{-(_TOP + bottom) / 2}" y="14" text-anchor="middle">{escape(heat.y_label)}</text>',
    ]
    note = f" <small>{escape(heat.note)}</small>" if heat.note else ""
    return (
        f'<figure class="heat"><figcaption>{escape(heat.title)}{note}</figcaption>'
        f'<svg class="chart-svg" viewBox="0 0 {width} {bottom + _BOTTOM}" style="max-width:{1.4 * width:g}px" role="img" '
        f'aria-label="{escape(heat.alt())}">{"".join(parts)}</svg></figure>'
    )


def _cell(heat: Heat, value: float, x: float, y: float, where: str) -> str:
    ink = "#fff" if heat.depth(value) > 0.5 else "#1c2430"
    text = heat.shown(value)
    return (
        f'<g><title>{escape(where)}: {text}</title><rect x="{x}" y="{y}" width="{_CELL - 2}" height="{_ROW - 2}" fill="{_colour(heat, value)}"/>'
        f'<text x="{x + _CELL / 2 - 1}" y="{y + _ROW / 2 + 4}" text-anchor="middle" style="fill:{ink}">{text}</text></g>'
    )


def _colour(heat: Heat, value: float) -> str:
    depth = heat.depth(value)
    return "#" + "".join(f"{round(a + (b - a) * depth):02x}" for a, b in zip(_LIGHT, _DARK, strict=True))


def heat_png(heat: Heat) -> bytes:
    from matplotlib.figure import Figure as Drawing

    names = 0.09 * max(9, *(len(y) for y in heat.ys))  # inches, of the longest name on the left
    size = (1.4 + names + 0.95 * len(heat.xs), 1.5 + 0.45 * len(heat.ys))
    drawing = Drawing(figsize=size, dpi=150, layout="constrained")
    axes = drawing.subplots()
    for row, values in enumerate(heat.values):
        for column, value in enumerate(values):
            if value is not None:
                ink = "#ffffff" if heat.depth(value) > 0.5 else "#1c2430"
                place = (column - 0.48, row - 0.46)
                axes.add_patch(_rectangle(place, _colour(heat, value)))
                axes.text(column, row, heat.shown(value), ha="center", va="center", color=ink, fontsize=9)
    axes.set_xlim(-0.5, len(heat.xs) - 0.5)
    axes.set_ylim(len(heat.ys) - 0.5, -0.5)
    axes.set_xticks(range(len(heat.xs)), heat.xs)
    axes.set_yticks(range(len(heat.ys)), heat.ys)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel=heat.x_label, ylabel=heat.y_label)
    axes.set_title(heat.title, loc="left", fontweight="bold", fontsize=11, pad=18 if heat.note else None)
    if heat.note:
        axes.text(0, 1.02, heat.note, transform=axes.transAxes, fontsize=8, color="#5d6876")
    content = io.BytesIO()
    drawing.savefig(content, format="png")
    return content.getvalue()


def _rectangle(place: tuple[float, float], colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(place, 0.96, 0.92, facecolor=colour, linewidth=0)
