"""The reliability diagram of a model: how often it is right, by how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clipwise.lab.report.figures import Figure, Point, Series
from clipwise.lab.report.plots import png


def reliability_png(calibration: Mapping[str, Any]) -> bytes:
    """Of what `clipwise/fairness/calibration.py` gives."""
    points = tuple(Point(b["probability"], b["right"], *b["interval"]) for b in calibration["bins"])
    first = min((p.x for p in points), default=0.0)
    figure = Figure(
        name="reliability",
        title="How often the model is right, by how sure it is",
        x_label="probability that the model gives its prediction (mean of a bin)",
        y_label="share that is right",
        series=(
            Series("this model, with 95 % intervals", points),
            Series("as sure as it is right", (Point(first, first), Point(1.0, 1.0)), dashed=True, marked=False),
        ),
        percent=True,
        note=f"expected calibration error {calibration['ece']:.4f}",
    )
    return png(figure)
