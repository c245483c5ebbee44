"""Fairness figures of classifiers, from arrays: by group, between groups, and what privacy cost each group.

Every figure is a `Measure`: a value, or None with the reason. What cannot be computed (a group without members, a class
that a group never has, scores that are not finite) is named, and never counts as 0; a value that holds for a dull reason
(all predictions are equal) says so in its note.

Nothing here is private: whoever computes these figures on protected records must release them as `release.py` does.

References: accuracy parity and privacy cost gap, Bagdasaryan et al. 2019 and Esipova et al. 2023; demographic parity and
equalised odds, Hardt et al. 2016, as differences between the extreme groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from clipwise.types import BadArgument

Array = np.ndarray[Any, np.dtype[Any]]

NO_MEMBERS = "the group has no members"
NO_RECORDS = "there are no records"
ONE_CLASS = "all records are of one class"
NOT_FINITE = "a score is not finite"
ALL_EQUAL = "all predictions are equal"
NO_PREDICTION = -1  # of a record whose scores are not finite: no class, and never right


class Measure(NamedTuple):
    """A figure, or None and why there is none."""

    value: float | None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, **({"note": self.note} if self.note else {})}


class WorstPair(NamedTuple):
    groups: tuple[int, int] | None  # the one that privacy costs more comes first
    gap: Measure


def predictions(scores: Array) -> Array:
    """The class with the largest score, row by row; `NO_PREDICTION` where a score is not finite."""
    scores = np.asarray(scores)
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise BadArgument(f"scores: shape {scores.shape} is not (records, classes); give a column for each class")
    return np.where(np.isfinite(scores).all(1), np.where(np.isfinite(scores), scores, 0).argmax(1), NO_PREDICTION)


# By group


def mean_by_group(values: Array, groups: Array, number_of_groups: int) -> list[Measure]:
    """The mean of `values` in each group: accuracy for 0s and 1s, the mean loss for losses."""
    values, groups = _aligned(number_of_groups, values=values, groups=groups)
    sizes = np.bincount(groups, minlength=number_of_groups)
    sums = np.bincount(groups, weights=values.astype(float), minlength=number_of_groups)
    return [_mean(total, int(size)) for total, size in zip(sums, sizes, strict=True)]


def _mean(total: float, size: int) -> Measure:
    if size == 0:
        return Measure(None, NO_MEMBERS)
    return Measure(total / size) if math.isfinite(total) else Measure(None, "a value is not finite")


def accuracy_by_group(targets: Array, predicted: Array, groups: Array, number_of_groups: int) -> list[Measure]:
    targets, predicted, groups = _aligned(number_of_groups, targets=targets, predicted=predicted, groups=groups)
    return mean_by_group(targets == predicted, groups, number_of_groups)


def worst_group(accuracies: Sequence[Measure]) -> tuple[int | None, Measure]:
    """The group with the lowest accuracy, among those that have one."""
    known = [(m.value, place) for place, m in enumerate(accuracies) if m.value is not None]
    if not known:
        return None, Measure(None, "no group has an accuracy")
    value, place = min(known)
    return place, Measure(value, _left_out(len(accuracies) - len(known)))


# Between groups


def demographic_parity_difference(predicted: Array, groups: Array, number_of_groups: int, classes: int) -> Measure:
    """Largest difference between two groups in how often a class is predicted; the largest over the classes.

    For two classes this is the usual figure: both classes give the same one.
    """
    predicted, groups = _aligned(number_of_groups, predicted=predicted, groups=groups)
    if not len(predicted):
        return Measure(None, NO_RECORDS)
    chosen = [[predicted[groups == g] == c for g in range(number_of_groups)] for c in range(classes)]
    found = [_range(by_group) for by_group in chosen]
    notes = [_left_out(number_of_groups - len(np.unique(groups))), ALL_EQUAL if _all_equal(predicted) else ""]
    if any(f is None for f in found):
        return Measure(None, "fewer than two groups have members")
    return Measure(max(f for f in found if f is not None), _joined(notes))


def equalised_odds_difference(
    targets: Array, predicted: Array, groups: Array, number_of_groups: int, classes: int
) -> Measure:
    """Largest difference between two groups in the share of true or of false positives of a class, over the classes.

    None where a group that has members lacks a class, or has nothing else: it then has no such share.
    """
    targets, predicted, groups = _aligned(number_of_groups, targets=targets, predicted=predicted, groups=groups)
    if not len(targets):
        return Measure(None, NO_RECORDS)
    if len(np.unique(groups)) < 2:
        return Measure(None, "fewer than two groups have members")
    found = []
    for c in range(classes):
        for of_class in (True, False):
            rows = (targets == c) == of_class
            shares = [predicted[rows & (groups == g)] == c for g in range(number_of_groups)]
            for g, share in enumerate(shares):
                if not len(share) and (groups == g).any():
                    return Measure(None, f"group {g} has no record {'of' if of_class else 'outside'} class {c}")
            found.append(_range(shares))
    notes = [_left_out(number_of_groups - len(np.unique(groups))), ALL_EQUAL if _all_equal(predicted) else ""]
    return Measure(max(f for f in found if f is not None), _joined(notes))


def roc_auc(targets: Array, scores: Array) -> Measure:
    """Area under the ROC curve; for more than two classes the mean of one against the rest, over the classes that have
    records. `scores` has a column for each class, or is the score of class 1."""
    targets, scores = np.asarray(targets), np.asarray(scores, dtype=float)
    if len(targets) != len(scores):
        raise BadArgument(f"scores: {len(scores)} rows for {len(targets)} records; give one for each")
    if not np.isfinite(scores).all():
        return Measure(None, NOT_FINITE)
    if not len(targets):
        return Measure(None, NO_RECORDS)
    if len(np.unique(targets)) < 2:
        return Measure(None, ONE_CLASS)
    columns = binary_columns(scores)
    known = [c for c in columns if (targets == c).sum() > 0]
    value = float(np.mean([_area(targets == c, columns[c]) for c in known]))
    return Measure(value, _left_out(len(columns) - len(known), "classes without records") if len(columns) > 1 else "")


def _area(of_class: Array, scores: Array) -> float:
    """The share of pairs, one of the class and one not, that the scores order rightly, equal ones by half: by ranks, which
    equal scores share. scikit-learn has the same number, and is a second of every run to import."""
    _, place, equal = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(equal) - (equal - 1) / 2)[place]
    ones = int(of_class.sum())
    return float((ranks[of_class].sum() - ones * (ones + 1) / 2) / (ones * (len(scores) - ones)))


def binary_columns(scores: Array) -> dict[int, Array]:
    """Class -> its score against the rest. Of two classes the difference of their scores, which orders records as softmax
    would; the other class would say the same."""
    if scores.ndim == 1:
        return {1: scores}
    if scores.shape[1] == 2:
        return {1: scores[:, 1] - scores[:, 0]}
    return {c: scores[:, c] for c in range(scores.shape[1])}


# What privacy costs


def accuracy_parity(plain: Sequence[Sequence[Measure]], private: Sequence[Sequence[Measure]]) -> list[Measure]:
    """pi_m for each group m: the accuracy of models without privacy minus that of private ones, each a mean over runs.

    Both arguments hold, for each run, the accuracies by group on the same test records.
    """
    sizes = {len(run) for run in (*plain, *private)}
    if not plain or not private or len(sizes) != 1:
        raise BadArgument(
            f"plain={len(plain)} runs, private={len(private)} runs with {sorted(sizes)} groups: give at least one of each, "
            "with the same groups"
        )
    costs = []
    for of_plain, of_private in zip(zip(*plain, strict=True), zip(*private, strict=True), strict=True):
        gap = next((m.note for m in (*of_plain, *of_private) if m.value is None), None)
        costs.append(Measure(None, gap) if gap else Measure(_average(of_plain) - _average(of_private)))
    return costs


def _average(measures: Iterable[Measure]) -> float:
    return float(np.mean([m.value for m in measures]))


def privacy_cost_gap(costs: Sequence[Measure], a: int, b: int) -> Measure:
    """|pi_a - pi_b|: how much more privacy costs one group than the other."""
    for group in (a, b):
        if not 0 <= group < len(costs):
            raise BadArgument(f"groups=({a}, {b}): {group} is no group; give numbers from 0 to {len(costs) - 1}")
        if costs[group].value is None:
            return Measure(None, f"group {group}: {costs[group].note}")
    return Measure(abs(float(costs[a].value or 0) - float(costs[b].value or 0)))


def worst_pair(costs: Sequence[Measure]) -> WorstPair:
    """The two groups between which privacy makes the largest difference."""
    known = [(float(m.value), g) for g, m in enumerate(costs) if m.value is not None]
    if len(known) < 2:
        return WorstPair(None, Measure(None, "fewer than two groups have a figure"))
    (least, cheap), (most, dear) = min(known), max(known, key=lambda pair: (pair[0], -pair[1]))
    if dear == cheap:  # all costs are equal: the first two stand for any
        (_, dear), (_, cheap) = known[:2]
    return WorstPair((dear, cheap), Measure(most - least, _left_out(len(costs) - len(known))))


# Checks and words


def _aligned(number_of_groups: int, **arrays: Any) -> tuple[Array, ...]:
    """The arguments as arrays of one length, with groups and predictions as whole numbers in range."""
    made = {name: np.asarray(value) for name, value in arrays.items()}
    if any(array.ndim != 1 for array in made.values()) or len({len(array) for array in made.values()}) != 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in made.items())
        raise BadArgument(f"{shapes}: give one value a record in each, for the same records")
    groups = made["groups"]
    if len(groups) and (groups.dtype.kind not in "iu" or groups.min() < 0 or groups.max() >= number_of_groups):
        raise BadArgument(
            f"groups: numbers of type {groups.dtype} outside 0..{number_of_groups - 1}, or not whole; "
            f"number the {number_of_groups} groups from 0"
        )
    for array in (made[name] for name in ("targets", "predicted") if name in made):
        if len(array) and array.dtype.kind not in "iub":
            raise BadArgument(f"targets or predicted: {array.dtype} are no class numbers; give whole numbers")
    return tuple(made.values())


def _range(by_group: Sequence[Array]) -> float | None:
    """Largest share minus smallest, over the groups with members."""
    shares = [float(np.mean(chosen)) for chosen in by_group if len(chosen)]
    return max(shares) - min(shares) if len(shares) > 1 else None


def _all_equal(predicted: Array) -> bool:
    return len(np.unique(predicted)) == 1


def _left_out(number: int, what: str = "groups without members") -> str:
    return f"{what} left out: {number}" if number else ""


def _joined(notes: Iterable[str]) -> str:
    return "; ".join(note for note in notes if note)
