"""tCDP against hand-worked figures and Renyi divergences, and each precondition refused by name.

Figures of the papers are worked out again in docs/claims.md.
"""

import math

import pytest

from clipwise.accounting import StepEvent, epsilon
from clipwise.accounting.tcdp import LemmaFails, Tcdp, amplify, compose, gaussian, tcdp_epsilon, to_epsilon
from clipwise.types import BadArgument

MNIST, STEPS, DELTA = 64 / 60000, 93750, 1e-5


def test_constant_noise_of_the_least_covered_size():
    """sigma = sqrt 5 on MNIST, all 93,750 steps."""
    step = amplify(gaussian(math.sqrt(5)), MNIST)
    run = compose([(step, STEPS)])
    assert run.rho == pytest.approx(0.1387, abs=5e-5)
    assert run.omega == pytest.approx(17.1, abs=0.05)
    assert to_epsilon(run, DELTA) == pytest.approx(2.67, abs=5e-3)


def test_the_noise_that_epsilon_1_needs():
    """5.77, where RDP needs 1.493."""
    assert tcdp_epsilon([(5.775, STEPS)], MNIST, DELTA) < 1 < tcdp_epsilon([(5.765, STEPS)], MNIST, DELTA)
    assert epsilon([StepEvent(MNIST, 1.4929, STEPS)], DELTA, "rdp").value == pytest.approx(1, abs=1e-3)


def test_composition_adds_rho_and_takes_the_least_omega():
    assert compose([(Tcdp(0.1, 9.0), 3), (Tcdp(0.2, 5.0), 2), (Tcdp(7.0, 2.0), 0)]) == pytest.approx((0.7, 5.0))
    assert compose([]) == (0, math.inf)
    levels = [(5.0, 100), (4.0, 50)]
    together = compose((amplify(gaussian(noise), 0.01), count) for noise, count in levels)
    assert together.rho == pytest.approx(13e-4 / 2 * (100 / 25 + 50 / 16))
    assert together.omega == amplify(gaussian(4.0), 0.01).omega


def test_without_sampling_it_is_the_gaussians_own_conversion():
    assert tcdp_epsilon([(2.0, 4)], 1, DELTA) == pytest.approx(0.5 + 2 * math.sqrt(0.5 * math.log(1e5)))
    assert to_epsilon(Tcdp(0.0, 2.0), DELTA) == 0
    # Looser than the exact Gaussian, never below it.
    assert tcdp_epsilon([(2.0, 4)], 1, DELTA) > epsilon([StepEvent(1.0, 2.0, 4)], DELTA, "pld").value


RHO, RATE = "rho <= 0.1", "q <= 0.1"
LOGS, ORDERS, OMEGA = "ln(1/q) >= 3 rho (2 + log2(1/rho))", "ln(1/q) / (2 rho) >= 3", "omega >= ln(1/q) / (2 rho)"


@pytest.mark.parametrize(
    ("mechanism", "rate", "broken", "said"),
    [
        # rho is too large in every row; ln(1/q) = 6.843 against 2.80, 4.70, 6.19, 6.33.
        (gaussian(1.4929), MNIST, [RHO], r"rho = 0\.2243.*at least 2\.2361"),
        (gaussian(0.9584), MNIST, [RHO], r"rho = 0\.544"),
        (gaussian(0.6630), MNIST, [RHO], r"rho = 1\.137"),
        (gaussian(0.5517), MNIST, [RHO, ORDERS], r"rho = 1\.642.*ln\(1/q\) / \(2 rho\) = 2\.0828"),
        (gaussian(0.1916), MNIST, [RHO, ORDERS], r"rho = 13\.6"),
        (gaussian(0.5), 0.01, [RHO, LOGS, ORDERS], r"= 4\.605.*needs 6\b.*at most 0\.00247"),
        (gaussian(3.0), 0.2, [RATE], r"q = 0\.2 .*at most 0\.1"),
        (Tcdp(0.1, 30.0), MNIST, [OMEGA], r"omega = 30 .*at least 34\.2"),
        (Tcdp(0.01, math.nan), MNIST, [OMEGA], "omega = nan"),
    ],
)
def test_amplification_refuses_by_name(mechanism, rate, broken, said):
    with pytest.raises(LemmaFails, match=said) as refusal:
        amplify(mechanism, rate)
    assert [each.precondition for each in refusal.value.broken] == broken
    for precondition in broken:
        assert precondition in str(refusal.value)
    assert isinstance(refusal.value, BadArgument)


def test_what_a_refusal_names_satisfies_the_lemma():
    assert amplify(gaussian(2.2361), MNIST).rho < 13 * MNIST**2 * 0.1
    assert amplify(Tcdp(0.1, 34.22), 0.1).omega == pytest.approx(math.log(10) / 0.4)
    with pytest.raises(LemmaFails):
        amplify(gaussian(2.2360), MNIST)


def test_conversion_refuses_a_delta_beyond_omega():
    with pytest.raises(LemmaFails, match=r"conversion.*delta >= exp.*at least 0\.90484"):
        to_epsilon(Tcdp(0.1, 2.0), DELTA)
    with pytest.raises(LemmaFails, match="omega > 1 fails"):  # 001's run at epsilon 1: omega = 2.5e-4
        to_epsilon(Tcdp(0.02, 2.5e-4), DELTA)
    # It answers at the named delta, and with the named omega.
    assert to_epsilon(Tcdp(0.1, 2.0), 0.90484) == pytest.approx(0.1 + 2 * 0.1, rel=1e-4)
    assert to_epsilon(Tcdp(0.1, 1 + math.sqrt(math.log(1e5) / 0.1) + 1e-9), DELTA) > 0


@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan, math.inf])
def test_bad_noise_is_refused(noise):
    with pytest.raises(BadArgument, match="noise_multiplier"):
        gaussian(noise)


def test_bad_counts_and_rates_are_refused():
    with pytest.raises(BadArgument, match="count"):
        compose([(gaussian(3.0), -1)])
    with pytest.raises(BadArgument, match="sample_rate"):
        amplify(gaussian(3.0), 0.0)
    with pytest.raises(BadArgument, match="delta"):
        to_epsilon(gaussian(3.0), 0.0)
