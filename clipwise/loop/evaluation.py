"""Figures of a model on a whole data set, and the check of its targets before training.

Exact functions of the records they are given: for public test records, and for `clipwise/fairness/release.py`, which
adds the noise.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from clipwise.losses import Loss
from clipwise.types import BadArgument

EVALUATION_ROWS = 1024  # test records at a time, to bound memory; figures do not depend on it


def accuracy(model: nn.Module, data: Dataset, device: torch.device | None = None) -> float:
    """Share of records whose largest output is the target's class."""
    was_training = model.training
    model.eval()
    right = total = 0
    with torch.no_grad():
        for inputs, targets in DataLoader(data, batch_size=EVALUATION_ROWS):
            predicted = model(inputs.to(device)).argmax(-1)
            right += int((predicted == targets.to(device)).sum())
            total += len(targets)
    model.train(was_training)
    return right / max(1, total)


def mean_loss(model: nn.Module, data: Dataset, loss: Loss, device: torch.device | None = None) -> float:
    """The mean loss of the records."""
    was_training = model.training
    model.eval()
    total, records = 0.0, 0
    with torch.no_grad():
        for inputs, targets in DataLoader(data, batch_size=EVALUATION_ROWS):
            total += float(loss.each(model(inputs.to(device)), targets.to(device)).double().sum())
            records += len(targets)
    model.train(was_training)
    return total / max(1, records)


def shape_of_output(model: nn.Module, inputs: Tensor) -> torch.Size:
    was_training = model.training
    model.eval()
    with torch.no_grad():
        shape: torch.Size = model(inputs.to(next(model.parameters()).device)).shape
    model.train(was_training)
    return shape


def check_class_targets(model: nn.Module, data: Dataset) -> int:
    """The number of classes. Targets are class numbers that the model has an output for. Checked on all records before training: an error in
    the middle of it would depend on which records were drawn. The message names the kind of problem, not the
    record."""
    first, *_ = next(iter(DataLoader(data, batch_size=1)))
    classes = shape_of_output(model, first)[-1]
    for _, targets, *_ in DataLoader(data, batch_size=EVALUATION_ROWS):
        if (
            not isinstance(targets, Tensor)
            or targets.is_floating_point()
            or targets.dtype == torch.bool
            or targets.dim() != 1
        ):
            kind = (
                f"{targets.dtype}, {targets.dim()} dimensions"
                if isinstance(targets, Tensor)
                else type(targets).__name__
            )
            raise BadArgument(
                f"train: targets are not whole class numbers, one a record ({kind}); give int64 numbers, or a loss of your own"
            )
        if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
            raise BadArgument(
                f"train: a target lies outside 0 ... {classes - 1}, the outputs of the model; number the classes from 0, or widen the last layer"
            )
    return classes
