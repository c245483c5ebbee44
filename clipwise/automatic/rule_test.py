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
    found = rule.quantile(counts.tolist(), 10.0, rule.NORMS)
    assert found == pytest.approx(2 ** (1.5 + 0.5 / 3))  # a third of the way into the half octave that holds 3.0
    assert rule.quantile(counts.tolist(), 1000.0, rule.NORMS) is None
    assert rule.quantile([0.0] * rule.BINS, 0.0, rule.NORMS) is None


def test_the_unit_of_a_loss_changes_neither_its_score_nor_the_first_rates():
    """l and |gradient| in another unit, 4 times as small: both medians are 4 times as large."""
    losses = torch.tensor([0.0, 0.5, 3.0, 1e30, -1.0])
    one, other = (rule.score_of_losses(unit * losses, unit * 0.5) for unit in (1.0, 4.0))
    assert one.tolist() == other.tolist()
    assert one.tolist() == pytest.approx([1.0, 0.5, 1 / 7, 0.0, 1.0])
    for unit in (1.0, 4.0, 0.01):
        assert guess(3.0 * unit, 0.5 * unit, 200, kind="values") == pytest.approx(guess(3.0, 0.5, 200, kind="values"))
    assert guess(3.0, 1.0, 200, kind="values") == guess(3.0, None, 200)


def test_the_first_guess_of_a_linear_model_goes_with_one_over_its_norms():
    assert guess(4.0, None, 100, linear=True) == pytest.approx(rule.LINEAR_GUESS / 40)
    assert guess(4.0, None, 100) == pytest.approx(rule.GUESS / 20)


def test_noise_moves_the_outputs_of_few_rows_of_values_by_about_one_of_their_errors():
    """By hand, a squared loss of .04: the error is .2, J = 2 (.2) |output's gradient|, and lr sqrt(T) |output's gradient| is .2 too."""
    rate = guess(2 * 0.2 * 3.0, 0.04, 100, kind="values")
    assert rate * math.sqrt(100) * 3.0 == pytest.approx(0.2)
    assert rate < rule.GUESS * math.sqrt(0.04 / (1.2 * 100))


def test_where_the_median_was_not_seen_a_made_record_stands_for_it():
    assert guess(None, None, 100, linear=True) == guess(1.0, None, 100)
    assert guess(None, None, 100, made=4.0) == guess(4.0, None, 100)
    seen = guess(4.0 * math.sqrt(0.09), 0.09, 100, kind="values")
    assert guess(None, 0.09, 100, kind="values", made=4.0) == pytest.approx(seen)
    assert guess(None, None, 100, kind="values", made=4.0) > seen  # takes a larger loss for granted


def guess(norm, loss, steps, **how):
    return rule.first_guess(norm, loss, steps, **{"kind": "classes", "linear": False, **how})


def test_gradients_of_values_keep_more_of_their_sizes_the_more_records_there_are():
    assert rule.gamma_for("classes", 3.0, 1e6) is None
    assert rule.gamma_for("values", None, 1e6) is None
    assert rule.gamma_for("values", 3.0, 1e6, 1.0) == rule.GAMMA_OVER_MEDIAN * 3.0
    assert rule.gamma_for("values", 3.0, rule.WORTH / 100, 1.0) == pytest.approx(rule.GAMMA_OVER_MEDIAN * 0.03)


def test_gradients_of_values_that_a_model_explains_do_not_keep_their_sizes():
    least, most = rule.GAMMA_LEAST * 3.0, rule.GAMMA_OVER_MEDIAN * 3.0
    low, high = rule.STAYS
    found = [rule.gamma_for("values", 3.0, 1e6, left) for left in (0.0, low, (low + high) / 2, high)]
    assert found == pytest.approx([least, least, most / 2, most])
    assert rule.gamma_for("classes", 3.0, 1e6, 1.0) is None


def test_what_a_race_left_of_the_losses_is_read_from_its_score():
    """By hand, all losses in one bin of middle 0.25 sqrt(2): l is half of what four of five are below."""
    counts = [0.0] * rule.BINS
    (place,) = rule.histogram_place(torch.tensor([0.3]), rule.LOSSES).tolist()
    counts[place] = 1000.0
    loss, typical = 0.25 * math.sqrt(2), 0.18
    for left in (0.8, 0.3, 0.05):
        assert rule.left_over(counts, 10.0, typical, typical / (typical + left * loss)) == pytest.approx(left, abs=1e-3)
    assert rule.left_over(counts, 10.0, typical, 0.01) == 1.0  # worse than at the first weights
    assert rule.left_over(counts, 10.0, typical, 1.02) == 0.0  # noise
    assert rule.left_over([0.0] * rule.BINS, 10.0, typical, 0.5) == rule.left_over(counts, 10.0, None, 0.5) == 1.0


def test_a_spike_of_targets_that_are_right_from_the_start_does_not_set_the_unit():
    """Hours a week: six records of ten have next to no loss, and the others are what there is to learn."""
    counts = torch.zeros(rule.BINS)
    for loss, records in ((1e-4, 600), (0.3, 400)):
        counts[rule.histogram_place(torch.tensor([loss]), rule.LOSSES)] += records
    assert rule.quantile(counts.tolist(), 10.0, rule.LOSSES) < 2e-4
    found = rule.typical_loss(counts.tolist(), 10.0)
    assert found == pytest.approx(rule.LOSS_PART * 0.25 * math.sqrt(2))  # in the middle of the octave that holds .3
    assert rule.typical_loss([0.0] * rule.BINS, 10.0) is None


def test_one_bin_of_noise_far_away_is_not_the_upper_end_of_few_rows():
    """Diabetes: one bin above 3 deviations at 1e8 was a fifth of what was seen, and set a rate of 132."""
    counts = [0.0] * rule.BINS
    counts[28:32] = [20.0, 60.0, 60.0, 20.0]
    alone = rule.typical_loss(counts, 10.0)
    counts[59] = 39.0
    assert rule.typical_loss(counts, 10.0) == alone


def test_noise_alone_gives_no_median():
    """In 2,000 histograms of noise; a threshold for single bins of 3 deviations let 8 % of them through, with a median of any size."""
    noise = torch.randn(2000, rule.BINS, generator=torch.Generator().manual_seed(0))
    assert sum(rule.quantile(each.tolist(), 1.0, rule.NORMS) is not None for each in noise) <= 20


def test_few_records_get_a_histogram_that_can_be_read():
    mu = rule.gaussian_mu(1.0, 1e-5)
    few, many = (rule.measuring(mu, 200, records) for records in (400, 100_000))
    assert math.sqrt(2) * few.histogram_noise <= 1.2 * rule.READABLE * 400
    assert many.histogram_noise == pytest.approx(1 / (mu * math.sqrt(rule.HISTOGRAM_SHARE[0])))
    assert rule.measuring(mu, 200, 10).histogram_noise == pytest.approx(1 / (mu * math.sqrt(rule.HISTOGRAM_SHARE[1])))


@pytest.mark.parametrize(
    ("inputs", "outputs", "power"),
    [
        (3.8, 0.3, 0),  # digits as they are
        (1.0, 0.006, 0),  # a bag of words
        (0.5, 0.1, 0),
        (0.038, 0.003, 3),  # digits x 0.01, brought to 2.4
        (380.0, 27.0, -3),  # x 100, outputs brought to 0.42
        (380.0, 1.0, 0),  # weights that fit long inputs
        (2.0, 27.0, 0),  # large weights
        (1e-9, 1e-9, 15),
        (0.0, 0.1, None),
        (math.nan, 1.0, None),
        (1.0, math.inf, None),
    ],
)
def test_what_a_record_wants_its_input_multiplied_by(inputs, outputs, power):
    (place,) = rule.scale_place(torch.tensor([inputs]), torch.tensor([outputs])).tolist()
    assert place == (-1 if power is None else power + rule.SCALE_MOST)


def test_the_scale_is_what_most_records_want():
    counts = [0.0] * rule.SCALES
    assert rule.input_scale(counts, 10.0) == 1.0
    counts[rule.SCALE_MOST + 3] = 25.0
    assert rule.input_scale(counts, 10.0) == 1.0  # in the noise
    counts[rule.SCALE_MOST + 3] = 35.0
    assert rule.input_scale(counts, 10.0) == 64.0
    counts[rule.SCALE_MOST - 2] = 300.0
    assert rule.input_scale(counts, 10.0) == 1 / 16


def test_a_mean_that_is_noise_or_short_is_not_subtracted():
    noise = torch.randn(20, generator=torch.Generator().manual_seed(0)).double()
    assert rule.input_mean(50 * noise, 50.0, 100) is None
    assert rule.input_mean(torch.full((20,), 0.1 * 100).double(), 0.01, 100) is None
    found = rule.input_mean(torch.full((20,), 0.5 * 100).double(), 10.0, 100)
    assert found.tolist() == pytest.approx([0.5 * (1 - 0.1**2 / 0.5**2)] * 20)  # less what of its square is noise


def test_centred_inputs_are_brought_to_a_length_of_2_to_4():
    lengths = torch.tensor([0.5, 1.1, 1.9, 3.0, 50.0, 0.0, math.nan])
    assert rule.centred_place(lengths).tolist() == [3, 1, 1, 0, 0, -1, -1]
    counts = [0.0] * rule.SCALES
    assert rule.centred_scale(counts, 10.0) == 1.0
    counts[3] = 40.0
    assert rule.centred_scale(counts, 10.0) == 8.0


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
    flat = rule.chosen_rate([rule.Result(rates, (50.0, 50.0, 50.0), 1.0)], 1000, "classes")
    assert flat == pytest.approx(rule.FACTORS["classes"] * 0.02)
    low, high = (
        rule.chosen_rate([rule.Result(rates, s, 1.0)], 1000, "classes") for s in ((900, 10, 10), (10, 10, 900))
    )
    assert low == pytest.approx(rule.FACTORS["classes"] * 0.01, rel=1e-3)
    assert high == pytest.approx(rule.FACTORS["classes"] * 0.04, rel=1e-3)
    drowned = rule.chosen_rate([rule.Result(rates, (10, 10, 900), 1e6)], 1000, "classes")
    assert drowned == pytest.approx(flat, rel=1e-2)


def test_what_is_learned_decides_how_far_from_its_winner_a_run_begins():
    result = rule.Result((0.01, 0.02, 0.04), (50.0, 50.0, 50.0), 1.0)
    found = {kind: rule.chosen_rate([result], 1000, kind) / 0.02 for kind in rule.FACTORS}
    assert found == pytest.approx(rule.FACTORS)


def test_rates_that_are_certainly_worse_do_not_count():
    """Ten hidden layers: five scores of which one is right, and a mean over all of them that was a third too high."""
    rates = (0.01, 0.02, 0.04, 0.08, 0.16)
    found = rule.chosen_rate([rule.Result(rates, (100, 300, 80, 90, 100), 24.0)], 1000, "values")
    assert found == pytest.approx(rule.FACTORS["values"] * 0.02)
    unsure = rule.chosen_rate([rule.Result(rates, (100, 300, 80, 90, 100), 60.0)], 1000, "values")
    assert unsure > 1.1 * found


def test_the_rate_rises_late_only_and_within_its_reach():
    assert rule.next_rise(0.0, -5.0, 10, 200) == 0.0  # early
    assert rule.next_rise(0.0, -5.0, 100, 200) == pytest.approx(rule.GAIN)  # downhill: faster
    assert rule.next_rise(0.0, 5.0, 100, 200) == 0.0  # never below where it began
    assert rule.next_rise(rule.REACH, -5.0, 100, 200) == rule.REACH


def test_too_few_records_are_said_beforehand():
    plan = rule.measuring(rule.gaussian_mu(1.0, 1e-5), 200, 500)
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
