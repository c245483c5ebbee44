"""Two 3x3 convolutions of 16 and 32 channels, each with instance norm, SELU and a pool, and one linear layer.

DP-SGD-Global-Adapt-V2 (paper 001): its model for unbalanced MNIST. Instance norm looks at one record at a time, and keeps
no running statistics here.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from clipwise.models.architecture import IMAGE, Architecture, Records, refuse_small
from clipwise.models.cnn import flat_width

LEAST = 8  # pixels


def _build(records: Records, _: Any) -> nn.Module:
    refuse_small("cnn-16-32", records, LEAST)
    features = nn.Sequential(
        *(
            nn.Conv2d(records.shape[0], 16, 3, padding=1),
            nn.InstanceNorm2d(16, affine=True),
            nn.SELU(),
            nn.MaxPool2d(2),
        ),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.InstanceNorm2d(32, affine=True), nn.SELU(), nn.MaxPool2d(2)),
    )
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(flat_width(features, records.shape), records.classes))


CNN_16_32 = Architecture(
    name="cnn-16-32",
    summary="CNN of 16 and 32 channels with instance norm and SELU, for images from 8x8",
    records=IMAGE,
    build=_build,
    typical="unbalanced-mnist",
)
