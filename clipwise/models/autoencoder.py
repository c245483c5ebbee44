"""A convolutional autoencoder: images in, the same images out, through a narrow middle. Its loss is a squared error.

OSO-DPSGD (paper 003) trains one of 48,705 parameters on Fashion-MNIST and gives no more of it; this one has 45,697 there.
The decoder enlarges and convolves (no transposed convolution), so that every layer has a rule in the fast engine.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.models.architecture import IMAGE, Architecture, Records, refuse_small
from clipwise.models.cnn import flat_width

LEAST = 8  # pixels
CODE = 16  # numbers in the middle


class Autoencoder(nn.Module):
    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        channels, height, width = shape
        self.size, self.middle = (height, width), ((height + 1) // 2, (width + 1) // 2)
        self.quarter = tuple((n + 1) // 2 for n in self.middle)
        self.down = nn.Sequential(
            *(nn.Conv2d(channels, 16, 3, 2, 1), nn.Tanh(), nn.Conv2d(16, 32, 3, 2, 1), nn.Tanh(), nn.Flatten())
        )
        flat = flat_width(self.down, shape)
        self.code = nn.Linear(flat, CODE)
        self.open = nn.Linear(CODE, flat // 2)
        self.up1 = nn.Conv2d(16, 16, 3, padding=1)
        self.up2 = nn.Conv2d(16, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        code = self.code(self.down(x))
        out = self.open(code).tanh().unflatten(1, (16, *self.quarter))
        out = self.up1(F.interpolate(out, self.middle)).tanh()
        return self.up2(F.interpolate(out, self.size))


def _build(records: Records, _: Any) -> nn.Module:
    refuse_small("autoencoder", records, LEAST)
    return Autoencoder(records.shape)


AUTOENCODER = Architecture(
    name="autoencoder",
    summary=f"convolutional autoencoder through {CODE} numbers, for images from 8x8",
    records=IMAGE,
    build=_build,
    typical="fashion_mnist",
    loss="squared-error",
)
