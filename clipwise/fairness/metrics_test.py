"""Each figure against a case worked by hand and against another library, and what degenerate data gives."""

import math

import numpy as np
import pytest

from clipwise.fairness import metrics
from clipwise.fairness.metrics import Measure
from clipwise.types import BadArgument

# Eight people in two groups. Group 0: targets 1 1 0 0, predicted 1 0 1 0. Group 1: 1 0 0 0, predicted 1 0 0 0.
TARGETS = np.array([1, 1, 0, 0, 1, 0, 0, 0])
PREDICTED = np.array([1, 0, 1, 0, 1, 0, 0, 0])
GROUPS = np.array([0, 0, 0, 0, 1, 1, 1, 1])


def random_case(seed, classes=2, groups=3, size=400):
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, classes, size)
    scores = rng.normal(size=(size, classes)).round(1)  # with ties
    scores[np.arange(size), targets] += 0.7
    return targets, scores, rng.integers(0, groups, size)


def measures(*values):
    return [Measure(v) for v in values]


def test_by_hand():
    assert metrics.accuracy_by_group(TARGETS, PREDICTED, GROUPS, 2) == measures(0.5, 1.0)
    assert metrics.mean_by_group(np.array([1, 2, 3, 4, 0, 0, 0, 2.0]), GROUPS, 2) == measures(2.5, 0.5)
    # Selected: 2 of 4, 1 of 4.
    assert metrics.demographic_parity_difference(PREDICTED, GROUPS, 2, 2) == Measure(0.25)
    # True positives: 1 of 2, 1 of 1. False positives: 1 of 2, 0 of 3.
    assert metrics.equalised_odds_difference(TARGETS, PREDICTED, GROUPS, 2, 2) == Measure(0.5)
    assert metrics.worst_group(measures(0.9, 0.5, 0.7)) == (1, Measure(0.5))
    # Scores of the positives: 3, 1; of the negatives: 2, 1. Pairs won: 1 + 1 + 0 + a tie = 2.5 of 4.
    assert metrics.roc_auc(np.array([1, 1, 0, 0]), np.array([3.0, 1, 2, 1])) == Measure(0.625)


def test_cost_of_privacy_by_hand():
    plain = [measures(0.9, 0.8, 0.7)]
    private = [measures(0.8, 0.4, 0.7), measures(0.9, 0.2, 0.5)]
    costs = metrics.accuracy_parity(plain, private)
    assert [m.value for m in costs] == pytest.approx([0.05, 0.5, 0.1])
    assert metrics.privacy_cost_gap(costs, 0, 1).value == pytest.approx(0.45)
    assert metrics.privacy_cost_gap(costs, 1, 0).value == pytest.approx(0.45)
    pair, gap = metrics.worst_pair(costs)
    assert pair == (1, 0)
    assert gap.value == pytest.approx(0.45)
    # A group that privacy helps counts with its sign.
    assert metrics.privacy_cost_gap(measures(-0.1, 0.2), 0, 1).value == pytest.approx(0.3)


def test_gap_of_a_published_table():
    """Group accuracies and gaps of Tables 7 and 12 (unbalanced MNIST at epsilon 3): the definition is the paper's. The
    table's first group accuracy without privacy is misprinted; its gaps follow from 99.4186."""
    costs = metrics.accuracy_parity([measures(99.4186, 96.5092)], [measures(99.3217, 92.9158)])
    assert metrics.privacy_cost_gap(costs, 0, 1).value == pytest.approx(3.4965, abs=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_fairlearn(seed):
    fair = pytest.importorskip("fairlearn.metrics")
    from sklearn.metrics import accuracy_score

    targets, scores, groups = random_case(seed)
    predicted = metrics.predictions(scores)
    both = {"y_pred": predicted, "sensitive_features": groups}
    ours = metrics.demographic_parity_difference(predicted, groups, 3, 2)
    assert ours.value == pytest.approx(fair.demographic_parity_difference(targets, **both), abs=1e-12)
    ours = metrics.equalised_odds_difference(targets, predicted, groups, 3, 2)
    assert ours.value == pytest.approx(fair.equalized_odds_difference(targets, **both), abs=1e-12)
    frame = fair.MetricFrame(metrics=accuracy_score, y_true=targets, **both)
    accuracies = metrics.accuracy_by_group(targets, predicted, groups, 3)
    assert [m.value for m in accuracies] == pytest.approx(list(frame.by_group), abs=1e-12)
    assert metrics.worst_group(accuracies)[1].value == pytest.approx(frame.group_min())


@pytest.mark.parametrize("seed", range(5))
def test_many_classes_are_the_largest_of_one_against_the_rest(seed):
    fair = pytest.importorskip("fairlearn.metrics")
    targets, scores, groups = random_case(seed, classes=4)
    predicted = metrics.predictions(scores)
    for ours, theirs in (
        (metrics.demographic_parity_difference(predicted, groups, 3, 4), fair.demographic_parity_difference),
        (metrics.equalised_odds_difference(targets, predicted, groups, 3, 4), fair.equalized_odds_difference),
    ):
        each = [theirs(targets == c, predicted == c, sensitive_features=groups) for c in range(4)]
        assert ours.value == pytest.approx(max(each), abs=1e-12)


@pytest.mark.parametrize("classes", [2, 5])
def test_auc_agrees_with_scikit_learn(classes):
    from sklearn.metrics import roc_auc_score

    targets, scores, _ = random_case(1, classes=classes)
    if classes == 2:  # ties of logits are broken by rounding on the way to shares
        scores = scores + np.random.default_rng(2).normal(size=scores.shape)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    ours = metrics.roc_auc(targets, shares)
    if classes == 2:
        assert ours.value == pytest.approx(roc_auc_score(targets, shares[:, 1]), abs=1e-12)
        assert metrics.roc_auc(targets, shares[:, 1]).value == pytest.approx(ours.value, abs=1e-12)
    else:
        assert ours.value == pytest.approx(roc_auc_score(targets, shares, multi_class="ovr"), abs=1e-12)


def test_a_group_without_members_is_named():
    empty = metrics.accuracy_by_group(TARGETS, PREDICTED, GROUPS, 3)
    assert empty == [Measure(0.5), Measure(1.0), Measure(None, metrics.NO_MEMBERS)]
    assert metrics.worst_group(empty) == (0, Measure(0.5, "groups without members left out: 1"))
    assert metrics.worst_group([empty[2]])[1].value is None
    costs = metrics.accuracy_parity([empty], [empty])
    assert costs[2] == Measure(None, metrics.NO_MEMBERS)
    assert metrics.privacy_cost_gap(costs, 0, 2) == Measure(None, "group 2: the group has no members")
    assert metrics.worst_pair(costs) == ((0, 1), Measure(0.0, "groups without members left out: 1"))
    assert metrics.worst_pair([costs[2], costs[0]]).groups is None
    for found in (
        metrics.demographic_parity_difference(PREDICTED, GROUPS, 3, 2),
        metrics.equalised_odds_difference(TARGETS, PREDICTED, GROUPS, 3, 2),
    ):
        assert found.value is not None
        assert found.note == "groups without members left out: 1"
    lonely = np.zeros(8, int)
    assert metrics.demographic_parity_difference(PREDICTED, lonely, 2, 2).value is None
    assert metrics.equalised_odds_difference(TARGETS, PREDICTED, lonely, 2, 2).value is None


def test_one_class_is_named():
    ones = np.ones(8, int)
    assert metrics.roc_auc(ones, np.arange(8.0)) == Measure(None, metrics.ONE_CLASS)
    assert metrics.equalised_odds_difference(ones, PREDICTED, GROUPS, 2, 2) == Measure(
        None, "group 0 has no record of class 0"
    )
    # A group that lacks the class has no share of true positives; to count it as 0 would invent a difference.
    targets = np.where(GROUPS == 1, 0, TARGETS)
    assert (
        metrics.equalised_odds_difference(targets, PREDICTED, GROUPS, 2, 2).note
        == "group 1 has no record outside class 0"
    )
    three = np.array([[0.1, 0.2, 0.7], [0.5, 0.2, 0.3], [0.2, 0.3, 0.5]])
    assert metrics.roc_auc(np.array([2, 0, 2]), three).note == "classes without records left out: 1"


def test_equal_predictions_are_named():
    same = np.ones(8, int)
    assert metrics.demographic_parity_difference(same, GROUPS, 2, 2) == Measure(0.0, metrics.ALL_EQUAL)
    assert metrics.equalised_odds_difference(TARGETS, same, GROUPS, 2, 2) == Measure(0.0, metrics.ALL_EQUAL)
    assert metrics.roc_auc(TARGETS, np.zeros((8, 2))) == Measure(0.5)


def test_scores_that_are_not_finite_are_named():
    scores = np.array([[0.0, 1], [math.nan, 1], [math.inf, 0], [2, 0]])
    assert metrics.predictions(scores).tolist() == [1, metrics.NO_PREDICTION, metrics.NO_PREDICTION, 0]
    targets = np.array([1, 1, 0, 0])
    assert metrics.roc_auc(targets, scores) == Measure(None, metrics.NOT_FINITE)
    right = metrics.accuracy_by_group(targets, metrics.predictions(scores), np.array([0, 0, 1, 1]), 2)
    assert right == measures(0.5, 0.5)  # such a record is never right
    losses = np.array([1.0, math.nan, 2, 4])
    assert metrics.mean_by_group(losses, np.array([0, 0, 1, 1]), 2) == [
        Measure(None, "a value is not finite"),
        Measure(3.0),
    ]


def test_no_records_are_named():
    none = np.array([], int)
    assert metrics.accuracy_by_group(none, none, none, 2) == [Measure(None, metrics.NO_MEMBERS)] * 2
    assert metrics.demographic_parity_difference(none, none, 2, 2).value is None
    assert metrics.equalised_odds_difference(none, none, none, 2, 2).value is None
    assert metrics.roc_auc(none, np.zeros((0, 2))).value is None


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: metrics.accuracy_by_group(TARGETS, PREDICTED[:3], GROUPS, 2), r"predicted \(3,\)"),
        (lambda: metrics.accuracy_by_group(TARGETS, PREDICTED, GROUPS, 1), r"groups.*0\.\.0"),
        (lambda: metrics.accuracy_by_group(TARGETS, PREDICTED, GROUPS - 1, 2), "groups"),
        (lambda: metrics.accuracy_by_group(TARGETS, PREDICTED * 0.5, GROUPS, 2), "class numbers"),
        (lambda: metrics.predictions(np.zeros(4)), "scores"),
        (lambda: metrics.roc_auc(TARGETS, np.zeros((3, 2))), "scores"),
        (lambda: metrics.accuracy_parity([], [measures(1)]), "plain=0"),
        (lambda: metrics.accuracy_parity([measures(1)], [measures(1, 2)]), "groups"),
        (lambda: metrics.privacy_cost_gap(measures(1, 2), 0, 2), r"groups=\(0, 2\)"),
    ],
)
def test_bad_arguments(call, match):
    with pytest.raises(BadArgument, match=match):
        call()
