"""Horizontal bars with whiskers, for values that have names instead of positions. Drawn as SVG in the page's colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, ROW, LABEL, VALUE = 720, 26, 210, 120  # label (at least) and value columns, in the units of the drawing
LETTER = 7.2  # width of one, about


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
    """Bars start at a round number below the lowest whisker, and the axis says so: differences are what matters."""
    marks = [bar.mark for bar in bars if bar.mark is not None]
    low = 10 * (min([*(bar.low for bar in bars), *marks]) // 10)
    high = max([*(bar.high for bar in bars), *marks])
    left, right = max(LABEL, 16 + round(LETTER * max(len(bar.label) for bar in bars))), WIDTH - VALUE

    def x(value: float) -> float:
        return round(left + (right - left) * (value - low) / max(high - low, 1e-9), 1)

    parts = [f'<path class="axis" d="M{left} 4V{4 + ROW * len(bars)}"/>']
    for place, bar in enumerate(bars):
        middle = 4 + ROW * place + ROW / 2
        colour = "f5" if bar.faint else "f0"
        parts += [
            f"<g><title>{escape(str(bar))}</title>",
            f'<text class="legend" x="{left - 8}" y="{middle + 4}" text-anchor="end">{escape(bar.label)}</text>',
            f'<rect class="{colour}" x="{left}" y="{middle - 8}" width="{max(1.0, x(bar.value) - left)}" height="16"/>',
        ]
        if bar.high > bar.low:
            parts.append(f'<path class="axis" d="M{x(bar.low)} {middle}H{x(bar.high)}" stroke-width="2"/>')
        if bar.mark is not None:
            parts.append(f'<path class="mark" d="M{x(bar.mark)} {middle - 6}l5 6l-5 6l-5 -6Z"/>')
        end = max(bar.value, bar.high, bar.mark or bar.high)
        parts.append(f'<text x="{x(end) + 8}" y="{middle + 4}">{escape(bar.text)}</text></g>')
    bottom = 4 + ROW * len(bars)
    parts.append(f'<text x="{left}" y="{bottom + 16}" text-anchor="middle">{low:g} %</text>')
    alt = f"{title}: " + "; ".join(map(str, bars))
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg class="chart-svg" viewBox="0 0 {WIDTH} {bottom + 24}" role="img" aria-label="{escape(alt)}">'
        f"{''.join(parts)}</svg></figure>"
    )
