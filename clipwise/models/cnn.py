"""A small convolutional network with tanh: 26,010 parameters on 28x28 grey images, 10 classes.

From 20x20 up: conv 8x8x16 stride 2, pool, conv 4x4x32 stride 2, pool, 32 units, as in Papernot et al., Tempered Sigmoid
Activations (2021). From 8x8 up to that: two 3x3 convolutions and pools, since the larger kernels do not fit.
"""

from __future__ import annotations

import torch
from torch import nn

from clipwise.models.architecture import Architecture
from clipwise.types import BadArgument

_LEAST, _LARGE = 8, 20  # pixels


def _build(shape: tuple[int, ...], classes: int) -> nn.Module:
    if len(shape) != 3 or min(shape[1:]) < _LEAST:
        raise BadArgument(
            f"model='cnn' needs images of at least {_LEAST}x{_LEAST} pixels, as (channels, h, w), and the records here "
            f"have shape {shape}; use model='mlp' or 'linear'"
        )
    channels = shape[0]
    if min(shape[1:]) >= _LARGE:
        features = [
            *(nn.Conv2d(channels, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1)),
            *(nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1)),
        ]
    else:
        features = [
            *(nn.Conv2d(channels, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        ]
    with torch.no_grad():
        width = nn.Sequential(*features)(torch.zeros(1, *shape)).numel()
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, classes))


CNN = Architecture("cnn", "small CNN with tanh, for images from 8x8", _build)
