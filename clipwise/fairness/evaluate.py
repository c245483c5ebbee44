"""What a trained model does for each group of some records: the figures that `clipwise train` writes to result.json.

They are exact functions of these records: compute them on public test records, or on protected ones under a name that
says so (`--unsafe-diagnostics`). `release.py` is the way for protected records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from clipwise.data.grouping import BY_CLASS
from clipwise.fairness import intervals, metrics
from clipwise.fairness.metrics import Array, Measure
from clipwise.loop.evaluation import EVALUATION_ROWS

if TYPE_CHECKING:
    from clipwise.data import Groups


class Answers(NamedTuple):
    """A model's answers to some records, row by row."""

    targets: Array
    scores: Array  # (records, classes)

    @property
    def predicted(self) -> Array:
        return metrics.predictions(self.scores)

    @property
    def losses(self) -> Array:
        """Cross-entropy of each record, whatever the model was trained with."""
        scores, targets = torch.from_numpy(self.scores), torch.from_numpy(self.targets)
        return F.cross_entropy(scores, targets, reduction="none").numpy()


def ask(model: nn.Module, data: Dataset, device: torch.device | None = None) -> Answers | None:
    """The model's scores for all records; None where its output is no row of class scores."""
    was_training = model.training
    model.eval()
    targets, scores = [], []
    with torch.no_grad():
        for inputs, some_targets, *_ in DataLoader(data, batch_size=EVALUATION_ROWS):
            output = model(inputs.to(device))
            if not isinstance(output, torch.Tensor) or output.dim() != 2 or some_targets.dim() != 1:
                model.train(was_training)
                return None
            targets.append(some_targets)
            scores.append(output.double().cpu())
    model.train(was_training)
    if not scores or scores[0].shape[1] < 2:
        return None
    return Answers(torch.cat(targets).numpy(), torch.cat(scores).numpy())


def judged(
    model: nn.Module, data: Dataset, groups: Callable[[Any], Tensor], device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Private, row by row: whether the model is right on a record, and the record's group."""
    was_training = model.training
    model.eval()
    right, group = [], []
    with torch.no_grad():
        for batch in DataLoader(data, batch_size=EVALUATION_ROWS):
            scores = model(batch[0].to(device)).cpu()
            right.append((scores.argmax(-1) == batch[1]) & scores.isfinite().all(-1))
            group.append(groups(batch).cpu())
    model.train(was_training)
    return torch.cat(right), torch.cat(group)


def figures_by_group(answers: Answers, groups: Mapping[str, tuple[tuple[str, ...], Array]]) -> dict[str, Any]:
    """Grouping -> its figures, ready for JSON. `groups` holds the groups' names, and each record's group."""
    return {name: _of_grouping(name, answers, names, numbers) for name, (names, numbers) in groups.items()}


def groups_of_test(groupings: Mapping[str, Groups]) -> dict[str, tuple[tuple[str, ...], Array]]:
    return {name: (g.names, g.test.numpy()) for name, g in groupings.items() if g.test is not None}


def groups_of_train(groupings: Mapping[str, Groups]) -> dict[str, tuple[tuple[str, ...], Array]]:
    return {name: (g.names, g.train.numpy()) for name, g in groupings.items()}


def _of_grouping(name: str, answers: Answers, names: tuple[str, ...], numbers: Array) -> dict[str, Any]:
    count, classes = len(names), answers.scores.shape[1]
    accuracies = metrics.accuracy_by_group(answers.targets, answers.predicted, numbers, count)
    losses = metrics.mean_by_group(answers.losses, numbers, count)
    sizes = np.bincount(numbers, minlength=count).tolist()
    worst, lowest = metrics.worst_group(accuracies)
    if name == BY_CLASS:  # a group holds one class alone: odds and rates of it have nothing to be compared with
        parity = odds = Measure(None, "the groups are the classes").to_dict()
    else:
        found = intervals.difference_intervals(answers.targets, answers.predicted[None], numbers, count, classes)
        parity = intervals.with_interval(
            metrics.demographic_parity_difference(answers.predicted, numbers, count, classes), found.parity
        )
        odds = intervals.with_interval(
            metrics.equalised_odds_difference(answers.targets, answers.predicted, numbers, count, classes), found.odds
        )
    return {
        "groups": [
            {
                "group": group,
                "records": size,
                "accuracy": accuracy.value,
                "loss": loss.value,
                **({"note": accuracy.note or loss.note} if accuracy.note or loss.note else {}),
            }
            for group, size, accuracy, loss in zip(names, sizes, accuracies, losses, strict=True)
        ],
        "worst_group": None if worst is None else names[worst],
        "worst_group_accuracy": lowest.to_dict(),
        "demographic_parity_difference": parity,
        "equalised_odds_difference": odds,
    }
