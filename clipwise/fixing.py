"""`clipwise.fix(model)`: layers that mix examples, replaced by ones that do not."""

from __future__ import annotations

import math
from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

_Model = TypeVar("_Model", bound=nn.Module)
MOST_GROUPS = 32


def fix(model: _Model) -> _Model:
    """The same model, changed in place: BatchNorm becomes GroupNorm, InstanceNorm stops keeping running statistics.

    Scale and shift of a BatchNorm are carried over; its running statistics are not (they belong to its training
    data). Call it before making the optimizer, since the parameters of replaced layers are new. A model that *is* a
    BatchNorm is returned replaced.
    """
    replaced = _replacement(model)
    if replaced is not None:
        return replaced  # type: ignore[return-value]
    for name, child in model.named_children():
        setattr(model, name, fix(child))
    if isinstance(model, _InstanceNorm) and model.track_running_stats:
        model.track_running_stats = False
        model.running_mean = model.running_var = model.num_batches_tracked = None
    return model


def _replacement(module: nn.Module) -> nn.Module | None:
    if not isinstance(module, _BatchNorm) or isinstance(module, _InstanceNorm):
        return None
    group_norm = nn.GroupNorm(
        math.gcd(MOST_GROUPS, module.num_features), module.num_features, eps=module.eps, affine=module.affine
    )
    if module.affine:
        group_norm.weight.data.copy_(module.weight.data)
        group_norm.bias.data.copy_(module.bias.data)
        group_norm.to(module.weight)
        group_norm.weight.requires_grad_(module.weight.requires_grad)
        group_norm.bias.requires_grad_(module.bias.requires_grad)
    return group_norm.train(module.training)
