"""Fairness under privacy: what each group pays, with intervals, from public records or by a paid-for release."""

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
    "Measure",
    "accuracy_by_group",
    "accuracy_parity",
    "demographic_parity_difference",
    "equalised_odds_difference",
    "mean_by_group",
    "predictions",
    "privacy_cost_gap",
    "roc_auc",
    "worst_group",
    "worst_pair",
]
