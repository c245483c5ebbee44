"""Every option of a run filled in, from the data set's recipe and its number of records (a public figure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from clipwise.automatic import rule
from clipwise.automatic.choice import is_automatic
from clipwise.clipping import METHODS, method_options
from clipwise.data import DataSet, is_file
from clipwise.data.grouping import BY_CLASS, find_grouping
from clipwise.data.source import Recipe
from clipwise.data.text import in_full
from clipwise.loop.fit import rate_setting_method
from clipwise.loop.lr_schedules import make_lr_schedule, refuse_double_rate
from clipwise.losses import Loss, make_loss
from clipwise.models import get_architecture, weights_source
from clipwise.models.architecture import Architecture
from clipwise.optim import AdamWOSM
from clipwise.training.options import OptimizerName, TrainConfig
from clipwise.types import BadArgument

_EPSILON = 3.0  # where neither an epsilon nor a noise multiplier is named
# Adaptive optimizers divide by the size of the gradient, or of its noise, so that one rate serves most models.
_RATES = {"adam": 2e-3, "adamw": 2e-3, "rmsprop": 2e-3, "adam-wosm": 1e-3}


def resolve(asked: TrainConfig, dataset: DataSet) -> TrainConfig:
    """The options with nothing left open; what does not go together is refused."""
    recipe = dataset.recipe.chosen(asked.model)
    records = len(dataset.train)
    architecture = get_architecture(asked.model or recipe.model)
    automatic = is_automatic(asked.method)  # then what is not asked for is left to `fit`, which says what it found
    optimizer = _optimizer(asked, automatic)
    refuse_double_rate(make_lr_schedule(asked.lr_schedule), method=rate_setting_method(asked.method), optimizer=None)
    words = dataset.kind == "text" and not architecture.weights.encoder
    return asked.model_copy(
        update={
            "delta": _delta(asked, records),
            "expected_batch_size": _batch(asked, recipe, records, automatic),
            "data": str(Path(asked.data).resolve()) if is_file(asked.data) else asked.data,
            "loss": str(_loss(asked, architecture, dataset)),
            "vocabulary": in_full(asked.vocabulary, dataset.vocabulary_size or 0) if words else None,
            "model": architecture.name,
            "pretrained": weights_source(architecture.name, asked.pretrained),
            "freeze": asked.freeze or architecture.default_freeze,
            "method_options": _method_options(asked, dataset),
            "epsilon": _EPSILON if asked.epsilon is None and asked.noise_multiplier is None else asked.epsilon,
            "epochs": asked.epochs or (None if automatic else recipe.epochs),
            "lr": asked.lr or _rate(optimizer, recipe, automatic),
            "optimizer": optimizer,
            "momentum": 0.9 if optimizer == "sgd" and asked.momentum is None else asked.momentum,
            "average_weights": asked.average_weights
            if automatic or asked.average_weights is not None
            else recipe.average_weights,
        }
    )


def _optimizer(asked: TrainConfig, automatic: bool) -> OptimizerName | None:
    """The one that is asked for; of an automatic run without any, `fit` makes one."""
    if asked.optimizer is not None:
        return asked.optimizer
    if automatic and asked.momentum is not None:
        raise BadArgument(
            f"momentum={asked.momentum!r} means nothing to method={asked.method!r} without an optimizer; add --optimizer sgd, or leave it out"
        )
    return ("adam" if asked.weight_decay else None) if automatic else "sgd"


def _rate(optimizer: OptimizerName | None, recipe: Recipe, automatic: bool) -> float | None:
    if automatic and optimizer != "adam-wosm":
        return None  # found by the run
    return _RATES.get(str(optimizer), recipe.lr)


def _delta(asked: TrainConfig, records: int) -> float:
    if asked.size == "private":
        if asked.delta is None:
            raise BadArgument("size='private': the default of delta follows from the number of records; give delta")
        return asked.delta
    delta = asked.delta if asked.delta is not None else rule.delta_for(records)
    if delta >= 1 / records:
        raise BadArgument(
            f"delta={delta!r} is not below 1 / {records}, the number of records: publishing one record outright "
            f"would pass as private; give a smaller one, such as {0.1 / records:.0e}"
        )
    return delta


def _batch(asked: TrainConfig, recipe: Recipe, records: int, automatic: bool) -> int | None:
    if asked.expected_batch_size is None and asked.size == "private" and (is_file(asked.data) or automatic):
        raise BadArgument("size='private': the default of batch follows from the number of records; give batch")
    if asked.expected_batch_size is None and automatic:
        return None
    batch = int(asked.expected_batch_size or recipe.expected_batch_size)
    if asked.size == "private":
        return batch
    if batch > records:
        raise BadArgument(f"batch={batch!r} is above the number of records, {records}; give {records} or less")
    return batch


def _method_options(asked: TrainConfig, dataset: DataSet) -> dict[str, Any]:
    options = {option["name"]: option["default"] for option in method_options(asked.method)}
    options = {name: value for name, value in options.items() if value is not None} | asked.method_options
    if METHODS[asked.method].needs_groups:
        options["number_of_groups"] = _number_of_groups(asked, dataset)
    return options


def _number_of_groups(asked: TrainConfig, dataset: DataSet) -> int:
    """As many as `group_by` has: with fewer, the last ones would be treated as one group without a word."""
    number = len(find_grouping(dataset, asked.group_by).names)
    given = asked.method_options.get("number_of_groups", number)
    if given != number:
        raise BadArgument(
            f"number_of_groups={given!r}: group_by={asked.group_by!r} has {number} groups in {dataset.name}; leave it out"
        )
    return number


def _loss(asked: TrainConfig, architecture: Architecture, dataset: DataSet) -> Loss:
    """The loss, after refusing what does not go with a model that gives its input back, or with one that does not."""
    loss = make_loss(asked.loss or architecture.loss)
    numbers = architecture.reconstructs or dataset.numbers
    if loss.wants_classes == numbers:
        raise BadArgument(
            f"loss={str(loss)!r} does not go with model={architecture.name!r}, which gives "
            f"{'its input back: leave loss out' if numbers else 'classes: use cross-entropy or focal'}"
        )
    by_group = (asked.group_counts, asked.clipped_counts, asked.unsafe_diagnostics or None)
    if numbers and by_group != (None, None, None):
        raise BadArgument(
            f"group_counts={asked.group_counts!r}, clipped_counts={asked.clipped_counts!r}, "
            f"unsafe_diagnostics={asked.unsafe_diagnostics!r}: these count right answers or gradients by class, "
            f"and model={architecture.name!r} gives none; leave them out"
        )
    if architecture.reconstructs and asked.standardize is not None:
        raise BadArgument(
            f"standardize={asked.standardize!r}: model={architecture.name!r} is to give its input back, pixels from 0 to 1; leave it out"
        )
    if dataset.numbers and METHODS[asked.method].needs_groups and asked.group_by == BY_CLASS:
        raise BadArgument(f"method={asked.method!r} treats groups apart, and numbers have no classes: name --group-by")
    if asked.vocabulary and architecture.weights.encoder:
        raise BadArgument(
            f"vocabulary={asked.vocabulary!r}: model={architecture.name!r} brings its own tokeniser; leave it out"
        )
    if not dataset.numbers:
        loss.check_classes(dataset.classes)
    return loss


def optimizer_of(settings: TrainConfig) -> Callable[[Iterable[Parameter]], Optimizer]:
    """Makes the torch optimizer that the (resolved) options name."""

    def made(parameters: Iterable[Parameter]) -> Optimizer:
        rate = float(settings.lr or 0)  # 0: method auto sets it
        if settings.optimizer == "adam-wosm":
            return AdamWOSM(parameters, lr=rate)
        kind: Any = {
            "sgd": torch.optim.SGD,
            "adam": torch.optim.Adam,
            "adamw": torch.optim.AdamW,
            "rmsprop": torch.optim.RMSprop,
        }[str(settings.optimizer)]
        momentum = {} if settings.momentum is None else {"momentum": settings.momentum}
        return kind(parameters, lr=rate, weight_decay=settings.weight_decay, **momentum)

    return made
