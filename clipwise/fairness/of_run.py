"""Figures by group of a finished run, for its result and its statement: on the test part, which is treated as public; on
training records only as released counts, or under a name that says it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import nn
from torch.utils.data import TensorDataset

from clipwise.fairness import evaluate
from clipwise.fairness.grouping import groupings
from clipwise.fairness.metrics import roc_auc

if TYPE_CHECKING:
    from clipwise.config import TrainConfig
    from clipwise.data import DataSet
    from clipwise.train import Fit


class FiguresByGroup(NamedTuple):
    figures: dict[str, Any]  # for the result
    said: str  # for the statement: where they come from
    predicted: bytes | None  # predictions.npz, of the test part


def figures_of_run(
    settings: TrainConfig, dataset: DataSet, network: nn.Module, fit: Fit, test_part: TensorDataset | None
) -> FiguresByGroup:
    every = groupings(dataset, settings.group_by)
    figures: dict[str, Any] = {}
    said, predicted = [], None
    answers = None if test_part is None or fit.accuracy is None else evaluate.ask(fit.model, test_part)
    if answers is not None:
        figures["auc"] = roc_auc(answers.targets, answers.scores).to_dict()
        figures["by_group"] = evaluate.figures_by_group(answers, evaluate.groups_of_test(every))
        file = io.BytesIO()
        numbers = {f"group {name}": groups for name, (_, groups) in evaluate.groups_of_test(every).items()}
        arrays = {"predicted": answers.predicted, "targets": answers.targets, **numbers}
        np.savez(file, **{name: array.astype(np.int16) for name, array in arrays.items()})  # type: ignore[arg-type]
        predicted = file.getvalue()
        said.append("on the test part, which is treated as public")
    if fit.group_counts is not None:
        names = every[settings.group_by].names
        figures["group_counts"] = {
            "group_by": settings.group_by,
            "noise_multiplier": fit.group_counts.noise_multiplier,
            "groups": fit.group_counts.to_list(names),
        }
        said.append(
            f"on the training records, by {settings.group_by}: one release of {2 * len(names)} counts (right and wrong), l2 "
            f"bound 1, noise multiplier {fit.group_counts.noise_multiplier:g}, sample rate 1, charged as the last of the steps"
        )
    if settings.unsafe_diagnostics and (exact := evaluate.ask(network, dataset.train)) is not None:
        figures["unsafe_by_group"] = evaluate.figures_by_group(exact, evaluate.groups_of_train(every))
        said.append("**exact ones on the training records, at the user's request: not private**")
    return FiguresByGroup(figures, "; ".join(said) or "none were computed by Clipwise", predicted)
