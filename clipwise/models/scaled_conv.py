"""Convolutions with scaled weight standardisation, and their rule in the fast engine.

    w'_o = gain_o scale (w_o - mean w_o) / sqrt(var w_o + eps)        for each output channel o, scale = gamma / sqrt(fan in)

No record enters w', so nothing is mixed. With h = (w - mean) / sqrt(var + eps), n numbers a channel, and g'_i record i's
gradient of w' (an ordinary convolution's), the gradients of the parameters are linear images of g'_i:

    grad gain_o = scale <g'_o, h_o>
    grad w_o    = gain_o scale / sqrt(var_o + eps) * (g'_o - mean g'_o - h_o <g'_o, h_o> / n)

So norms and sums take the images of the records' gradients, which are formed a few records at a time where they are many.

References: Brock, De and Smith, "Characterizing signal propagation to close the performance gap in unnormalized ResNets"
(2021); names and constants as in timm, so that its checkpoints fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.models.padding import same_padded
from clipwise.norms.kernels.blocks import Unformed
from clipwise.norms.kernels.kernel import Call, Kernel, Part, Way
from clipwise.norms.layers import Tap, layer
from clipwise.norms.layers.conv import CONV
from clipwise.norms.layers.conv_layout import Geometry


class ScaledStdConv2d(nn.Conv2d):
    def __init__(
        self,
        before: int,
        width: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        gamma: float = 1.0,
        eps: float = 1e-5,
        gain: float = 1.0,
        same: bool = False,
    ):
        """`same`: pads as TensorFlow does, for DeepMind's weights."""
        super().__init__(before, width, kernel, stride, 0 if same else (kernel - 1) // 2, groups=groups)
        self.gain = nn.Parameter(torch.full((width, 1, 1, 1), gain))
        self.scale = gamma * self.weight[0].numel() ** -0.5
        self.eps, self.same = eps, same

    def standardised(self) -> Standardised:
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        variance = self.weight.var((1, 2, 3), unbiased=False, keepdim=True)
        deviation = (variance + self.eps).sqrt()
        return Standardised((self.weight - mean) / deviation, self.gain * self.scale, deviation, self.scale)

    def padded(self, x: Tensor) -> Tensor:
        return same_padded(x, self.kernel_size[0], self.stride[0]) if self.same else x

    def forward(self, x: Tensor) -> Tensor:
        weight = self.standardised().weight
        return F.conv2d(self.padded(x), weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Standardised(NamedTuple):
    h: Tensor  # the weight, of mean 0 and variance 1 in each channel
    factor: Tensor  # gain * scale
    deviation: Tensor
    scale: float

    @property
    def weight(self) -> Tensor:
        return self.h * self.factor

    def images(self, g: Tensor, roles: tuple[str, ...]) -> dict[str, Tensor]:
        """Gradients (..., channels, rest) of the standardised weight to those of the parameters, in the same shape."""
        h = self.h.flatten(1)
        g = g.flatten(-3)
        along = (g * h).sum(-1, keepdim=True)
        found = {}
        if "weight" in roles:
            slope = (self.factor / self.deviation).flatten(1)
            raw = slope * (g - g.mean(-1, keepdim=True) - h * (along / h.shape[1]))
            found["weight"] = raw.unflatten(-1, self.h.shape[1:])
        if "gain" in roles:
            found["gain"] = (self.scale * along).unflatten(-1, (1, 1, 1))
        return found


class _Config(NamedTuple):
    geometry: Geometry
    scale: float


class ScaledStdConvKernel(Kernel):
    """saved: the padded input; then h, factor and deviation, the same for all rows (expanded, not copied)."""

    spares = frozenset({"in blocks"})

    def _look(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> tuple[Tensor, Tensor, Standardised, Geometry]:
        config = cast(_Config, call.config)
        h, factor, deviation = (s[0] for s in saved[1:])
        return saved[0], b, Standardised(h, factor, deviation, config.scale), config.geometry

    def direct(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Tensor]:
        x, b, found, geometry = self._look(call, saved, b)
        grads = {"bias": b.flatten(2).sum(2)} if "bias" in call.params else {}
        if call.params.keys() - {"bias"}:
            inner = Call(CONV, {"weight": next(iter(call.params.values()))}, geometry)
            grads |= found.images(CONV.direct(inner, (x,), b)["weight"], tuple(call.params))
        return grads

    def candidates(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Way]:  # noqa: ARG002
        return {"direct": self.direct_part, "in blocks": self.in_blocks}

    def in_blocks(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        roles, (x, *same_for_all) = tuple(call.params), saved

        def form(memory: Sequence[Tensor], x: Tensor, b: Tensor) -> None:
            grads = self.direct(call, (x, *same_for_all), b)
            for into, role in zip(memory, roles, strict=True):
                into.copy_(grads[role])

        shapes = [call.params[role].shape for role in roles]
        return Unformed((x, b), shapes, form, lambda totals: dict(zip(roles, totals, strict=True)))


SCALED_STD_CONV = ScaledStdConvKernel()


@layer(ScaledStdConv2d)
def forward(module: ScaledStdConv2d, tap: Tap, x: Tensor) -> Tensor:
    with torch.no_grad():
        found = module.standardised()
    x = module.padded(x)
    padding = cast(tuple[int, ...], module.padding)
    geometry = Geometry(module.kernel_size, module.stride, padding, module.dilation, module.groups)
    bias = None if module.bias is None else module.bias.detach()
    out = F.conv2d(x, found.weight, bias, module.stride, padding, module.dilation, module.groups)
    params = {"weight": module.weight, "gain": module.gain, "bias": module.bias}
    same_for_all = (t.expand(x.shape[0], *t.shape) for t in found[:3])
    return tap(out, SCALED_STD_CONV, params, (x, *same_for_all), _Config(geometry, module.scale), rows_dim=0)
