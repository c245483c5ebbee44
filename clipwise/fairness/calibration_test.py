"""Calibration by hand."""

import numpy as np
import pytest

from clipwise.fairness.calibration import calibration
from clipwise.types import BadArgument


def test_ece_of_two_bins_by_hand():
    """Two records at 0.9, one right; two at 0.6, both right: ECE = 0.5 * |0.5 - 0.9| + 0.5 * |1 - 0.6| = 0.4."""
    probabilities = np.array([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4], [0.4, 0.6]])
    found = calibration(np.array([0, 0, 0, 1]), probabilities, bins=10)
    assert found["ece"] == pytest.approx(0.4)
    assert [(b["records"], b["right"]) for b in found["bins"]] == [(2, 1.0), (2, 0.5)]
    assert all(b["interval"][0] < b["right"] + 1e-9 for b in found["bins"])


def test_a_sure_and_right_model_has_none():
    assert calibration(np.array([0, 1, 1]), np.eye(2)[[0, 1, 1]])["ece"] == 0


def test_probabilities_that_do_not_fit():
    with pytest.raises(BadArgument, match="give a row a record"):
        calibration(np.array([0, 1]), np.eye(3))
