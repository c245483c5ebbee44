"""Figures of a model on a whole data set, and the check of its targets before training.

Exact functions of the records they are given: for public test records, and for `clipwise/fairness/release.py`, which
adds the noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from clipwise.losses import Loss
from clipwise.modes import evaluating, tried
from clipwise.sampling import stacked
from clipwise.types import BadArgument

Array = np.ndarray[Any, np.dtype[Any]]
EVALUATION_ROWS = 1024  # test records at a time, to bound memory; figures do not depend on it


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def accuracy(model: nn.Module, data: Dataset, device: torch.device | None = None) -> float:
    """Share of records whose largest output is the target's class."""
    right = total = 0
    with evaluating(model):
        for inputs, targets in DataLoader(data, batch_size=EVALUATION_ROWS):
            predicted = model(inputs.to(device)).argmax(-1)
            right += int((predicted == targets.to(device)).sum())
            total += len(targets)
    return right / max(1, total)


def mean_loss(model: nn.Module, data: Dataset, loss: Loss, device: torch.device | None = None) -> float:
    """The mean loss of the records."""
    total, records = 0.0, 0
    with evaluating(model):
        for inputs, targets in DataLoader(data, batch_size=EVALUATION_ROWS):
            total += float(loss.each(model(inputs.to(device)), targets.to(device)).double().sum())
            records += len(targets)
    return total / max(1, records)


def outputs_of(model: nn.Module, inputs: Tensor, device: torch.device | None = None) -> Tensor:
    """The model's outputs for all rows, in parts of one size from the first row on: the same rows have the same bits again."""
    with evaluating(model):
        parts = [model(part.to(device)).cpu() for part in inputs.split(EVALUATION_ROWS)]
    return torch.cat(parts)


def number_errors(targets: Array, predicted: Array) -> dict[str, float | None]:
    """Mean absolute error, root of the mean squared error, and R^2 (None where all targets are equal)."""
    error = predicted - targets
    spread = float(((targets - targets.mean()) ** 2).sum())
    return {
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt((error**2).mean())),
        "r2": None if spread == 0 else 1 - float((error**2).sum()) / spread,
    }


def shape_of_output(model: nn.Module, inputs: Tensor) -> torch.Size:
    """Of a batch of the first record; where it does not go through the model, an error says so."""
    shape: torch.Size = tried(model, lambda: model(inputs.to(next(model.parameters()).device)).shape)
    return shape


def check_class_targets(model: nn.Module, data: Dataset) -> int:
    """The number of classes. Targets are class numbers that the model has an output for, one a record or one a place of its outputs. Checked on all records before training: an error in
    the middle of it would depend on which records were drawn. The message names the kind of problem, not the
    record."""
    first, *_ = next(iter(DataLoader(data, batch_size=1)))
    _, *shape = shape_of_output(model, first)
    classes, places = (shape or [1])[0], shape[1:]
    for _, targets, *_ in DataLoader(data, batch_size=EVALUATION_ROWS, collate_fn=stacked):
        if (
            not isinstance(targets, Tensor)
            or targets.is_floating_point()
            or targets.dtype == torch.bool
            or list(targets.shape[1:]) != places
        ):
            kind = (
                f"{targets.dtype}, {targets.dim()} dimensions"
                if isinstance(targets, Tensor)
                else type(targets).__name__
            )
            raise BadArgument(
                f"train: targets are not whole class numbers, one a record ({kind}); give int64 numbers, "
                "real numbers (y.float()) where a record has several labels or a value, or a loss of your own"
            )
        if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
            raise BadArgument(
                f"train: a target lies outside 0 ... {classes - 1}, the outputs of the model; number the classes from 0, or widen the last layer"
            )
    return classes
