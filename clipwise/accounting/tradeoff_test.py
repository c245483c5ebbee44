"""An attacker's true-positive rates: against closed forms, dp-accounting from above and below, an attack that is carried
out, and broken twins that are optimistic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.optimize import brentq
from scipy.stats import norm

from clipwise.accounting import FixedSizeEvent, StepEvent, dots, epsilon, pld, trade_off, tradeoff
from clipwise.accounting.tradeoff import rates_of_pair, true_positive_rates
from clipwise.types import BadArgument

RATES = (1e-4, 1e-3, 0.01, 0.05, 0.3, 0.9)
MNIST = 64 / 60000


@pytest.fixture
def nothing_cached():
    tradeoff._evaluate.cache_clear()
    yield
    tradeoff._evaluate.cache_clear()


def one_step(rate, noise, false_positives):
    """The true curve of a single step, larger direction: the likelihood ratio is monotone, so the best test is a cut."""
    present = (1 - rate) * false_positives + rate * norm.cdf(norm.ppf(false_positives) + 1 / noise)

    def excess(cut):
        return (1 - rate) * norm.cdf(cut / noise) + rate * norm.cdf((cut - 1) / noise) - false_positives

    absent = norm.cdf(brentq(excess, -50 * noise - 50, 50 * noise + 50, xtol=1e-14) / noise)
    return max(present, absent)


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 0.5), (0.01, 5.0), (0.3, 1.0), (0.9, 0.7), (MNIST, 1.0)])
def test_one_step_in_closed_form(rate, noise):
    found = true_positive_rates([StepEvent(rate, noise)], RATES)
    for false_positives, value in zip(RATES, found, strict=True):
        exact = one_step(rate, noise, false_positives)
        assert exact * (1 - 1e-12) <= value <= exact * 1.003 + 1e-7


@pytest.mark.parametrize("mu", [0.01, 0.5, 1.0, 4.0])
def test_the_gaussian_in_closed_form(mu):
    """Sample rate 1: Phi(mu + Phi^-1(rate)), however the release is split into parts."""
    exact = norm.cdf(mu + norm.ppf(RATES))
    for count in (1, 9):
        found = np.array(true_positive_rates([StepEvent(1.0, math.sqrt(count) / mu, count)], RATES))
        assert (exact <= found).all()
        assert found == pytest.approx(np.maximum(exact, RATES), rel=1e-8)


@pytest.mark.parametrize("mu", [0.5, 1.0, 4.0])
def test_the_grid_meets_the_gaussian(mu):
    """The way of sampled steps, at a rate that is 1 for all that matters."""
    exact = norm.cdf(mu + norm.ppf(RATES))
    found = np.array(true_positive_rates([StepEvent(1 - 1e-9, math.sqrt(5) / mu, 5)], RATES))
    assert (exact * (1 - 1e-7) <= found).all()
    assert (found <= exact * 1.003 + 1e-6).all()


def dp_accounting_rates(rate, noise, steps, width, *, pessimistic):
    """The least of exp(epsilon) x rate + delta(epsilon) over dp-accounting's own deltas: by direction, and then the larger.
    (Its `get_true_positive_rates`, which came after 0.6, takes the least over its epsilons.)"""
    with np.errstate(all="ignore"):
        one = privacy_loss_distribution.from_gaussian_mechanism(
            noise,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=width,
            sampling_prob=rate,
            use_connect_dots=pessimistic,
        ).self_compose(steps)
        at = np.linspace(-12, 25, 20_001)
        found = []
        for direction in (one._pmf_remove, one._pmf_add):
            deltas = np.asarray(direction.get_delta_for_epsilon(at))
            found.append([min(1.0, float((np.exp(at) * value + deltas).min())) for value in RATES])
    return np.max(found, axis=0)


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "width", "tight"),
    [
        (MNIST, 0.5, 10, 1e-3, True),
        (0.01, 0.5, 10, 1e-3, True),
        (0.01, 1.0, 1000, 8e-4, False),
        (0.1, 1.0, 30, 1e-3, True),
        (0.1, 5.0, 1000, 1e-3, False),
        (0.5, 1.0, 10, 1e-3, True),
        (MNIST, 1.4929, 9375, 1e-4, False),
    ],
)
def test_between_the_bounds_of_dp_accounting(rate, noise, steps, width, tight):
    found = np.array(true_positive_rates([StepEvent(rate, noise, steps)], RATES))
    assert (found <= 1.005 * dp_accounting_rates(rate, noise, steps, width, pessimistic=True)).all()
    below = dp_accounting_rates(rate, noise, steps, width, pessimistic=False)
    assert (found >= below * (1 - 1e-6)).all()
    assert not tight or (found <= 1.02 * below).all()  # elsewhere dp-accounting's rounding down is far off


def test_its_own_true_positive_rates_where_it_has_them():
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    if not hasattr(PLDAccountant, "get_true_positive_rates"):
        pytest.skip("this dp-accounting has no get_true_positive_rates; the test above takes its place")
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.0)), 30)
    theirs = accountant.get_true_positive_rates(np.array(RATES))
    found = np.array(true_positive_rates([StepEvent(0.1, 1.0, 30)], RATES))
    assert (found <= theirs * 1.005).all()  # their curve is symmetric, and so may be well above


def test_an_attack_that_is_carried_out_stays_below_and_comes_close():
    """The likelihood ratio of 40 steps, 200,000 worlds with the record and as many without."""
    rate, noise, steps, worlds = 0.2, 1.0, 40, 200_000
    random = np.random.default_rng(0)

    def log_ratio(member):
        total = np.zeros(worlds)
        for _ in range(steps):
            answer = noise * random.standard_normal(worlds)
            if member:
                answer += random.random(worlds) < rate
            total += np.logaddexp(np.log1p(-rate), np.log(rate) + (answer - 0.5) / noise**2)
        return total

    inside, outside = log_ratio(True), log_ratio(False)
    for false_positives in (0.01, 0.05, 0.3):
        (bound,) = true_positive_rates([StepEvent(rate, noise, steps)], [false_positives])
        reached = (inside > np.quantile(outside, 1 - false_positives)).mean()
        assert reached <= bound + 4 * math.sqrt(bound / false_positives * bound / worlds)  # the cut is estimated too
        assert reached >= 0.95 * bound


@pytest.mark.usefixtures("nothing_cached")
def test_mutant_losses_rounded_down_fall_below_the_truth(monkeypatch):
    """All of a cell's mass on its lower end: optimistic, and caught by the closed form."""
    exact = one_step(0.3, 1.0, 0.01)
    assert true_positive_rates([StepEvent(0.3, 1.0)], [0.01])[0] >= exact
    tradeoff._evaluate.cache_clear()
    monkeypatch.setattr(dots, "_ends", lambda total, *_: np.concatenate([total, [0.0]]))
    assert true_positive_rates([StepEvent(0.3, 1.0)], [0.01])[0] < exact


def test_mutant_one_direction_alone_falls_below_the_other():
    event = (StepEvent(0.5, 1.0, 10),)
    whole = true_positive_rates(event, [0.001, 0.9])
    removal, addition = (tradeoff._one_direction(event, (0.001, 0.9), removal=removal) for removal in (True, False))
    assert removal[1] < 0.999 * whole[1]
    assert addition[0] < 0.5 * whole[0]
    assert np.maximum(removal, addition).tolist() == whole


def test_mutant_without_what_left_the_window_falls_below_the_truth(monkeypatch):
    """A window that ends far too low: what left it at the top must be counted."""
    kept = pld._composed_around

    def cut(*arguments, **options):
        composed = kept(*arguments, **options)
        return composed._replace(masses=composed.masses[:1000], losses=composed.losses[:1000], lost=lost(composed))

    def gone(composed):
        return composed.lost + float(math.exp(composed.log_scale) * composed.masses[1000:].sum())

    event, truth = (StepEvent(0.3, 1.0),), one_step(0.3, 1.0, 0.01)
    monkeypatch.setattr(pld, "_composed_around", cut)
    lost = gone
    assert tradeoff._one_direction(event, (0.01,), removal=True)[0] >= truth
    lost = lambda composed: 0.0  # noqa: E731, ARG005
    assert tradeoff._one_direction(event, (0.01,), removal=True)[0] < truth


def test_edges_of_the_table():
    assert true_positive_rates([], RATES) == list(RATES)
    assert true_positive_rates([StepEvent(0.1, 1.0, 5), StepEvent(0.1, 0.0)], RATES) == [1.0] * len(RATES)
    assert true_positive_rates([StepEvent(0.3, 0.01, 10**6)], [0.01]) == [1.0]
    assert true_positive_rates([StepEvent(0.5, 1.0, 10)], [1.0]) == [1.0]
    with pytest.raises(BadArgument, match=r"rates=1\.5"):
        trade_off([], rates=[1.5])


def test_rates_rise_and_are_never_below_guessing():
    at = np.geomspace(1e-5, 1, 40)
    for events in ([StepEvent(1e-6, 1.0)], [StepEvent(0.1, 1.0, 30)], [StepEvent(0.01, 50.0, 10)]):
        found = np.array(true_positive_rates(events, at.tolist()))
        assert (found >= at).all()
        assert (np.diff(found) >= 0).all()


def test_many_levels_are_put_together_on_the_safe_side():
    levels = [StepEvent(0.01, 1.5 * 0.5 ** (k / 2000)) for k in range(2000)]
    few = [StepEvent(0.01, 1.5 * 0.5 ** (k / 2000), 20) for k in range(0, 2000, 20)]  # more noise than there is
    found, least = (np.array(true_positive_rates(each, RATES)) for each in (levels, few))
    assert (least <= found).all()
    assert (found <= 1.03 * least).all()


def test_one_pair_holds_for_every_mechanism_that_satisfies_it():
    """Randomised response with a delta meets the first line with equality, and its mirror the second."""
    rate, larger = 0.01, math.exp(1.0)
    assert rates_of_pair(1.0, 1e-5, [rate, 0.9]) == pytest.approx(
        [larger * rate + 1e-5, 1 - (1 - 1e-5 - 0.9) / larger], rel=1e-8
    )
    assert rates_of_pair(math.inf, 1e-5, [rate]) == rates_of_pair(800.0, 1e-5, [rate]) == [1.0]
    assert rates_of_pair(0.0, 0.0, [rate]) == pytest.approx([rate])


def test_the_whole_curve_is_below_the_pair_that_it_implies():
    events = [StepEvent(0.1, 1.0, 30)]
    spent = epsilon(events, 1e-5)
    whole = trade_off(events, spent.value, spent.delta)
    pair = trade_off(events, spent.value, spent.delta, whole_curve=False)
    assert (whole.source, pair.source) == ("pld", "epsilon")
    assert all(a < 0.5 * b for a, b in zip(whole.true_positive_rates, pair.true_positive_rates, strict=True))


def test_batches_of_a_fixed_size_have_the_pair_alone():
    events = [FixedSizeEvent(0.01, 4.0, 100)]
    spent = epsilon(events, 1e-5)
    found = trade_off(events, spent.value, spent.delta)
    assert found.source == "epsilon"
    assert found.true_positive_rates[1] == pytest.approx(math.exp(spent.value) * 0.01 + 1e-5, rel=1e-8)
    assert trade_off(events).true_positive_rates == (1.0, 1.0, 1.0)
