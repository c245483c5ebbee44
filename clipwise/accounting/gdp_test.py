"""GDP against the other accountants and an exact normal distribution; and the limit theorem caught below the truth."""

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from clipwise.accounting import Epsilon, StepEvent, epsilon
from clipwise.accounting.gdp import CltEstimate, clt_estimate, gaussian_delta, gaussian_epsilon
from clipwise.types import BadArgument

MNIST = 64 / 60000
MIXED = [StepEvent(1.0, 8.0, 30), StepEvent(1.0, 3.0, 2), StepEvent(1.0, 20.0, 100)]


def test_full_batches_of_unequal_noise_are_one_gaussian():
    mu = math.sqrt(30 / 64 + 2 / 9 + 100 / 400)
    assert gaussian_epsilon(1 / mu, 1e-5) == pytest.approx(epsilon(MIXED, 1e-5, "pld").value, rel=1e-9)


def test_full_batches_against_dp_accounting():
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    for event in MIXED:
        accountant.compose(dp_accounting.GaussianDpEvent(event.noise_multiplier), event.count)
    theirs = accountant.get_epsilon(1e-5)
    assert theirs * (1 - 1e-3) < gaussian_epsilon(1 / math.sqrt(30 / 64 + 2 / 9 + 100 / 400), 1e-5) <= theirs


@pytest.mark.parametrize("noise", [0.05, 0.5, 1.0, 7.0, 300.0])
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-30])
def test_the_inverse_never_falls_short(noise, delta):
    """In 50 digits: delta at the answer is within delta, and a little below the answer it is not."""
    found = gaussian_epsilon(noise, delta)
    with mpmath.workdps(50):

        def exact(e):
            return mpmath.ncdf(0.5 / mpmath.mpf(noise) - e * noise) - mpmath.exp(e) * mpmath.ncdf(
                -0.5 / mpmath.mpf(noise) - e * noise
            )

        assert exact(mpmath.mpf(found)) <= delta
        assert found == 0 or exact(mpmath.mpf(found) * (1 - mpmath.mpf("1e-8"))) > delta
        assert gaussian_delta(noise, found) >= exact(mpmath.mpf(found))


def test_the_limit_theorem_under_reports():
    """dp-accounting's *optimistic* figure, which is below the truth, is far above the estimate."""
    found = clt_estimate([StepEvent(0.01, 0.6, 1000)], 1e-5)
    assert found.mu == pytest.approx(0.01 * math.sqrt(1000 * (math.exp(1 / 0.36) - 1)))
    with np.errstate(all="ignore"):
        one = privacy_loss_distribution.from_gaussian_mechanism(
            0.6,
            pessimistic_estimate=False,
            value_discretization_interval=5e-4,
            sampling_prob=0.01,
            use_connect_dots=False,
        )
        below_the_truth = one.self_compose(1000).get_epsilon_for_delta(1e-5)
    assert found.approximate_epsilon < 0.8 * below_the_truth


def test_the_limit_theorem_on_a_published_run():
    """000's third run on MNIST: the accountants' 4.4775 (tests/vectors/schedules.json) against 4.20."""
    run = [StepEvent(MNIST, 0.663, 93750)]
    assert clt_estimate(run, 1e-5).approximate_epsilon == pytest.approx(4.1997, abs=1e-3)
    assert epsilon(run, 1e-5, "pld").value == pytest.approx(4.4775, rel=1e-3)


def test_the_estimate_cannot_pass_for_a_bound():
    found = clt_estimate([StepEvent(0.01, 1.0, 1000)], 1e-5)
    assert isinstance(found, CltEstimate)
    assert not isinstance(found, Epsilon)
    assert not hasattr(found, "value")
    assert "not a bound" in found.label
    with pytest.raises(TypeError):
        float(found)  # type: ignore[arg-type]


def test_heterogeneous_levels_add_in_squares():
    two = clt_estimate([StepEvent(0.01, 1.0, 300), StepEvent(0.02, 2.0, 200)], 1e-5)
    assert two.mu**2 == pytest.approx(300 * 1e-4 * math.expm1(1) + 200 * 4e-4 * math.expm1(0.25))
    whole = clt_estimate([StepEvent(1.0, 4.0, 3)], 1e-5)
    assert whole.approximate_epsilon == pytest.approx(gaussian_epsilon(4 / math.sqrt(3), 1e-5))


def test_the_ends():
    assert gaussian_epsilon(0.0, 1e-5) == math.inf
    assert gaussian_epsilon(1e12, 1e-300) > 0
    assert clt_estimate([StepEvent(0.1, 0.01)], 1e-5).approximate_epsilon == math.inf
    with pytest.raises(BadArgument, match="delta"):
        clt_estimate([StepEvent(1.0, 1.0)], 1.0)
