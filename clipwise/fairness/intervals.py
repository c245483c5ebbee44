"""Bootstrap intervals: how far a figure might have come out otherwise, with other test records and other seeds.

Records are drawn again within each group, so that a small group stays as small as it is, and all models are compared on
the same draw; runs (seeds) are drawn again as well. A draw is a matrix of counts, and a figure of all draws is a product
of matrices: no loop over draws. Seeded, so that a table made twice is the same table.

What an interval is not: with three runs, drawing runs again understates their spread (three points cannot show it); the
training records are the same in all runs, so that nothing is said about other training data.

Reference: Efron, Tibshirani, "An introduction to the bootstrap" (1993), percentile intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clipwise import validate
from clipwise.fairness.metrics import NOT_FINITE, ONE_CLASS, Array, binary_columns
from clipwise.types import BadArgument

RESAMPLES = 1000
LEVEL = 0.95
_CELLS = 4_000_000  # of a matrix of draws held at once


class Interval(NamedTuple):
    """None and why, where there is none."""

    low: float | None
    high: float | None
    note: str = ""


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
    targets: Array, scores: Array, *, resamples: int = RESAMPLES, seed: int = 0, level: float = LEVEL
) -> Interval:
    """Of `roc_auc`, over test records drawn again within each class."""
    targets, scores = np.asarray(targets), np.asarray(scores, dtype=float)
    if not np.isfinite(scores).all():
        return Interval(None, None, NOT_FINITE)
    if len(np.unique(targets)) < 2:
        return Interval(None, None, ONE_CLASS)
    columns = {c: column for c, column in binary_columns(scores).items() if (targets == c).any()}
    rng, areas = np.random.default_rng(seed), np.zeros(resamples)
    for rows in _pieces(resamples, len(targets)):
        weights = np.empty((rows.stop - rows.start, len(targets)))
        for c in np.unique(targets):
            members = np.flatnonzero(targets == c)
            weights[:, members] = _draws(len(members), len(weights), rng)
        areas[rows] = np.mean([_areas(targets == c, column, weights) for c, column in columns.items()], axis=0)
    return percentile(areas, level)


def _areas(positive: Array, score: Array, weights: Array) -> Array:
    """The area under the ROC curve for each row of weights: the chance that a positive record scores above a negative
    one, ties counting half."""
    order = np.argsort(score, kind="stable")
    starts = np.flatnonzero(np.diff(score[order], prepend=-np.inf))  # of runs of equal scores
    up = np.add.reduceat(np.where(positive[order], weights[:, order], 0), starts, axis=1)
    down = np.add.reduceat(np.where(positive[order], 0, weights[:, order]), starts, axis=1)
    below = np.cumsum(down, axis=1) - down
    return (up * (below + down / 2)).sum(1) / (up.sum(1) * down.sum(1))


def _draws(size: int, resamples: int, rng: np.random.Generator) -> Array:
    """How often each of `size` things is drawn, in `resamples` draws of `size` with replacement."""
    places = rng.integers(0, size, (resamples, size)) + size * np.arange(resamples)[:, None]
    return np.bincount(places.ravel(), minlength=resamples * size).reshape(resamples, size)


def _pieces(resamples: int, width: int) -> Sequence[slice]:
    step = max(1, _CELLS // max(1, width))
    return [slice(start, min(start + step, resamples)) for start in range(0, resamples, step)]
