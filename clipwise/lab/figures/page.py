"""The page of the computed figures: a sentence and a picture each, and where every curve is best."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clipwise.lab.report.figures import Figure, Series, in_markdown, short
from clipwise.lab.report.plots import png

_HEAD = """# Figures of the papers that are computed, not trained for

Written by `{command}`. Figures 2 and 3 of DC-SGD are made data: 256 numbers from N(100, 20^2), the histogram with a range of 150 (Figure 2) or 120
(Figure 3), sigma_T = 1, B = 256, d = 100,000, as the paper says; its own pictures carry no numbers. Figure 4 of DC-SGD and Figure 1 of OSO-DPSGD are
gradients of public MNIST at five steps of one private run (26k CNN, C = 1, Adam at 1e-3, batch 256, epsilon 8, one seed), looked at without noise.
OSO-DPSGD does not say its noise or batch; here they are that run's. Figure 8 of DC-SGD and Figure 2 of DP-SGD-Global-Adapt-V2 are mean norms along runs of one
epoch on MNIST (26k CNN with ReLU, one seed; the norms of 200 records, looked at without noise): SGD at 0.1, batch 256, without privacy; and AdamW at 1e-3 with one-cycle, batch 64,
sigma_0 1.4929 for all, every decay as deep as over the paper's 100 epochs.
"""


def write_page(figures: Sequence[Figure], folder: Path, name: str, command: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    blocks = [_HEAD.format(command=command)]
    for figure in figures:
        file = f"{name}-{figure.name}.png"
        (folder / file).write_bytes(png(figure))
        blocks += [f"## {figure.title}\n", f"{_best(figure)}\n", in_markdown(file, figure.alt())]
    page = folder / f"{name}.md"
    page.write_text("\n".join(blocks), encoding="utf-8")
    return page


def _best(figure: Figure) -> str:
    """Where each curve over thresholds is best; for percentiles, how far each is from the data's own; along a run, how it goes."""
    if figure.x_label == "step":
        ways = "; ".join(_way(s) for s in figure.series)
        return f"The {figure.y_label} along the run: {ways}."
    if figure.x_label != "threshold":
        exact, *others = figure.series
        far = "; ".join(f"{s.label}: at most {short(_distance(s, exact))} off" for s in others)
        return f"Against the percentile {exact.label}: {far}."
    pick = max if figure.y_label == "cosine similarity" else min
    places = "; ".join(
        f"{s.label}: {short((at := pick(s.points, key=lambda p: p.y)).x)} ({short(at.y)})" for s in figure.series
    )
    return f"Best threshold, with the {figure.y_label} there: {places}."


def _way(series: Series) -> str:
    first, *_, last = series.points
    high = max(series.points, key=lambda point: point.y)
    return f"{series.label} from {short(first.y)} to {short(high.y)} at step {short(high.x)} and {short(last.y)} at the end"


def _distance(series: Series, exact: Series) -> float:
    return max(abs(a.y - b.y) for a, b in zip(series.points, exact.points, strict=True))
