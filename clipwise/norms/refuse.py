"""Layers that cannot be trained privately as they are, refused by name when a model is attached."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin

from clipwise.types import Unsupported


def refuse_mixing_layers(model: nn.Module) -> None:
    """Raise for layers whose output for one example depends on the others, or that keep raw statistics of the data."""
    for name, module in model.named_modules():
        if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():  # type: ignore[misc]
            raise Unsupported(
                f"layer {name!r} ({type(module).__name__}) has no shape yet; run the model once before attaching"
            )
        if isinstance(module, _BatchNorm) and not isinstance(module, _InstanceNorm):
            raise Unsupported(
                f"layer {name!r} ({type(module).__name__}) mixes the examples of a batch, so no example's influence can be bounded; "
                "replace it with clipwise.fix(model), which puts GroupNorm in its place, before making the optimizer"
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise Unsupported(
                f"layer {name!r} ({type(module).__name__}) rescales its rows in the forward pass, by which tokens were seen and without "
                "noise; make it with max_norm=None"
            )
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            raise Unsupported(
                f"layer {name!r} ({type(module).__name__}) keeps running statistics of private data outside the guarantee; "
                "make it with track_running_stats=False, or use clipwise.fix(model)"
            )
