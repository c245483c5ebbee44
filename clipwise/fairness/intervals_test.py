"""Bootstrap intervals: against a loop, against known variances, and that they are repeatable."""

import math

import numpy as np
import pytest

from clipwise.fairness import intervals, metrics
from clipwise.types import BadArgument


def case(seed=0, runs=4, sizes=(300, 60), private_accuracy=(0.9, 0.6)):
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    plain = rng.random((1, len(groups))) < 0.95
    private = rng.random((runs, len(groups))) < np.array(private_accuracy)[groups]
    return plain, private, groups


def test_draws_have_the_right_mean_and_spread():
    plain, private, groups = case(runs=1)
    drawn = intervals.resample(plain, private, groups, 2, resamples=4000)
    for found, right in ((drawn.plain, plain[0]), (drawn.private, private[0])):
        for g in (0, 1):
            share, size = right[groups == g].mean(), (groups == g).sum()
            spread = math.sqrt(share * (1 - share) / size)  # of a binomial share
            assert found[:, g].mean() == pytest.approx(share, abs=5 * spread / math.sqrt(4000))
            assert found[:, g].std() == pytest.approx(spread, rel=0.06)


def test_models_are_compared_on_the_same_draw():
    plain, _, groups = case()
    assert (intervals.resample(plain, plain, groups, 2, resamples=50).costs == 0).all()


def test_seeds_are_drawn_again():
    """Runs that differ widely on records that are all alike: the whole spread is between runs."""
    groups = np.zeros(10, int)
    private = np.repeat([[True], [False], [False], [False]], 10, axis=1)
    drawn = intervals.resample(np.ones((1, 10), bool), private, groups, 1, resamples=4000).private[:, 0]
    assert drawn.mean() == pytest.approx(0.25, abs=0.02)
    assert drawn.std() == pytest.approx(math.sqrt(0.25 * 0.75 / 4), rel=0.06)


def test_gap_interval_covers_the_truth_as_often_as_it_says():
    true_gap, hits = 0.3, 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        groups = np.repeat([0, 1], [300, 100])
        plain = np.ones((1, 400), bool)
        private = rng.random((1, 400)) < np.array([0.9, 0.6])[groups]
        costs = intervals.resample(plain, private, groups, 2, resamples=300, seed=seed).costs
        low, high, _ = intervals.gap_interval(costs, 0, 1)
        hits += low <= true_gap <= high
    assert 180 <= hits <= 198  # 190 expected; 4 standard deviations are 12


def test_a_gap_of_nothing_reaches_down_to_zero():
    costs = np.random.default_rng(0).normal(0, 0.1, (500, 2))
    low, high, _ = intervals.gap_interval(costs, 0, 1)
    assert low == 0
    assert 0.2 < high < 0.4
    apart = costs + np.array([1, 0])
    assert intervals.gap_interval(apart, 0, 1) == intervals.gap_interval(apart, 1, 0)
    assert intervals.gap_interval(apart, 0, 1).low > 0.6


def test_seeded_and_whatever_the_pieces(monkeypatch):
    plain, private, groups = case()
    first = intervals.resample(plain, private, groups, 2, resamples=40, seed=3)
    again = intervals.resample(plain, private, groups, 2, resamples=40, seed=3)
    other = intervals.resample(plain, private, groups, 2, resamples=40, seed=4)
    assert (first.costs == again.costs).all()
    assert (first.costs != other.costs).any()
    monkeypatch.setattr(intervals, "_CELLS", 900)  # three draws at a time
    assert np.allclose(intervals.resample(plain, private, groups, 2, resamples=40, seed=3).costs[:3], first.costs[:3])


def test_auc_draws_against_scikit_learn():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    positive, score = rng.random(60) < 0.4, rng.normal(size=60).round(1)
    weights = intervals._draws(60, 20, rng).astype(float)
    wanted = [roc_auc_score(positive, score, sample_weight=w) for w in weights]
    assert intervals._areas(positive, score, weights) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("classes", [2, 4])
def test_auc_interval_is_around_the_auc(classes):
    rng = np.random.default_rng(0)
    targets = rng.integers(0, classes, 300)
    scores = rng.normal(size=(300, classes)) + np.eye(classes)[targets]
    low, high, _ = intervals.roc_auc_interval(targets, scores, resamples=200)
    assert low < metrics.roc_auc(targets, scores).value < high
    assert 0.01 < high - low < 0.15


def test_auc_of_several_runs():
    """Runs that are all alike give the interval of one; runs far apart, one as wide as they are."""
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 2, 400)
    good = rng.normal(size=(400, 2)) + 3 * np.eye(2)[targets]
    bad = rng.normal(size=(400, 2))
    one, same = (intervals.roc_auc_interval(targets, scores) for scores in (good, np.array([good] * 3)))
    assert same == pytest.approx((*one[:2], ""), abs=1e-12)
    low, high, _ = intervals.roc_auc_interval(targets, np.array([good, bad, bad]))
    areas = [metrics.roc_auc(targets, scores).value for scores in (good, bad, bad)]
    assert low < np.mean(areas) < high
    assert high - low == pytest.approx(areas[0] - areas[1], rel=0.25)


@pytest.mark.parametrize("false_positives", [False, True])
def test_differences_against_a_loop(false_positives):
    """Every draw made by hand: the same records for both runs, and the figures of metrics.py on them. Groups differ in how
    often the model is right, or only in what it takes for what when it is wrong."""
    rng = np.random.default_rng(0)
    targets, groups = rng.integers(0, 3, 240), rng.integers(0, 2, 240)
    if false_positives:
        wrong = np.where(groups == 0, np.where(targets == 1, 0, 1), np.where(targets == 0, 2, 0))
        predicted = np.where(rng.random((2, 240)) < 0.6, targets, wrong)
    else:
        predicted = np.where(rng.random((2, 240)) < 0.6 + 0.2 * groups, targets, rng.integers(0, 3, (2, 240)))
    found = intervals.difference_intervals(targets, predicted, groups, 2, 3, resamples=4000)
    strata = [np.flatnonzero((groups == g) & (targets == t)) for g in (0, 1) for t in (0, 1, 2)]
    parity, odds = [], []
    for _ in range(500):
        rows = np.concatenate([rng.choice(members, len(members)) for members in strata])
        drawn = [predicted[run][rows] for run in rng.integers(0, 2, 2)]
        parity.append(np.mean([metrics.demographic_parity_difference(p, groups[rows], 2, 3).value for p in drawn]))
        odds.append(
            np.mean([metrics.equalised_odds_difference(targets[rows], p, groups[rows], 2, 3).value for p in drawn])
        )
    for interval, draws in ((found.parity, parity), (found.odds, odds)):
        wanted = np.quantile(draws, [0.025, 0.975])
        assert interval[:2] == pytest.approx(list(wanted), abs=0.03)
        assert interval.high - interval.low > 0.1


def test_differences_of_degenerate_groups_are_named():
    targets, groups = np.array([0, 0, 1, 0]), np.array([0, 0, 0, 1])
    found = intervals.difference_intervals(targets, targets[None], groups, 3, 2, resamples=20)
    assert found.parity.low is not None  # group 2 is empty, and left out
    assert found.odds == (None, None, "a group lacks a class, or has nothing else")
    lonely = intervals.difference_intervals(targets, targets[None], groups * 0, 2, 2, resamples=20)
    assert lonely.parity.note == lonely.odds.note == "fewer than two groups have members"
    none = np.zeros(0, int)
    assert intervals.difference_intervals(none, none[None], none, 2, 2).parity.low is None
    without = intervals.with_interval(metrics.Measure(None, "why"), found.parity)
    assert without == {"value": None, "note": "why"}


def test_what_has_no_interval_is_named():
    plain, private, groups = case()
    costs = intervals.resample(plain, private, groups, 3, resamples=20).costs
    assert np.isnan(costs[:, 2]).all()
    assert intervals.gap_interval(costs, 0, 2) == (None, None, "a draw has no figure")
    assert intervals.worst_gap_interval(costs).high is not None  # the empty group is left out
    assert intervals.worst_gap_interval(costs[:, 1:]).low is None
    assert intervals.roc_auc_interval(np.ones(3, int), np.zeros(3)).note == metrics.ONE_CLASS
    assert intervals.roc_auc_interval(np.array([0, 1]), np.array([0, np.nan])).note == metrics.NOT_FINITE
    assert intervals.roc_auc_interval(np.zeros(0, int), np.zeros((0, 2))).note == metrics.NO_RECORDS
    equal = intervals.roc_auc_interval(np.array([0, 1, 1]), np.zeros(3))
    assert (equal.low, equal.high) == (0.5, 0.5)  # as the figure itself


def test_bad_arguments():
    plain, private, groups = case()
    with pytest.raises(BadArgument, match="groups: 3"):
        intervals.resample(plain, private, groups[:3], 2)
    with pytest.raises(BadArgument, match="one run or more"):
        intervals.resample(plain[:0], private, groups, 2)
    with pytest.raises(BadArgument, match="resamples"):
        intervals.resample(plain, private, groups, 2, resamples=0)
    with pytest.raises(BadArgument, match="scores"):
        intervals.roc_auc_interval(np.array([0, 1]), np.zeros((3, 2)))
    with pytest.raises(BadArgument, match="predicted"):
        intervals.difference_intervals(np.array([0, 1]), np.array([0, 1]), np.array([0, 1]), 2, 2)
