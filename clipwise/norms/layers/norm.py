"""Layer, group, instance, root-mean-square and (in eval mode) batch normalisation: y = xhat * weight + bias.

Per-example gradients are small, so they are formed: sum of b * xhat and sum of b over the places that share a weight.

Group, instance and batch norm do it at the cost of the plain layer: give every example its own copy of weight and bias, and
fold rows and channels together, (rows, C, *) -> (1, rows * C, *) with rows * groups groups. It is the same function,
and the native backward pass, which makes the gradients of x, weight and bias in one sweep, makes one gradient a row.
For layer norm the weight is shared along the other axis; there mean and 1/std of the forward pass are used again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.norms.kernels.kernel import PER_EXAMPLE, Call, Direct, Kernel, Part, Way
from clipwise.norms.layers.registry import Tap, layer
from clipwise.types import Unsupported

# Numbers of a row, and of all rows, from which on a call for each row pays: 32 rows of 128 x 256 took 0.57 ms so against 0.50 (one
# thread), 32 of 512 x 256 2.0 against 7.0, where what lies between no longer fits into the cache.
LARGE_ROW, MANY_NUMBERS = 2**14, 2**21


class LayerNormKernel(Kernel):
    """saved: x (rows, ..., *shape), mean and 1/std (rows, ..., 1...). config: how many dimensions `shape` has."""

    def direct(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Tensor]:
        x, mean, rstd = saved
        grads = {}
        if "weight" in call.params:
            grads["weight"] = _sum_places((x - mean).mul_(rstd).mul_(b), call.params["weight"])
        if "bias" in call.params:
            grads["bias"] = _sum_places(b, call.params["bias"])
        return grads

    def by_row(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        """The native backward pass once for each row: one sweep and no temporary, where rows are large."""
        shape = list(next(iter(call.params.values())).shape)
        wanted = [False, "weight" in call.params, "bias" in call.params]
        unit = b.new_ones(shape)
        each = [
            torch.ops.aten.native_layer_norm_backward(b_i, x_i, shape, mean_i, rstd_i, unit, unit, wanted)
            for x_i, mean_i, rstd_i, b_i in zip(*saved, b, strict=True)
        ]
        return Direct({role: torch.stack([g[place] for g in each]) for place, role in _ROLES if role in call.params})

    def candidates(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Way]:  # noqa: ARG002
        if (
            b.numel() < MANY_NUMBERS
            or b[0].numel() < LARGE_ROW
            or b.dim() - 1 == next(iter(call.params.values())).dim()
        ):
            return {"direct": self.direct_part}
        return {"direct by row": self.by_row, "direct": self.direct_part}


_ROLES = ((1, "weight"), (2, "bias"))


class RMSNormKernel(Kernel):
    """saved: x (rows, ..., *shape). config: eps."""

    def direct(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Tensor]:
        x, weight = saved[0], call.params["weight"]
        normal = F.rms_norm(x, weight.shape, None, call.config)  # type: ignore[arg-type]
        return {"weight": _sum_places(normal.mul_(b), weight)}


def _sum_places(t: Tensor, like: Tensor) -> Tensor:
    """(rows, ..., *shape) -> (rows, *shape)."""
    between = tuple(range(1, t.dim() - like.dim()))
    return t.sum(between) if between else t


LAYER_NORM, RMS_NORM = LayerNormKernel(), RMSNormKernel()


@layer(nn.LayerNorm)
def layer_norm(module: nn.LayerNorm, tap: Tap, input: Tensor) -> Tensor:
    bias = None if module.bias is None else module.bias.detach()
    shape = list(module.normalized_shape)
    out, mean, rstd = torch.native_layer_norm(input, shape, module.weight.detach(), bias, module.eps)
    return tap(out, LAYER_NORM, {"weight": module.weight, "bias": module.bias}, (input, mean, rstd))


@layer(nn.RMSNorm)
def rms_norm(module: nn.RMSNorm, tap: Tap, x: Tensor) -> Tensor:
    out = F.rms_norm(x, module.normalized_shape, module.weight.detach(), module.eps)
    return tap(out, RMS_NORM, {"weight": module.weight}, (x,), module.eps)


def _folded(
    module: nn.Module, tap: Tap, x: Tensor, normalise: Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
) -> Tensor:
    rows, channels = x.shape[:2]

    def own(role: str) -> Tensor | None:
        p = module._parameters[role]
        if p is None:
            return None
        copies = p.detach().expand(rows, channels).clone()
        return tap(copies, PER_EXAMPLE, {role: p}, (), rows_dim=0).flatten()

    # A view that autograd does not know as one: an in-place activation may follow without its bookkeeping for views.
    folded = normalise(x.reshape(1, rows * channels, *x.shape[2:]), own("weight"), own("bias"))
    unfolded: Tensor = torch.ops.aten._unsafe_view(folded, x.shape)
    return unfolded


@layer(nn.GroupNorm)
def group_norm(module: nn.GroupNorm, tap: Tap, input: Tensor) -> Tensor:
    groups = module.num_groups * input.shape[0]
    return _folded(module, tap, input, lambda x, w, b: torch.group_norm(x, groups, w, b, module.eps))


@layer(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def instance_norm(module: nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d, tap: Tap, input: Tensor) -> Tensor:
    if input.dim() == module._get_no_batch_dim():
        raise Unsupported(f"{type(module).__name__} was given one example without a batch dimension; give it a batch")
    return _folded(module, tap, input, lambda x, w, b: F.instance_norm(x, weight=w, bias=b, eps=module.eps))


@layer(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d, tap: Tap, input: Tensor) -> Tensor:
    """In eval mode only (refuse.py sees to it): by running statistics that stay as they are, each row is normalised alone."""
    mean, var = module.running_mean, module.running_var
    if module.training or mean is None or var is None:
        raise Unsupported(f"{type(module).__name__} mixes the examples of a batch in train mode; call its .eval()")
    rows = input.shape[0]
    return _folded(
        module, tap, input, lambda x, w, b: F.batch_norm(x, mean.repeat(rows), var.repeat(rows), w, b, eps=module.eps)
    )
