"""Two 3x3 convolutions of 8 and 64 channels, ReLU and pools, and 256 and 512 hidden units: 551,322 parameters on MNIST.

OSO-DPSGD (paper 003), Table 1, has a CNN of that size on MNIST and says no more of it; these widths were found by counting.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from clipwise.models.architecture import IMAGE, Architecture, Records, refuse_small
from clipwise.models.cnn import flat_width

LEAST = 10  # pixels: two convolutions and pools leave one place


def _build(records: Records, _: Any) -> nn.Module:
    refuse_small("cnn-8-64", records, LEAST, "'cnn'")
    features = nn.Sequential(
        *(nn.Conv2d(records.shape[0], 8, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    )
    hidden = (nn.Linear(flat_width(features, records.shape), 256), nn.ReLU(), nn.Linear(256, 512), nn.ReLU())
    return nn.Sequential(*features, *hidden, nn.Linear(512, records.classes))


CNN_8_64 = Architecture(
    name="cnn-8-64",
    summary="CNN of 8 and 64 channels with 256 and 512 hidden units, for images from 10x10",
    records=IMAGE,
    build=_build,
    typical="mnist",
)
