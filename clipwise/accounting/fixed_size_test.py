"""Batches of a fixed size: against dp-accounting, exact moments, and the figure of the literature."""

from __future__ import annotations

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import rdp

from clipwise.accounting import FixedSizeEvent, StepEvent, calibrate_shape, epsilon
from clipwise.accounting.fixed_size import _EVEN, _curve, _log_even_moments, fixed_size_epsilon
from clipwise.accounting.rdp import _ORDERS
from clipwise.types import BadArgument


def theirs(size, of, noise, orders):
    event = dp_accounting.SampledWithoutReplacementDpEvent(of, size, dp_accounting.GaussianDpEvent(noise))
    return rdp.RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_ONE).compose(event)


@pytest.mark.parametrize(("size", "of", "noise"), [(64, 60000, 1.0), (10, 1000, 2.0), (100, 1000, 6.0), (5, 100, 0.5)])
def test_each_order_is_that_of_dp_accounting(size, of, noise):
    """Half the multiplier there: its own is over the sensitivity, and to replace a record costs twice the bound."""
    orders = [1.1, 1.5, 2, 3, 4.7, 10, 25, 40]  # larger ones cancel there
    reference = theirs(size, of, noise / 2, orders)._rdp
    ours = [_curve(size / of, noise)[_ORDERS.index(order)] for order in orders]
    assert ours == pytest.approx(reference, rel=1e-6)
    assert (np.array(ours) >= reference * (1 - 1e-12)).all()


@pytest.mark.parametrize("noise", [0.7, 2.0, 9.0, 60.0])
def test_even_moments_are_exact(noise):
    """Against the alternating sum of exponentials, in 400 digits."""
    values = _log_even_moments(noise)
    with mpmath.workdps(400):
        for j in (2, 4, 10, 64, 256):
            value = values[list(_EVEN).index(j)]
            if np.isinf(value):
                assert j / noise**2 >= 5
                continue
            terms = [
                (-1) ** (j - k)
                * mpmath.binomial(j, k)
                * mpmath.exp(mpmath.mpf(k * (k - 1)) / (2 * mpmath.mpf(noise) ** 2))
                for k in range(j + 1)
            ]
            exact = float(mpmath.log(mpmath.fsum(terms)))
            assert exact <= value <= exact + 1e-8 * (1 + abs(exact))


def test_the_figure_of_the_literature():
    # OSO-DPSGD (docs/claims.md): nu = 1.358 on CIFAR10 (batch 256 of 50000, 3906 steps, delta 1/n) costs 7.5, not 1.07
    events = [FixedSizeEvent(256 / 50000, 1.358, 3906)]
    assert fixed_size_epsilon(events, 2e-5) == pytest.approx(7.5, abs=0.05)
    assert epsilon([StepEvent(256 / 50000, 1.358, 3906)], 2e-5, "rdp").value < 1.2


def test_whole_batches_are_the_gaussian_mechanism():
    events = [FixedSizeEvent(1.0, 4.0, 3)]
    assert fixed_size_epsilon(events, 1e-5) == epsilon([StepEvent(1.0, 2.0, 3)], 1e-5, "rdp").value


def test_edges():
    assert fixed_size_epsilon([], 1e-5) == 0
    assert fixed_size_epsilon([FixedSizeEvent(0.1, 0.0)], 1e-5) == float("inf")
    assert 100 < fixed_size_epsilon([FixedSizeEvent(0.1, 0.05, 1000)], 1e-5) < float("inf")
    assert epsilon([FixedSizeEvent(0.1, 0.0, 0)], 1e-5).value == 0


def test_calibrated_like_any_other():
    def shape(noise):
        return [FixedSizeEvent(0.01, noise, 200), FixedSizeEvent(0.01, noise * 0.9, 200)]

    noise = calibrate_shape(2.0, 1e-5, shape)
    assert 1.998 <= epsilon(shape(noise), 1e-5).value <= 2.0


def test_no_poisson_figure_for_it():
    fixed = FixedSizeEvent(0.01, 1.0, 100)
    with pytest.raises(BadArgument, match="fixed size"):
        epsilon([fixed], 1e-5, "pld")
    for mixed in ([fixed, StepEvent(0.01, 1.0)], [StepEvent(0.01, 1.0), fixed]):
        for accountant in ("rdp", "best"):
            with pytest.raises(BadArgument, match="not composed"):
                epsilon(mixed, 1e-5, accountant)
    assert fixed != StepEvent(0.01, 1.0, 100)
