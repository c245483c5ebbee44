"""Figures by group of a finished run, for its result and its statement: on the test part, which is treated as public; on
training records only as released counts, or under a name that says it. With them, why: what clipping does to the gradients
of each group (gradients.py), for the grouping that was asked for."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from clipwise.data.grouping import groupings
from clipwise.fairness import evaluate
from clipwise.fairness.gradients import ROWS, gradients_by_group
from clipwise.fairness.intervals import roc_auc_interval, with_interval
from clipwise.fairness.metrics import roc_auc
from clipwise.fairness.release import GroupCounts
from clipwise.losses import make_loss

if TYPE_CHECKING:
    from clipwise.data import DataSet
    from clipwise.loop.fit import Fit
    from clipwise.training.options import TrainConfig


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
        area = roc_auc(answers.targets, answers.scores)
        figures["auc"] = with_interval(area, roc_auc_interval(answers.targets, answers.scores))
        figures["by_group"] = evaluate.figures_by_group(answers, evaluate.groups_of_test(every))
        file = io.BytesIO()
        numbers = {f"group {name}": groups for name, (_, groups) in evaluate.groups_of_test(every).items()}
        arrays = {"predicted": answers.predicted, "targets": answers.targets, **numbers}
        kept = {name: array.astype(np.int16) for name, array in arrays.items()}
        np.savez_compressed(file, scores=answers.scores.astype(np.float32), **kept)  # type: ignore[arg-type]
        predicted = file.getvalue()
        asked = every[settings.group_by]
        if fit.method is not None and asked.test is not None:
            figures["gradients"] = _gradients(settings, fit.model, test_part, fit, asked.test, asked.names)
        said.append("on the test part, which is treated as public")
    for key, counts in fit.released.items():
        figures[key], sentence = _released(settings.group_by, counts, every[settings.group_by].names)
        said.append(sentence)
    if settings.unsafe_diagnostics and (exact := evaluate.ask(network, dataset.train)) is not None:
        figures["unsafe_by_group"] = evaluate.figures_by_group(exact, evaluate.groups_of_train(every))
        if fit.method is not None:
            asked = every[settings.group_by]
            figures["unsafe_gradients"] = _gradients(settings, network, dataset.train, fit, asked.train, asked.names)
        said.append("**exact ones on the training records, at the user's request: not private**")
    return FiguresByGroup(figures, "; ".join(said) or "none were computed by Clipwise", predicted)


def _gradients(
    settings: TrainConfig, model: nn.Module, data: Any, fit: Fit, groups: Tensor, names: tuple[str, ...]
) -> dict[str, Any]:
    """Exact figures of these records, for the method at its last state."""
    if fit.method is None:
        raise RuntimeError("a run without privacy clips nothing")
    found = gradients_by_group(
        model,
        data,
        loss=make_loss(str(settings.loss)),
        groups=groups,
        number_of_groups=len(names),
        method=fit.method,
        state=fit.method_state,
        device=next(model.parameters()).device,
        rows=min(ROWS, settings.max_physical_batch or ROWS),
    )
    groups_found = [{"group": name, **one.to_dict()} for name, one in zip(names, found, strict=True)]
    return {"group_by": settings.group_by, "method": fit.method.name, "groups": groups_found}


def _released(group_by: str, counts: GroupCounts, names: tuple[str, ...]) -> tuple[dict[str, Any], str]:
    """For the result, and for the statement."""
    question = counts.question
    words = f"{question.yes} and {question.no}".replace("_", " ")
    entry = {"group_by": group_by, "noise_multiplier": counts.noise_multiplier, "groups": counts.to_list(names)}
    return entry, (
        f"on the training records, by {group_by}: one release of {2 * len(names)} counts ({words}), l2 bound 1, noise "
        f"multiplier {counts.noise_multiplier:g}, sample rate 1, charged after the last step"
    )
