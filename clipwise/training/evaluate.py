"""Figures of a trained model on records with labels: how good, how well calibrated, and for whom.

They are exact functions of these records, and cost no privacy of the records that were trained on, as long as these are not among
them. A run keeps no list of its records, so that whether some are cannot be known in general. What can be known: the path
of the file that was trained on, and by which rule (a hash of its content) each of its records was held out or not. Of that
file, only the held-out records are evaluated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from clipwise.data import is_file
from clipwise.data.columns import as_text
from clipwise.data.own import held_out_of
from clipwise.data.preprocessing import Amount
from clipwise.data.source import Array
from clipwise.data.table import Table
from clipwise.fairness.calibration import calibration
from clipwise.fairness.evaluate import Answers, figures_by_group
from clipwise.loop.evaluation import number_errors
from clipwise.proportion import wilson
from clipwise.training.trained import TrainedModel
from clipwise.types import BadArgument

_MOST_GROUPS = 100  # values of a column: one of ids is no grouping
_UNKNOWN = (
    "The figures are functions of these records: whose they are only you know. The run keeps no list of the records that it was trained "
    "on; if these are among them, the figures are not private."
)


def held_out_rows(trained: TrainedModel, file: Path, x: Any, labels: Any) -> tuple[Any, Any, str]:
    """The records to evaluate, and whose they are, in a sentence. Of the file that was trained on: those that were held out."""
    same = is_file(trained.settings.data) and Path(trained.settings.data).resolve() == file.resolve()
    if not is_file(trained.settings.data) and str(file) == trained.settings.data:
        return x, labels, "The test part of the data set, which is public."
    share = trained.preprocessing.held_out
    if not same:
        return x, labels, _UNKNOWN
    if share is None:  # a .npz with its own test part, which is what was read
        return x, labels, "The test part of the file that was trained on."
    if not share:
        return x, labels, "**These are the records that were trained on: the figures are exact, and not private.**"
    data = x if isinstance(x, Table) else (x, labels)
    kept = held_out_of(data, share)
    if not kept.any():
        raise BadArgument(f"{file} is the file that was trained on, and none of its records was held out; give another")
    if isinstance(x, Table):
        x = x.only(kept)
        return x, x.columns[str(trained.preprocessing.target.column)], _of_same_file(share)
    return x[kept], labels[kept], _of_same_file(share)


def _of_same_file(share: float) -> str:
    return (
        f"This is the file that was trained on: the figures are of the records that were held out (about {share:g} of it), by the "
        "same hash of each record; the others were left out."
    )


def evaluate(trained: TrainedModel, x: Any, labels: Any, group_by: str | None = None) -> dict[str, Any]:
    """Ready for JSON."""
    target = trained.preprocessing.target
    groups = None if group_by is None else _groups(x, group_by)
    if isinstance(target, Amount):
        right = np.asarray(_numbers(labels, target), float)
        predicted = trained.predict(x)
        found: dict[str, Any] = {"records": len(right), "errors": number_errors(right, predicted)}
        if groups is not None:
            names, places = groups
            found["errors_by_group"] = [
                {
                    "group": name,
                    "records": int((places == n).sum()),
                    **number_errors(right[places == n], predicted[places == n]),
                }
                for n, name in enumerate(names)
            ]
        return found
    targets = target.encode(labels)
    scores = trained.outputs(x).astype(np.float64)
    answers = Answers(targets, scores)
    right = answers.predicted == targets
    probabilities = torch.from_numpy(scores).softmax(1).numpy()
    found = {
        "records": len(targets),
        "accuracy": {"value": float(right.mean()), "interval": list(wilson(float(right.mean()), len(right)))},
        "calibration": calibration(targets, probabilities),
    }
    if groups is not None:
        found["by_group"] = figures_by_group(answers, {str(group_by): groups})
    return found


def _numbers(labels: Any, target: Amount) -> Array:
    target.encode(labels)  # refuses what is no number
    return np.array([float(value) for value in labels])


def _groups(x: Any, column: str) -> tuple[tuple[str, ...], Array]:
    if not isinstance(x, Table) or column not in x.columns:
        raise BadArgument(f"group_by={column!r} is no column of the file; name one that it has")
    values = [as_text(value) or "(empty)" for value in x.columns[column]]
    names = tuple(sorted(set(values)))
    if len(names) > _MOST_GROUPS:
        raise BadArgument(
            f"group_by={column!r} has {len(names):,} values, above {_MOST_GROUPS}; name a column of groups"
        )
    places = {name: place for place, name in enumerate(names)}
    return names, np.array([places[value] for value in values])
