"""A convolutional autoencoder: images in, the same images out, through a narrow middle. Its loss is a squared error.

`autoencoder` has 45,697 parameters on Fashion-MNIST. OSO-DPSGD (paper 003) trains one of 48,705 there and gives no more
of it: `autoencoder-oso` is one of that size, its widths found by counting. The decoder enlarges and convolves (no transposed convolution), so that every layer has a rule in the fast engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.models.architecture import IMAGE, Architecture, Records, refuse_small
from clipwise.models.cnn import flat_width

LEAST = 8  # pixels
CODE = 16  # numbers in the middle


class Widths(NamedTuple):
    """Channels on the way down, where the middle opens, and on the way up."""

    down: tuple[int, int]
    opened: int
    up: int


class Autoencoder(nn.Module):
    def __init__(self, shape: tuple[int, ...], widths: Widths):
        super().__init__()
        channels, height, width = shape
        self.size, self.middle = (height, width), ((height + 1) // 2, (width + 1) // 2)
        self.quarter = tuple((n + 1) // 2 for n in self.middle)
        first, second = widths.down
        self.down = nn.Sequential(
            *(
                nn.Conv2d(channels, first, 3, 2, 1),
                nn.Tanh(),
                nn.Conv2d(first, second, 3, 2, 1),
                nn.Tanh(),
                nn.Flatten(),
            )
        )
        self.opened = (widths.opened, *self.quarter)
        self.code = nn.Linear(flat_width(self.down, shape), CODE)
        self.open = nn.Linear(CODE, math.prod(self.opened))
        self.up1 = nn.Conv2d(widths.opened, widths.up, 3, padding=1)
        self.up2 = nn.Conv2d(widths.up, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        code = self.code(self.down(x))
        out = self.open(code).tanh().unflatten(1, self.opened)
        out = self.up1(F.interpolate(out, self.middle)).tanh()
        return self.up2(F.interpolate(out, self.size))


def _builder(name: str, widths: Widths) -> Callable[[Records, Any], nn.Module]:
    def build(records: Records, _: Any) -> nn.Module:
        refuse_small(name, records, LEAST)
        return Autoencoder(records.shape, widths)

    return build


def _architecture(name: str, summary: str, widths: Widths) -> Architecture:
    return Architecture(
        name=name,
        summary=summary,
        records=IMAGE,
        build=_builder(name, widths),
        typical="fashion_mnist",
        loss="squared-error",
    )


AUTOENCODER = _architecture(
    "autoencoder",
    f"convolutional autoencoder through {CODE} numbers, for images from 8x8",
    Widths(down=(16, 32), opened=16, up=16),
)
AUTOENCODER_OSO = _architecture(
    "autoencoder-oso",
    f"another, of the size that OSO-DPSGD trains, through {CODE} numbers",
    Widths(down=(8, 8), opened=48, up=4),
)
