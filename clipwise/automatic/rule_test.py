"""The rule against figures worked by hand, and what its decisions must not do."""

import math

import pytest
import torch

from clipwise.accounting.gdp import gaussian_epsilon
from clipwise.automatic import rule


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0])
def test_mu_is_that_of_the_gaussian_mechanism(epsilon):
    assert gaussian_epsilon(1 / rule.gaussian_mu(epsilon, 1e-5), 1e-5) == pytest.approx(epsilon, rel=1e-6)


def test_delta_is_a_power_of_ten_below_one_over_the_records():
    assert [rule.delta_for(n) for n in (1, 9, 1437, 60_000, 10**6)] == pytest.approx([1e-5, 1e-5, 1e-5, 1e-5, 1e-7])


def test_length_by_effort_and_by_what_is_stated():
    assert rule.size_for(60_000, "quick") == (3_000, 10)
    assert rule.size_for(60_000, "normal") == (6_000, 20)
    assert rule.size_for(60_000, "long") == (12_000, 40)
    assert rule.size_for(60_000, "normal", epochs=10) == (3_000, 10)  # 200 steps
    assert rule.size_for(60_000, "quick", batch=64) == (64, 10)
    assert rule.size_for(60_000, "quick", batch=64, epochs=3) == (64, 3)
    for records in (1, 7, 143, 1437):
        batch, epochs = rule.size_for(records, "normal")
        assert 1 <= batch <= records
        assert epochs * math.ceil(records / batch) <= rule.STEPS


def test_the_median_is_that_of_the_bins_that_stand_out():
    counts = torch.zeros(rule.BINS)
    norms = torch.tensor([0.0, 1e-9, 3.0, 3.0, 3.0, 1e30])
    for place in rule.histogram_place(norms, rule.NORMS):
        counts[place] += 100
    found = rule.median(counts.tolist(), 10.0, rule.NORMS)
    assert found == pytest.approx(2 ** (1.5 + 0.5 / 3))  # a third of the way into the half octave that holds 3.0
    assert rule.median(counts.tolist(), 1000.0, rule.NORMS) is None
    assert rule.median([0.0] * rule.BINS, 0.0, rule.NORMS) is None


def test_the_unit_of_a_loss_changes_neither_its_score_nor_the_first_rates():
    """l and |gradient| in another unit, 4 times as small: both medians are 4 times as large."""
    losses = torch.tensor([0.0, 0.5, 3.0, 1e30, -1.0])
    one, other = (rule.score_of_losses(unit * losses, unit * 0.5) for unit in (1.0, 4.0))
    assert one.tolist() == other.tolist()
    assert one.tolist() == pytest.approx([1.0, 0.5, 1 / 7, 0.0, 1.0])
    for linear in (False, True):
        first, second = (rule.first_guess(n, loss, 200, linear=linear) for n, loss in ((3.0, 0.5), (12.0, 2.0)))
        assert first == pytest.approx(second)
    assert rule.first_guess(3.0, 1.0, 200, linear=True) == rule.first_guess(3.0, None, 200, linear=False)


def test_the_first_guess_of_a_linear_model_goes_with_one_over_its_norms():
    assert rule.first_guess(4.0, None, 100, linear=True) == pytest.approx(rule.LINEAR_GUESS / 40)
    assert rule.first_guess(4.0, None, 100, linear=False) == pytest.approx(rule.GUESS / 20)
    assert rule.first_guess(None, None, 100, linear=True) == rule.first_guess(1.0, None, 100, linear=False)  # not seen


def test_gradients_that_are_hardly_longer_than_those_of_a_blank_input_are_said():
    assert "Scale inputs" in (rule.small_inputs(1.3, 1.2) or "")
    assert rule.small_inputs(3.8, 1.2) is None
    assert rule.small_inputs(None, 1.2) is None
    assert rule.small_inputs(1.0, None) is None


@pytest.mark.parametrize(
    ("signal", "rise", "said"), [(0.3, 0.9, "by noise"), (3.0, 0.6, "by its steps"), (3.0, 0.1, "by the model")]
)
def test_one_sentence_says_what_held_the_run_back(signal, rise, said):
    assert f"limited {said}" in rule.limited_by(signal, rise)


def test_the_rate_follows_the_scores_and_without_them_stays_in_the_middle():
    rates = (0.01, 0.02, 0.04)
    flat = rule.chosen_rate([rule.Result(rates, (50.0, 50.0, 50.0), 1.0)], 1000)
    assert flat == pytest.approx(rule.FACTOR * 0.02)
    low, high = (rule.chosen_rate([rule.Result(rates, s, 1.0)], 1000) for s in ((900, 10, 10), (10, 10, 900)))
    assert low == pytest.approx(rule.FACTOR * 0.01, rel=1e-3)
    assert high == pytest.approx(rule.FACTOR * 0.04, rel=1e-3)
    drowned = rule.chosen_rate([rule.Result(rates, (10, 10, 900), 1e6)], 1000)
    assert drowned == pytest.approx(flat, rel=1e-2)


def test_the_rate_rises_late_only_and_within_its_reach():
    assert rule.next_rise(0.0, -5.0, 10, 200) == 0.0  # early
    assert rule.next_rise(0.0, -5.0, 100, 200) == pytest.approx(rule.GAIN)  # downhill: faster
    assert rule.next_rise(0.0, 5.0, 100, 200) == 0.0  # never below where it began
    assert rule.next_rise(rule.REACH, -5.0, 100, 200) == rule.REACH


def test_too_few_records_are_said_beforehand():
    plan = rule.measuring(rule.gaussian_mu(1.0, 1e-5), 200)
    assert "500 records are few" in rule.too_few(plan, 500)
    assert rule.too_few(plan, 50_000) is None


def test_sgd_walks_as_adam_does_where_noise_dominates():
    """Random walks of both, on pure noise of deviation 0.01: the same spread, to the sampling error of 400 walkers."""
    generator = torch.Generator().manual_seed(0)
    ends = []
    for make in (
        lambda p: torch.optim.Adam(p, lr=0.003, betas=rule.BETAS, eps=rule.ADAM_EPS),
        lambda p: torch.optim.SGD(p, lr=rule.sgd_rate(0.003, 0.01, 0.9), momentum=0.9),
    ):
        walkers = torch.nn.Parameter(torch.zeros(400))
        optimizer = make([walkers])
        for _ in range(300):
            walkers.grad = 0.01 * torch.randn(400, generator=generator)
            optimizer.step()
        ends.append(float(walkers.detach().std()))
    assert ends[0] == pytest.approx(ends[1], rel=0.15)
