"""What can be known to fail is refused before the first run of a study starts: method, model, and the data itself.

Files of a built-in data set are checked against their sha256. A file of one's own is read, as a run would read it, so
that a missing file, records of the wrong shape or labels that are no whole numbers are said at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from clipwise import validate
from clipwise.clipping import make_method
from clipwise.data import find_checked, get_source, is_file, refuse_unless_images
from clipwise.data.source import DataSet, Source
from clipwise.lab.study.shared import check_share
from clipwise.lab.study.trial import Trial
from clipwise.models import MODELS, get_architecture, records_of
from clipwise.training.execute import load_asked
from clipwise.training.options import TrainConfig
from clipwise.training.resolve import resolve
from clipwise.training.tensorboard import require, require_tensorboard
from clipwise.types import BadArgument

_Read = dict[str, DataSet | Source]


def check_trials(trials: Iterable[Trial]) -> None:
    read: _Read = {}
    built: set[str] = set()
    for trial in trials:
        try:
            _check(trial.config, read, built)
            if trial.share is not None:
                check_share(trial)
        except BadArgument as error:
            raise BadArgument(f"variant {trial.variant!r}: {error}") from error


def _check(config: TrainConfig, read: _Read, built: set[str]) -> None:
    if config.epsilon != math.inf:
        make_method(config.method, **config.method_options)
    if config.model is not None:
        validate.choice("model", config.model, MODELS)
    if config.tensorboard:
        require_tensorboard()
    if config.log_to:
        require(config.log_to)
    key = repr((config.data, config.own, config.loss))
    if key not in read:
        if is_file(config.data):
            read[key] = load_asked(config)
        else:
            read[key] = source = get_source(config.data)
            find_checked(source)
    data = read[key]
    refuse_unless_images(data, config.standardize)
    if isinstance(data, DataSet):
        resolve(config, data)
    architecture = get_architecture(config.model or data.recipe.chosen(None).model)
    if f"{architecture.name} {key}" not in built and not architecture.weights.needed:
        with torch.random.fork_rng(devices=()), torch.device("meta"):
            architecture.build(records_of(data), None)  # refuses records that it does not fit; nothing is allocated
        built.add(f"{architecture.name} {key}")
