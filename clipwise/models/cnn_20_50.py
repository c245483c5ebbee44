"""Two 5x5 convolutions of 20 and 50 channels, ReLU and pools, and 500 hidden units: 431,080 parameters on MNIST.

DP-SGD-Global-Adapt-V2 (paper 001), Section 5.1.1: its model for MNIST.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from clipwise.models.architecture import IMAGE, Architecture, Records, refuse_small
from clipwise.models.cnn import flat_width

LEAST = 16  # pixels: two convolutions and pools leave one place


def _build(records: Records, _: Any) -> nn.Module:
    refuse_small("cnn-20-50", records, LEAST, "'cnn'")
    features = nn.Sequential(
        *(nn.Conv2d(records.shape[0], 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)),
    )
    width = flat_width(features, records.shape)
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(width, 500), nn.ReLU(), nn.Linear(500, records.classes))


CNN_20_50 = Architecture(
    name="cnn-20-50",
    summary="CNN of 20 and 50 channels with 500 hidden units, for images from 16x16",
    records=IMAGE,
    build=_build,
    typical="mnist",
)
