"""A small convolutional network with tanh or ReLU: 26,010 parameters on 28x28 grey images, 28,058 in colour, 10 classes.

From 20x20 up: conv 8x8x16 stride 2, pool, conv 4x4x32 stride 2, pool, 32 units, as in Papernot et al., Tempered Sigmoid
Activations (2021), who found that bounded activations help private training; DC-SGD (paper 002) trains one of the same
size. From 8x8 up to that: two 3x3 convolutions and pools, since the larger kernels do not fit.

Pools work channels-last, for which torch has a much faster kernel on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from clipwise.models.architecture import IMAGE, Architecture, Records, refuse_small

LEAST, LARGE = 8, 20  # pixels


class Pool(nn.MaxPool2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.contiguous(memory_format=torch.channels_last))


def _builder(name: str, act: type[nn.Module]) -> Callable[[Records, Any], nn.Module]:
    def build(records: Records, _: Any) -> nn.Module:
        refuse_small(name, records, LEAST)
        channels, *size = records.shape
        if min(size) >= LARGE:
            features = nn.Sequential(
                *(nn.Conv2d(channels, 16, 8, stride=2, padding=3), act(), Pool(2, 1)),
                *(nn.Conv2d(16, 32, 4, stride=2), act(), Pool(2, 1)),
            )
        else:
            features = nn.Sequential(
                *(nn.Conv2d(channels, 16, 3, padding=1), act(), Pool(2)),
                *(nn.Conv2d(16, 32, 3, padding=1), act(), Pool(2)),
            )
        width = flat_width(features, records.shape)
        return nn.Sequential(*features, nn.Flatten(), nn.Linear(width, 32), act(), nn.Linear(32, records.classes))

    return build


def flat_width(features: nn.Module, shape: tuple[int, ...]) -> int:
    """How many numbers the features of one record are."""
    with torch.no_grad():
        return int(features(torch.zeros(1, *shape)).numel())


CNN = Architecture(
    name="cnn",
    summary="small CNN with tanh, for images from 8x8",
    records=IMAGE,
    build=_builder("cnn", nn.Tanh),
    typical="mnist",
)
CNN_RELU = Architecture(
    name="cnn-relu",
    summary="the same with ReLU",
    records=IMAGE,
    build=_builder("cnn-relu", nn.ReLU),
    typical="mnist",
)
