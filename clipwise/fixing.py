"""`clipwise.fix(model)`: layers that mix examples, replaced by ones that do not."""

from __future__ import annotations

import math
from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

_Model = TypeVar("_Model", bound=nn.Module)
MOST_GROUPS = 32  # of channels, as GroupNorm was published with
FEWEST_FEATURES = 16  # in a group, after a linear layer


def fix(model: _Model) -> _Model:
    """The same model, changed in place: BatchNorm becomes GroupNorm, InstanceNorm stops keeping running statistics.

    Scale and shift of a BatchNorm are carried over; its running statistics are not (they belong to its training
    data). Call it before making the optimizer, since the parameters of replaced layers are new. A model that *is* a
    BatchNorm is returned replaced.
    """
    fixed: dict[nn.Module, nn.Module] = {}  # a module may stand in several places
    return _fixed(model, fixed)  # type: ignore[return-value]


def _fixed(module: nn.Module, fixed: dict[nn.Module, nn.Module]) -> nn.Module:
    if module in fixed:
        return fixed[module]
    if isinstance(module, _BatchNorm) and not isinstance(module, _InstanceNorm):
        fixed[module] = _replacement(module)
        return fixed[module]
    fixed[module] = module
    for name, child in module._modules.items():  # named_children() leaves out the second place of a module
        if child is not None:
            module._modules[name] = _fixed(child, fixed)
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        module.track_running_stats = False
        module.running_mean = module.running_var = module.num_batches_tracked = None
    return module


def _replacement(module: _BatchNorm) -> nn.Module:
    groups = math.gcd(MOST_GROUPS, module.num_features)
    if isinstance(module, nn.BatchNorm1d | nn.SyncBatchNorm | nn.LazyBatchNorm1d):
        # A record may have no places to take statistics over: of one number a group, nothing but zero would be left.
        while groups > 1 and module.num_features // groups < FEWEST_FEATURES:
            groups //= 2
    group_norm = nn.GroupNorm(groups, module.num_features, eps=module.eps, affine=module.affine)
    if module.affine:
        group_norm.weight.data.copy_(module.weight.data)
        group_norm.bias.data.copy_(module.bias.data)
        group_norm.to(module.weight)
        group_norm.weight.requires_grad_(module.weight.requires_grad)
        group_norm.bias.requires_grad_(module.bias.requires_grad)
    return group_norm.train(module.training)
