"""Draws figures as PNG, one file each, for papers and slides."""

from __future__ import annotations

import io

from clipwise.lab.report.figures import Figure, short

COLOURS = ("#0b62a8", "#bc4a10", "#12755a", "#8a3f96", "#8c6100", "#4d5a68", "#b3246b", "#1b7f94")
MARKED = 40  # points: a line of more has no marks (as in svg.py)
FEW = 10  # positions on a log scale that are ticks themselves; of more, powers of ten are (as in svg.py)
BESIDE = 6  # with more lines, their names stand beside the chart


def png(figure: Figure) -> bytes:
    from matplotlib.figure import Figure as Drawing
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

    many = len(figure.series) > BESIDE
    drawing = Drawing(figsize=(9.5 if many else 7, 4.6 if many else 4), dpi=150, layout="constrained")
    axes = drawing.subplots()
    for place, series in enumerate(figure.series):
        xs, ys = [p.x for p in series.points], [p.y for p in series.points]
        colour = COLOURS[place % len(COLOURS)]
        style = "--" if series.dashed or place >= len(COLOURS) else "-"
        marker = "o" if series.marked and len(xs) <= MARKED else ""
        axes.plot(xs, ys, style, color=colour, marker=marker, markersize=4, label=_plain(series.label))
        known = [(p.x, p.low, p.high) for p in series.points if p.low is not None and p.high is not None]
        if len(known) > 1:
            spread_at, low, high = zip(*known, strict=True)
            axes.fill_between(spread_at, low, high, color=colour, alpha=0.16, linewidth=0)
        elif known:
            axes.vlines(*known[0], color=colour)
        if series.published:
            xs, ys = [p.x for p in series.published], [p.y for p in series.published]
            axes.plot(xs, ys, "D", color=colour, markersize=6, markeredgecolor="white")
    if figure.target:
        label = f"{figure.target.label} {figure.shown(figure.target.y)}"
        axes.axhline(figure.target.y, color="#1c2430", linestyle=":", linewidth=1.2, label=_plain(label))
    if figure.log:
        axes.set_yscale("log")
    else:
        axes.ticklabel_format(axis="y", useOffset=False)
    if figure.from_zero:
        axes.set_ylim(bottom=0)
    if figure.percent:
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda y, _: f"{100 * y:.3g} %") if figure.log else PercentFormatter(xmax=1)
        )
    at = sorted({p.x for s in figure.series for p in s.points})
    if figure.x_log:
        axes.set_xscale("log")
        few = at if len(at) <= FEW else [10.0**n for n in range(-12, 13) if at[0] <= 10.0**n <= at[-1]]
        axes.set_xticks(few, [short(x) for x in few])
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=all(x == int(x) for x in at)))
    axes.set(xlabel=_plain(figure.x_label), ylabel=_plain(figure.y_label))
    axes.set_title(_plain(figure.title), loc="left", fontweight="bold", fontsize=12, pad=20 if figure.note else None)
    axes.grid(axis="y", color="#dfe4ea")
    axes.spines[["top", "right"]].set_visible(False)
    if len(figure.series) + bool(figure.target) > 1:
        if many:
            axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.01, 0.5))
        else:
            axes.legend(frameon=False, fontsize=9)
    if figure.note:
        axes.text(0, 1.02, _plain(figure.note), transform=axes.transAxes, fontsize=8, color="#5d6876")
    content = io.BytesIO()
    drawing.savefig(content, format="png")
    return content.getvalue()


def _plain(text: str) -> str:
    """A dollar sign would start a formula."""
    return text.replace("$", r"\$")
