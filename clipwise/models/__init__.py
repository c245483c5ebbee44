"""Models, one architecture a file; the registry below is all that the rest of the house sees of them."""

from __future__ import annotations

import torch
from torch import nn

from clipwise import validate
from clipwise.data.source import DataSet, Source
from clipwise.models.architecture import Architecture
from clipwise.models.cnn import CNN
from clipwise.models.linear import LINEAR
from clipwise.models.mlp import MLP
from clipwise.types import BadArgument

MODELS: dict[str, Architecture] = {architecture.name: architecture for architecture in (LINEAR, MLP, CNN)}


def build_model(name: str, dataset: DataSet | Source, seed: int | None = None) -> nn.Module:
    """The model for a data set's shape and classes, freshly initialised; the global random state is left alone."""
    architecture = MODELS[validate.choice("model", name, MODELS)]
    if dataset.kind not in architecture.kinds:
        fitting = [other.name for other in MODELS.values() if dataset.kind in other.kinds]
        raise BadArgument(
            f"model={name!r} is for data of the kind {' or '.join(architecture.kinds)}, and this is {dataset.kind}; "
            f"use {', '.join(fitting) if fitting else 'a model of your own with clipwise.fit: none here reads it yet'}"
        )
    with torch.random.fork_rng(devices=()):
        if seed is None:
            torch.seed()
        else:
            torch.manual_seed(seed)
        return architecture.build(dataset.shape, dataset.classes)


def parameter_count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


__all__ = ["MODELS", "Architecture", "build_model", "parameter_count"]
