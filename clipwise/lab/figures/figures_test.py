"""Computed figures against closed forms and a loop over single records."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from clipwise.lab.figures import along, made
from clipwise.lab.figures.along import along_figures
from clipwise.lab.figures.made import best, error_figure, percentile_figure
from clipwise.lab.figures.page import write_page
from clipwise.lab.figures.seen import gradient_rows, seen_figures


def test_a_percentile_from_the_histogram_is_within_its_bin():
    exact, quiet, *_ = percentile_figure(40).series
    bin_width = made.PERCENTILE_RANGE / 40
    for true, found in zip(exact.points, quiet.points, strict=True):  # sigma_H 1: a bin, and one more for the noise
        assert abs(true.y - found.y) <= 2 * bin_width
    assert exact.points[4].y == pytest.approx(100, abs=5)  # the median of N(100, 20^2)


def test_the_expected_error_has_its_minimum_where_its_slope_is_zero():
    """2 a C = 2 mean (n - C)_+: with a = 10^5 / 256^2, and nearly every norm above C, C = mean n / (1 + a)."""
    curve = error_figure(20).series[0]
    a = made.PARAMETERS / made.RECORDS**2
    assert best(curve) == pytest.approx(100 / (1 + a), abs=3)
    for noised in error_figure(20).series[1:]:
        assert best(noised) == pytest.approx(best(curve), abs=8)


def test_gradients_of_single_records():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    inputs, targets = torch.randn(5, 2, 2), torch.tensor([0, 1, 2, 0, 1])
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    found = gradient_rows(model, weights, inputs, targets)
    for row, x, y in zip(found, inputs, targets, strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[None]), y[None]).backward()
        torch.testing.assert_close(row, torch.cat([p.grad.flatten() for p in model.parameters()]))


def test_what_is_seen_during_a_run_and_the_page(tmp_path):
    errors, cosines = seen_figures("digits", steps=(2, 5))
    for curve in errors.series:  # noise alone at the right end: E = a C^2, so that ten times C is a hundred times E
        assert curve.points[-1].y / curve.points[-5].y == pytest.approx(100, rel=0.01)
    for curve in cosines.series:
        assert all(-1 <= point.y <= 1 and math.isfinite(point.y) for point in curve.points)
        assert max(p.y for p in curve.points) > curve.points[-1].y  # much noise at the right end
    page = write_page([errors, cosines, percentile_figure(10)], tmp_path, "paper_figures", "clipwise figures")
    assert page.read_text().count("](paper_figures-") == 3
    assert len(list(tmp_path.glob("*.png"))) == 3


def test_norms_along_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(along, "RECORDS", 40)
    monkeypatch.setattr(along, "POINTS", 4)
    plain, private = along_figures("digits", epochs=1)
    (curve,) = plain.series
    assert [s.label for s in private.series] == ["global-adapt", "V2, constant noise", "V2-L", "V2-T", "V2-S"]
    assert len({s.points for s in private.series}) == 5  # each is a run of its own
    assert all(point.y > 0 for s in (curve, *private.series) for point in s.points)
    page = write_page([plain, private], tmp_path, "paper_figures", "clipwise figures").read_text()
    assert "V2-S from " in page
