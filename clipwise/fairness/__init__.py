"""Fairness under privacy: what each group pays, with intervals, from public records or by a paid-for release."""

from clipwise.fairness.gradients import GroupGradients, gradients_by_group
from clipwise.fairness.metrics import (
    Measure,
    accuracy_by_group,
    accuracy_parity,
    demographic_parity_difference,
    equalised_odds_difference,
    mean_by_group,
    predictions,
    privacy_cost_gap,
    roc_auc,
    worst_group,
    worst_pair,
)

__all__ = [
    "GroupGradients",
    "Measure",
    "accuracy_by_group",
    "accuracy_parity",
    "demographic_parity_difference",
    "equalised_odds_difference",
    "gradients_by_group",
    "mean_by_group",
    "predictions",
    "privacy_cost_gap",
    "roc_auc",
    "worst_group",
    "worst_pair",
]
