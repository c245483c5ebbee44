"""The Renyi curve against dp-accounting, order by order, and against the integral itself."""

from __future__ import annotations

import logging
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from scipy.integrate import quad

from clipwise.accounting import StepEvent
from clipwise.accounting.rdp import _ORDERS, _curve, converted, rdp_epsilon
from clipwise.accounting.work_test import work
from clipwise.schedules import Schedule


@pytest.mark.parametrize("rate", [1e-6, 64 / 60000, 0.1, 0.9])
@pytest.mark.parametrize("noise", [0.02, 0.3, 0.7, 1.0, 5.0, 100.0])
def test_each_order_is_that_of_dp_accounting(rate, noise, monkeypatch):
    monkeypatch.setattr(logging.getLogger("absl"), "level", logging.ERROR)  # orders that do not converge
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    with np.errstate(all="ignore"):
        theirs = rdp.RdpAccountant(_ORDERS).compose(event).rdp
    ours = _curve(rate, noise)
    assert (np.isfinite(ours) == np.isfinite(theirs)).all()
    finite = np.isfinite(theirs)
    assert ours[finite] == pytest.approx(theirs[finite], rel=1e-6, abs=2e-13)


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.1, 2.0), (0.3, 0.8)])
@pytest.mark.parametrize("order", [1.5, 2, 4.3, 17])
def test_no_order_is_below_the_integral(rate, noise, order):
    def integrand(x):
        ratio = 1 - rate + rate * math.exp((2 * x - 1) / (2 * noise**2))
        return math.exp(-(x**2) / (2 * noise**2)) / math.sqrt(2 * math.pi) / noise * ratio**order

    moment = quad(integrand, -12 * noise, order + 12 * noise, epsabs=0, epsrel=1e-12, limit=500)[0]
    exact = math.log(moment) / (order - 1)
    value = _curve(rate, noise)[_ORDERS.index(order)]
    assert exact * (1 - 1e-7) <= value
    if order == int(order):
        assert value == pytest.approx(exact, rel=1e-7)


def test_rate_one_is_exact():
    assert _curve(1.0, 2.0) == pytest.approx(np.array(_ORDERS) / 8)


def test_a_large_epsilon_is_a_finite_bound():
    """Paper 000 on AG News, exponential decay 0.1 from 1.3768 over 40 epochs, delta 1e-5: dp-accounting has 149.84 with its default
    orders, and with ours the same 141.8 as we have (142.48 was once reported); the tight figure is 125.85."""
    rate = 256 / 120000
    events = [StepEvent(rate, 1.3768 * factor, count) for factor, count in Schedule("exponential").runs(18750, rate)]
    theirs = rdp.RdpAccountant(_ORDERS)
    for event in events:
        gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier)
        theirs.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian), event.count)
    ours = rdp_epsilon(events, 1e-5)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-6)
    assert 125.85 < ours < 142.48


def test_a_hundred_levels_are_a_hundred_curves():
    with work() as done:
        for steps in (937, 938):  # the second time from the cache
            rdp_epsilon([StepEvent(0.00101, 1.4929 * 0.99 ** (k / 2), steps) for k in range(100)], 1e-5)
    assert done["curves"] == 100


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1, 0.9])
def test_the_conversion_is_that_of_dp_accounting(delta):
    rng = np.random.default_rng(0)
    for scale in 10.0 ** np.arange(-14, 6):
        curve = scale * np.sort(rng.random(len(_ORDERS)))
        theirs = rdp.compute_epsilon(_ORDERS, curve, delta)[0]
        assert converted(curve, delta) == pytest.approx(theirs, rel=1e-12, abs=1e-15)
        curve[::3] = np.inf
        assert converted(curve, delta) == pytest.approx(rdp.compute_epsilon(_ORDERS, curve, delta)[0], rel=1e-12)


def test_what_is_not_a_number_proves_nothing():
    curve = np.full(len(_ORDERS), np.nan)
    assert converted(curve, 1e-5) == math.inf
    curve[40] = 3.0
    assert 3 < converted(curve, 1e-5) < math.inf
