"""Bars in clusters: one cluster a category (a method), one bar a series (a group), with whiskers. As SVG for a page, and the
same one as PNG. A value that does not exist has no bar, and the note below says so."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from clipwise.lab.report.figures import short
from clipwise.lab.report.plots import COLOURS
from clipwise.lab.report.svg import BACK, CSS, LETTER

GREY = "#b4bfcb"
_HATCHES = ("", "//", "..", "xx")  # a second round of colours is told apart by these


class Bar(NamedTuple):
    value: float
    low: float | None = None
    high: float | None = None


class BarSeries(NamedTuple):
    label: str
    bars: tuple[Bar | None, ...]  # one a category


@dataclass(frozen=True, kw_only=True)
class GroupedBars:
    name: str  # also the name of its file
    title: str
    y_label: str
    categories: tuple[str, ...]
    series: tuple[BarSeries, ...]
    strong: tuple[str, ...] = ()  # series to look at; where there are some, the others are grey
    percent: bool = False
    note: str = ""

    @property
    def top(self) -> float:
        values = [v for s in self.series for bar in s.bars if bar for v in bar if v is not None]
        return 1.0 if self.percent else max([*values, 0.0]) * 1.05 or 1.0

    @property
    def missing(self) -> str:
        """Which bars there are none of."""
        lost = [
            f"{category}, {s.label}"
            for s in self.series
            for category, bar in zip(self.categories, s.bars, strict=True)
            if bar is None
        ]
        return f"no figure: {'; '.join(lost[:6])}{' ...' if len(lost) > 6 else ''}" if lost else ""

    def text(self, value: float) -> str:
        return f"{100 * value:.1f} %" if self.percent else short(round(value, 2))

    def alt(self) -> str:
        """The chart in a sentence: the lowest and highest bar of each cluster, and those to look at."""
        parts = []
        for place, category in enumerate(self.categories):
            known = [(s.bars[place].value, s.label) for s in self.series if s.bars[place] is not None]  # type: ignore[union-attr]
            if not known:
                parts.append(f"{category}: no figure")
                continue
            if len(self.series) == 1:
                parts.append(f"{category}: {self.text(known[0][0])}")
                continue
            (low, least), (high, most) = min(known), max(known)
            said = [f"from {self.text(low)} ({least}) to {self.text(high)} ({most})"]
            said += [f"{label} {self.text(value)}" for value, label in known if label in self.strong]
            parts.append(f"{category}: {', '.join(said)}")
        return f"{self.title}. {'; '.join(parts)}."

    def colour(self, place: int) -> int | None:
        """The number of the colour of a series; None for grey."""
        if not self.strong:
            return place
        label = self.series[place].label
        return self.strong.index(label) if label in self.strong else None


def png(chart: GroupedBars) -> bytes:
    from matplotlib.figure import Figure as Drawing
    from matplotlib.patches import Patch
    from matplotlib.ticker import PercentFormatter

    drawing = Drawing(figsize=(max(7.0, 1.5 * len(chart.categories) + 2), 4.2), dpi=150, layout="constrained")
    axes = drawing.subplots()
    width = 0.82 / len(chart.series)
    for place, series in enumerate(chart.series):
        number = chart.colour(place)
        style: dict[str, Any] = {
            "color": GREY if number is None else COLOURS[number % len(COLOURS)],
            "hatch": "" if number is None else _HATCHES[number // len(COLOURS) % len(_HATCHES)],
        }
        for at, bar in enumerate(series.bars):
            if bar is None:
                continue
            x = at + (place - (len(chart.series) - 1) / 2) * width
            axes.bar(x, bar.value, 0.9 * width, edgecolor="white", linewidth=0, **style)
            if bar.low is not None and bar.high is not None and bar.high > bar.low:
                axes.vlines(x, bar.low, bar.high, color="#1c2430", linewidth=1)
    axes.set_ylim(0, chart.top)
    if chart.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    axes.set_xticks(range(len(chart.categories)), [_wrapped(c) for c in chart.categories], fontsize=9)
    axes.set_ylabel(chart.y_label)
    axes.set_title(_wrapped(chart.title, 70), loc="left", fontweight="bold", fontsize=12)
    axes.grid(axis="y", color="#dfe4ea")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    entries = [
        Patch(facecolor=GREY if number is None else COLOURS[number % len(COLOURS)], label=label)
        for number, label in _legend(chart)
    ]
    if len(entries) > 1:
        drawing.legend(handles=entries, loc="outside lower center", ncols=min(10, len(entries)), frameon=False)
    if note := "; ".join(part for part in (chart.note, chart.missing) if part):
        axes.set_xlabel(note.replace("$", r"\$"), loc="right", fontsize=8, color="#5d6876")
    content = io.BytesIO()
    drawing.savefig(content, format="png", metadata={"Title": chart.title, "Description": chart.alt()})
    return content.getvalue()


def svg(chart: GroupedBars, *, width: int = 560, height: int = 260, standalone: bool = False) -> str:
    """The drawing for a page; `standalone` puts the style into it, for a file of its own."""
    left, right, top = 52, width - 8, 12 + (18 if len(_legend(chart)) > 1 else 0)
    bottom = height - 40
    cluster = (right - left) / len(chart.categories)
    bar_width = 0.82 * cluster / len(chart.series)

    def y(value: float) -> float:
        return round(bottom - (bottom - top) * min(value, chart.top) / chart.top, 1)

    parts = []
    for tick in range(5):
        value = chart.top * tick / 4
        parts.append(
            f'<path class="grid" d="M{left} {y(value)}H{right}"/>'
            f'<text x="{left - 6}" y="{y(value)}" dy=".35em" text-anchor="end">{_tick(chart, value)}</text>'
        )
    for at, category in enumerate(chart.categories):
        middle = left + cluster * (at + 0.5)
        label = category if LETTER * len(category) < 1.6 * cluster or len(category) < 4 else f"{category[:8]}..."
        parts.append(f'<text x="{middle:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(label)}</text>')
        for place, series in enumerate(chart.series):
            bar = series.bars[at]
            if bar is None:
                continue
            x = middle + (place - len(chart.series) / 2) * bar_width
            number = chart.colour(place)
            style = f'class="f{number % len(COLOURS)}"' if number is not None else f'fill="{GREY}"'
            said = (
                f"{category}, {series.label}: {chart.text(bar.value)}"
                if len(chart.series) > 1
                else f"{category}: {chart.text(bar.value)}"
            )
            parts.append(
                f'<rect {style} x="{x:.1f}" y="{y(bar.value)}" width="{0.9 * bar_width:.1f}" '
                f'height="{max(0.5, bottom - y(bar.value)):.1f}"><title>{escape(said)}</title></rect>'
            )
            if bar.low is not None and bar.high is not None and bar.high > bar.low:
                parts.append(f'<path class="axis" d="M{x + 0.45 * bar_width:.1f} {y(bar.low)}V{y(bar.high)}"/>')
    parts.append(f'<path class="axis" d="M{left} {bottom}H{right}"/>')
    parts += _svg_legend(chart, left)
    note = "; ".join(part for part in (chart.note, chart.missing) if part)
    parts.append(f'<text x="{left}" y="{height - 6}">{escape(note)}</text>' if note else "")
    style = f"<title>{escape(chart.title)}</title><style>{CSS}{BACK}</style>" if standalone else ""
    space = ' xmlns="http://www.w3.org/2000/svg"' if standalone else ""
    return (
        f'<svg{space} class="chart-svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(chart.alt())}">{style}{"".join(parts)}</svg>'
    )


def figures(charts: Sequence[GroupedBars]) -> str:
    """Drawings with their headings, for a page; a single one is as wide as it."""
    width = 560 if len(charts) > 1 else 1120
    drawn = (f"<figure><figcaption>{escape(c.title)}</figcaption>{svg(c, width=width)}</figure>" for c in charts)
    return f'<div class="charts">{"".join(drawn)}</div>' if charts else ""


def _tick(chart: GroupedBars, value: float) -> str:
    return f"{100 * value:.0f} %" if chart.percent else short(round(value, 2))


def _legend(chart: GroupedBars) -> list[tuple[int | None, str]]:
    if not chart.strong:
        return [(place, series.label) for place, series in enumerate(chart.series)]
    entries: list[tuple[int | None, str]] = list(enumerate(chart.strong))
    return [*entries, *([(None, "other groups")] if len(chart.series) > len(chart.strong) else [])]


def _svg_legend(chart: GroupedBars, left: float) -> list[str]:
    entries, parts, x = _legend(chart), [], left
    if len(entries) < 2:
        return []
    for number, label in entries:
        style = f'class="f{number % len(COLOURS)}"' if number is not None else f'fill="{GREY}"'
        parts.append(
            f'<rect {style} x="{x:.1f}" y="6" width="12" height="12"/>'
            f'<text class="legend" x="{x + 16:.1f}" y="12" dy=".35em">{escape(label)}</text>'
        )
        x += 34 + 1.06 * LETTER * len(label)
    return parts


def _wrapped(text: str, width: int = 16) -> str:
    """Over two or three lines, so that labels side by side do not touch."""
    lines: list[str] = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines).replace("$", r"\$")


def as_series(labels: Sequence[str], columns: Sequence[Sequence[Bar | None]]) -> tuple[BarSeries, ...]:
    """From one list of bars a category to one series a label."""
    return tuple(BarSeries(label, tuple(column[place] for column in columns)) for place, label in enumerate(labels))
