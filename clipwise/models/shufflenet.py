"""A small ShuffleNet (units of version 2, Ma et al. 2018) with GroupNorm of 4 groups and SELU, for thermal images.

DP-SGD-Global-Adapt-V2 (paper 001): a convolution of 16 channels, then ShuffleNet units with 32 and 64, pools, one linear
layer; its model for thinwall. The paper gives no more than that; a unit that halves the image and one that keeps it, for
each width, and a mean over the places are our reading.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from clipwise.models.architecture import IMAGE, Architecture, Records, refuse_small

LEAST = 32  # pixels
GROUPS = 4  # of channels, for GroupNorm: divides 16, 32 and 64


def _norm(width: int) -> nn.Module:
    return nn.GroupNorm(GROUPS, width)


def _pointwise(before: int, width: int) -> list[nn.Module]:
    return [nn.Conv2d(before, width, 1, bias=False), _norm(width), nn.SELU()]


def _depthwise(width: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False), _norm(width)]


class Unit(nn.Module):
    """Half the channels pass by, half go through convolutions; then the halves are shuffled, so that they meet."""

    def __init__(self, width: int):
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(*_pointwise(half, half), *_depthwise(half, 1), *_pointwise(half, half))

    def forward(self, x: Tensor) -> Tensor:
        kept, sent = x.chunk(2, 1)
        return shuffled(torch.cat([kept, self.branch(sent)], 1))


class Halving(nn.Module):
    """Both branches see all channels, and halve the image."""

    def __init__(self, before: int, width: int):
        super().__init__()
        half = width // 2
        self.left = nn.Sequential(*_depthwise(before, 2), *_pointwise(before, half))
        self.right = nn.Sequential(*_pointwise(before, half), *_depthwise(half, 2), *_pointwise(half, half))

    def forward(self, x: Tensor) -> Tensor:
        return shuffled(torch.cat([self.left(x), self.right(x)], 1))


def shuffled(x: Tensor) -> Tensor:
    """Channels of the two halves in turn."""
    return x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def _build(records: Records, _: Any) -> nn.Module:
    refuse_small("shufflenet", records, LEAST, "'cnn'")
    return nn.Sequential(
        *(nn.Conv2d(records.shape[0], 16, 3, 2, 1, bias=False), _norm(16), nn.SELU(), nn.MaxPool2d(2)),
        *(Halving(16, 32), Unit(32), Halving(32, 64), Unit(64)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, records.classes)),
    )


SHUFFLENET = Architecture(
    name="shufflenet",
    summary="small ShuffleNet with GroupNorm and SELU, for images from 32x32",
    records=IMAGE,
    build=_build,
    typical="thinwall",
)
