"""DC-SGD (paper 002), Figures 2 and 3: percentile and expected error of 256 made norms, from noised histograms.

Norms are N(100, 20^2). Figure 2: the threshold that dc-sgd-p takes, by p, with a range of 150. Figure 3: the expected error
by threshold, with sigma_T = 1, B = 256, d = 100,000 and a range of 120. Both as the paper sets them; each number of bins
has data of its own, as there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clipwise.clipping.contract import Context
from clipwise.clipping.dc_sgd_e import expected_error
from clipwise.clipping.dc_sgd_p import DcSgdP
from clipwise.clipping.histogram import HistogramState
from clipwise.lab.report.figures import Figure, Point, Series
from clipwise.types import Released

RECORDS, MEAN, DEVIATION = 256, 100.0, 20.0  # of the made norms, as in the paper's Figures 2 and 3
BINS, NOISES = (10, 20, 40), (1.0, 5.0, 10.0)  # b, and sigma_H in records: around the defaults
PERCENTILES = tuple(k / 10 for k in range(1, 10))
PERCENTILE_RANGE, ERROR_RANGE = 150.0, 120.0  # of norms: where the histograms end
PARAMETERS = 100_000  # d of Figure 3
_CONTEXT = Context(float(RECORDS), 1.0, PARAMETERS, 1, 1.0)


def made_figures() -> list[Figure]:
    return [figure for bins in BINS for figure in (percentile_figure(bins), error_figure(bins))]


def percentile_figure(bins: int) -> Figure:
    norms = _norms(bins)
    true = [Point(p, float(torch.quantile(norms, p))) for p in PERCENTILES]
    series = [Series("of the data itself", tuple(true), dashed=True)]
    for noise in NOISES:
        found = [Point(p, percentile(norms, bins, noise, p)) for p in PERCENTILES]
        series.append(Series(f"from the histogram, sigma_H {noise:g}", tuple(found)))
    return Figure(
        name=f"dc-sgd-figure-2-bins-{bins}",
        title=f"DC-SGD, Figure 2: threshold by percentile, b = {bins}",
        x_label="percentile p",
        y_label="threshold",
        series=tuple(series),
    )


def percentile(norms: Tensor, bins: int, noise: float, share: float) -> float:
    """The threshold of dc-sgd-p after one histogram of these norms."""
    method = DcSgdP(percentile=share, bins=bins, histogram_noise=noise, first_range=PERCENTILE_RANGE)
    state = method.init(_CONTEXT)
    released = Released((), {"histogram": _histogram(method, state, norms, noise)})
    return method.update(state, released, _CONTEXT, 0).threshold


def error_figure(bins: int) -> Figure:
    norms = _norms(bins)
    thresholds = torch.arange(2, 152, 2, dtype=torch.float64)
    variance = 1.0**2 * PARAMETERS / RECORDS**2
    exact = expected_error(thresholds, torch.full((RECORDS,), 1 / RECORDS, dtype=torch.float64), norms, variance)
    series = [_curve("of the data itself", thresholds, exact, dashed=True)]
    middles = (torch.arange(bins, dtype=torch.float64) + 0.5) * (ERROR_RANGE / bins)
    for noise in NOISES:
        method = DcSgdP(bins=bins, histogram_noise=noise, first_range=ERROR_RANGE)
        counts = _histogram(method, method.init(_CONTEXT), norms, noise).clamp_min(0)
        errors = expected_error(thresholds, counts / counts.sum(), middles, variance)
        series.append(_curve(f"from the histogram, sigma_H {noise:g}", thresholds, errors))
    return Figure(
        name=f"dc-sgd-figure-3-bins-{bins}",
        title=f"DC-SGD, Figure 3: expected squared error by threshold, b = {bins}",
        x_label="threshold",
        y_label="expected squared error",
        series=tuple(series),
    )


def best(series: Series) -> float:
    """Where a curve is lowest."""
    return min(series.points, key=lambda point: point.y).x


def _curve(label: str, xs: Tensor, ys: Tensor, *, dashed: bool = False) -> Series:
    points = tuple(Point(x, y) for x, y in zip(xs.tolist(), ys.tolist(), strict=True))
    return Series(label, points, dashed=dashed, marked=False)


def _norms(seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return MEAN + DEVIATION * torch.randn(RECORDS, generator=random, dtype=torch.float64)


def _histogram(method: DcSgdP, state: HistogramState, norms: Tensor, noise: float) -> Tensor:
    random = torch.Generator().manual_seed(round(10 * noise))
    counts = method.decide(state, norms).rows["histogram"].sum(0)
    return counts + noise * torch.randn(method.bins, generator=random, dtype=torch.float64)
