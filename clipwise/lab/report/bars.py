"""Horizontal bars with whiskers, for values that have names instead of positions: as SVG in the page's colours, and as PNG."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from clipwise.lab.report.plots import COLOURS

WIDTH, ROW, VALUE, TOP, LETTER = 720, 26, 110, 4, 7.2  # in the units of the drawing; a letter is about so wide


class Bar(NamedTuple):
    label: str
    value: float
    low: float
    high: float
    text: str  # the value as the tables show it
    faint: bool = False  # something to compare with rather than a competitor
    mark: float | None = None  # another's figure for the same, drawn as a diamond

    def __str__(self) -> str:
        return f"{self.label}: {self.text}" + ("" if self.mark is None else f" (published {self.mark:g})")


def draw_bars(title: str, bars: Sequence[Bar]) -> str:
    """Bars of shares in percent, from zero: a bar's length is its value."""
    high = max([*(bar.high for bar in bars), *(bar.mark for bar in bars if bar.mark is not None), 1e-9])
    step = next((s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10) if high / s <= 8), 20)
    left = 24 + round(LETTER * min(30, max(len(bar.label) for bar in bars)))
    right, bottom = WIDTH - VALUE, TOP + ROW * len(bars)

    def x(value: float) -> float:
        return round(left + (right - left) * max(value, 0.0) / high, 1)

    parts = []
    for place in range(math.floor(high / step + 1e-9) + 1):
        at, kind = x(place * step), "grid" if place else "axis"
        parts.append(f'<path class="{kind}" d="M{at} {TOP}V{bottom}"/>')
        parts.append(f'<text x="{at}" y="{bottom + 16}" text-anchor="middle">{place * step:g} %</text>')
    for place, bar in enumerate(bars):
        middle = TOP + ROW * place + ROW / 2
        parts += [
            f"<g><title>{escape(str(bar))}</title>",
            f'<rect class="row" x="0" y="{middle - ROW / 2}" width="{WIDTH}" height="{ROW}"/>',
            f'<text class="legend" x="{left - 8}" y="{middle + 4}" text-anchor="end">{escape(bar.label)}</text>',
            f'<rect class="{"f5" if bar.faint else "f0"}" x="{left}" y="{middle - 8}" '
            f'width="{max(1.0, x(bar.value) - left)}" height="16"/>',
        ]
        if bar.high > bar.low:
            parts.append(f'<path class="whisker" d="M{x(bar.low)} {middle}H{x(bar.high)}"/>')
        if bar.mark is not None:
            parts.append(f'<path class="mark" d="M{x(bar.mark)} {middle - 6}l5 6l-5 6l-5 -6Z"/>')
        parts.append(f'<text class="legend" x="{right + 14}" y="{middle + 4}">{escape(bar.text)}</text></g>')
    alt = in_words(title, bars)
    return (
        f'<figure class="bars"><figcaption>{escape(title)}</figcaption><div tabindex="0" role="group" '
        f'aria-label="{escape(title)}, as bars">'
        f'<svg class="chart-svg" viewBox="0 0 {WIDTH} {bottom + 24}" role="img" aria-label="{escape(alt)}">'
        f"{''.join(parts)}</svg></div></figure>"
    )


def in_words(title: str, bars: Sequence[Bar]) -> str:
    """The bars in a sentence, for those who do not see them."""
    return f"{title}: {'; '.join(map(str, bars))}."


def bars_png(title: str, bars: Sequence[Bar]) -> bytes:
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(9.5, 0.9 + 0.27 * len(bars)), dpi=150, layout="constrained")
    axes = drawing.subplots()
    colours = ["#b4bfcb" if bar.faint else COLOURS[0] for bar in bars]
    axes.barh(range(len(bars)), [bar.value for bar in bars], 0.7, color=colours)
    edge = max(v for bar in bars for v in (bar.high, bar.mark or 0.0))
    for place, bar in enumerate(bars):
        axes.plot((bar.low, bar.high), (place, place), color="#1c2430", linewidth=1.4)
        if bar.mark is not None:
            axes.plot(bar.mark, place, "D", color=COLOURS[1], markersize=5, markeredgecolor="white")
        axes.text(1.02 * edge, place, bar.text, va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars], fontsize=9, parse_math=False)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, 1.02 * edge)
    axes.xaxis.set_major_formatter("{x:g} %")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    notes = [
        *(["diamonds: published"] if any(bar.mark is not None for bar in bars) else []),
        *(["whiskers: standard deviation over the seeds"] if any(bar.high > bar.low for bar in bars) else []),
        *(["grey: without a guarantee"] if any(bar.faint for bar in bars) else []),
    ]
    axes.set_title(title, loc="left", fontweight="bold", fontsize=12, pad=20 if notes else None, parse_math=False)
    axes.text(0, 1.0, "; ".join(notes), transform=axes.transAxes, fontsize=8, color="#5d6876", va="bottom")
    content = io.BytesIO()
    drawing.savefig(content, format="png")
    return content.getvalue()
