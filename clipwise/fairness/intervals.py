"""Intervals by the bootstrap: how far a figure might have come out otherwise, with other test records and other seeds.

Records are drawn again within each group, so that a small group stays as small as it is, and all models are compared on
the same draw; runs (seeds) are drawn again as well. A draw is a matrix of counts, and a figure of all draws is a product
of matrices: no loop over draws. Seeded, so that a table made twice is the same table.

What an interval is not: with three runs, drawing runs again understates their spread (three points cannot show it); the
training records are the same in all runs, so that nothing is said about other training data.

Reference: Efron, Tibshirani, "An introduction to the bootstrap" (1993), percentile intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from clipwise import validate
from clipwise.fairness.metrics import NO_RECORDS, NOT_FINITE, ONE_CLASS, Array, Measure, binary_columns
from clipwise.types import BadArgument

RESAMPLES = 1000  # of the bootstrap, as usual for percentile intervals
AUC_RESAMPLES = 200  # each sorts all records once a class
LEVEL = 0.95  # chance that an interval covers
_CELLS = 4_000_000  # of a matrix of draws held at once


class Interval(NamedTuple):
    """None and why, where there is none."""

    low: float | None
    high: float | None
    note: str = ""

    def to_list(self) -> list[float] | None:
        return None if self.low is None or self.high is None else [self.low, self.high]


class Resampled(NamedTuple):
    """Bootstrap draws, one a row."""

    plain: Array  # (draws, groups): mean accuracy of the runs without privacy; NaN for a group without members
    private: Array

    @property
    def costs(self) -> Array:
        return self.plain - self.private


def resample(
    plain: Array, private: Array, groups: Array, number_of_groups: int, *, resamples: int = RESAMPLES, seed: int = 0
) -> Resampled:
    """Draws of the accuracies by group. `plain` and `private` are (runs, records): whether a run is right on a test
    record."""
    plain, private, groups = (np.asarray(a) for a in (plain, private, groups))
    validate.count("resamples", resamples)
    if plain.ndim != 2 or private.ndim != 2 or not len(plain) or not len(private):
        raise BadArgument(f"plain {plain.shape}, private {private.shape}: give (runs, records), with one run or more")
    if {plain.shape[1], private.shape[1]} != {len(groups)}:
        raise BadArgument(
            f"groups: {len(groups)} for {plain.shape[1]} and {private.shape[1]} records; give one for each"
        )
    rng = np.random.default_rng(seed)
    runs = [_draws(len(a), resamples, rng) / len(a) for a in (plain, private)]
    found = [np.full((resamples, number_of_groups), np.nan) for _ in range(2)]
    for g in range(number_of_groups):
        members = np.flatnonzero(groups == g)
        if not len(members):
            continue
        right = np.concatenate([plain[:, members], private[:, members]]).astype(float)
        for rows in _pieces(resamples, len(members)):
            accuracies = _draws(len(members), rows.stop - rows.start, rng) @ right.T / len(members)
            for place, part in enumerate((accuracies[:, : len(plain)], accuracies[:, len(plain) :])):
                found[place][rows, g] = (part * runs[place][rows]).sum(1)
    return Resampled(*found)


def percentile(values: Array, level: float = LEVEL) -> Interval:
    if not len(values) or not np.isfinite(values).all():
        return Interval(None, None, "a draw has no figure")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def gap_interval(costs: Array, a: int, b: int, level: float = LEVEL) -> Interval:
    """Of |pi_a - pi_b|, from draws of the costs. The difference is bounded with its sign first: the absolute values of
    draws around 0 would never come near 0."""
    signed = percentile(costs[:, a] - costs[:, b], level)
    if signed.low is None or signed.high is None:
        return signed
    ends = sorted((abs(signed.low), abs(signed.high)))
    return Interval(0.0 if signed.low <= 0 <= signed.high else ends[0], ends[1])


def worst_gap_interval(costs: Array, level: float = LEVEL) -> Interval:
    """Of the largest difference between any two groups that have members. The largest of many noisy differences comes out
    too large, in the draws as in the figure itself."""
    known = costs[:, ~np.isnan(costs).all(0)]
    if known.shape[1] < 2:
        return Interval(None, None, "fewer than two groups have a figure")
    return percentile(known.max(1) - known.min(1), level)


def roc_auc_interval(
    targets: Array, scores: Array, *, resamples: int = AUC_RESAMPLES, seed: int = 0, level: float = LEVEL
) -> Interval:
    """Of `roc_auc`, over test records drawn again within each class. Scores of several runs, (runs, records, classes), give
    the interval of their mean: the same records for all runs, and runs drawn again as well."""
    targets, scores = np.asarray(targets), np.asarray(scores, dtype=float)
    validate.count("resamples", resamples)
    each = scores if scores.ndim == 3 else scores[None]
    if not len(each) or each.shape[1] != len(targets):
        raise BadArgument(
            f"scores: shape {scores.shape} for {len(targets)} records; give one row for each, of one run or more"
        )
    if not np.isfinite(scores).all():
        return Interval(None, None, NOT_FINITE)
    if not len(targets):
        return Interval(None, None, NO_RECORDS)
    if len(np.unique(targets)) < 2:
        return Interval(None, None, ONE_CLASS)
    rng, areas = np.random.default_rng(seed), np.zeros((len(each), resamples))
    for rows in _pieces(resamples, len(targets)):
        weights = np.empty((rows.stop - rows.start, len(targets)), np.float32)  # counts: exact up to 16 million records
        for c in np.unique(targets):
            members = np.flatnonzero(targets == c)
            weights[:, members] = _draws(len(members), len(weights), rng)
        for run, own in enumerate(each):
            columns = {c: column for c, column in binary_columns(own).items() if (targets == c).any()}
            areas[run, rows] = np.mean([_areas(targets == c, column, weights) for c, column in columns.items()], axis=0)
    return percentile((areas.T * _draws(len(each), resamples, rng) / len(each)).sum(1), level)


class Differences(NamedTuple):
    """Intervals of the two differences between groups."""

    parity: Interval
    odds: Interval


def difference_intervals(
    targets: Array,
    predicted: Array,
    groups: Array,
    number_of_groups: int,
    classes: int,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> Differences:
    """Of `demographic_parity_difference` and `equalised_odds_difference`, as means over runs; `predicted` is (runs, records).
    Records are drawn again within each group and class, the same for all runs; runs are drawn again as well. Where the
    figure itself does not exist (see metrics.py) there is no interval."""
    targets, predicted, groups = (np.asarray(a) for a in (targets, predicted, groups))
    validate.count("resamples", resamples)
    if predicted.ndim != 2 or not len(predicted) or not predicted.shape[1] == len(targets) == len(groups):
        raise BadArgument(
            f"predicted {predicted.shape} for {len(targets)} records; give (runs, records), one run or more"
        )
    rng, runs = np.random.default_rng(seed), len(predicted)
    sizes = np.zeros((number_of_groups, classes))
    chosen = np.zeros((resamples, runs, number_of_groups, classes, classes))  # draw, run, group, target, prediction
    for g in range(number_of_groups):
        for t in range(classes):
            members = np.flatnonzero((groups == g) & (targets == t))
            sizes[g, t] = len(members)
            if not len(members):
                continue
            hits = (predicted[:, members, None] == np.arange(classes)).transpose(1, 0, 2).reshape(len(members), -1)
            for rows in _pieces(resamples, len(members)):
                drawn = _draws(len(members), rows.stop - rows.start, rng) @ hits.astype(float)
                chosen[rows, :, g, t] = drawn.reshape(-1, runs, classes)
    present = sizes.sum(1) > 0
    chosen, sizes = chosen[:, :, present], sizes[present]
    if len(sizes) < 2:
        nothing = Interval(None, None, "fewer than two groups have members")
        return Differences(nothing, nothing)
    weights = _draws(runs, resamples, rng) / runs

    def of(shares: Array) -> Array:
        """(draw, run, group, figure) -> a draw's figure: the largest range over the groups, averaged over its runs."""
        return ((shares.max(2) - shares.min(2)).max(-1) * weights).sum(1)

    parity = percentile(of(chosen.sum(3) / sizes.sum(1)[:, None]), level)
    others = sizes.sum(1)[:, None] - sizes
    if not (sizes.all() and others.all()):
        return Differences(parity, Interval(None, None, "a group lacks a class, or has nothing else"))
    right = np.diagonal(chosen, axis1=3, axis2=4)
    true, false = right / sizes, (chosen.sum(3) - right) / others
    return Differences(parity, percentile(of(np.concatenate([true, false], axis=-1)), level))


def with_interval(measure: Measure, interval: Interval) -> dict[str, Any]:
    """For JSON: a figure with its interval, where both exist."""
    known = measure.value is not None and interval.low is not None
    return {**measure.to_dict(), **({"interval": interval.to_list()} if known else {})}


def _areas(positive: Array, score: Array, weights: Array) -> Array:
    """The area under the ROC curve for each row of weights: the chance that a positive record scores above a negative
    one, ties counting half."""
    order = np.argsort(score, kind="stable")
    sorted_scores, drawn = score[order], weights[:, order]
    below = np.zeros((len(weights), len(score) + 1), weights.dtype)  # weight of the negatives before each place
    np.cumsum(np.where(positive[order], 0, drawn), axis=1, out=below[:, 1:])
    own = np.flatnonzero(positive[order])
    first, last = (np.searchsorted(sorted_scores, sorted_scores[own], side) for side in ("left", "right"))
    up = drawn[:, own].astype(float)
    return (up * (below[:, first].astype(float) + below[:, last]) / 2).sum(1) / (up.sum(1) * below[:, -1])


def _draws(size: int, resamples: int, rng: np.random.Generator) -> Array:
    """How often each of `size` things is drawn, in `resamples` draws of `size` with replacement."""
    places = rng.integers(0, size, (resamples, size)) + size * np.arange(resamples)[:, None]
    return np.bincount(places.ravel(), minlength=resamples * size).reshape(resamples, size)


def _pieces(resamples: int, width: int) -> Sequence[slice]:
    step = max(1, _CELLS // max(1, width))
    return [slice(start, min(start + step, resamples)) for start in range(0, resamples, step)]
