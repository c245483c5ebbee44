"""ResNet18 and ResNet34 (He et al. 2016) with GroupNorm in place of BatchNorm, which would mix the records of a batch.

The stem is torchvision's (7x7, stride 2, pool), as DC-SGD (paper 002) has it: 11.2 and 21.3 million parameters with 10
classes. 32 groups a norm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from clipwise.models.architecture import IMAGE, Architecture, Records, refuse_small

LEAST = 32  # pixels: the network halves them five times
GROUPS = 32  # of channels, as GroupNorm was published with; divides every width below
WIDTHS = (64, 128, 256, 512)  # channels of the four stages, as published


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, before: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(GROUPS, width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, width)
        self.act = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.GroupNorm(GROUPS, width))

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.norm1(self.conv1(x)))
        return self.act(self.norm2(self.conv2(out)) + self.shortcut(x))


def resnet(channels: int, classes: int, depths: tuple[int, ...], widths: tuple[int, ...] = WIDTHS) -> nn.Sequential:
    stem = nn.Sequential(
        nn.Conv2d(channels, widths[0], 7, 2, 3, bias=False),
        nn.GroupNorm(GROUPS, widths[0]),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    )
    stages: list[nn.Module] = []
    before = widths[0]
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for i in range(depth):
            stages.append(Block(before, width, 2 if stage and not i else 1))
            before = width
    model = nn.Sequential()
    model.add_module("stem", stem)
    model.add_module("blocks", nn.Sequential(*stages))
    model.add_module("pool", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    model.add_module("classifier", nn.Linear(before, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def _builder(name: str, depths: tuple[int, ...]) -> Callable[[Records, Any], nn.Module]:
    def build(records: Records, _: Any) -> nn.Module:
        refuse_small(name, records, LEAST, "'cnn'")
        return resnet(records.shape[0], records.classes, depths)

    return build


def _architecture(name: str, depths: tuple[int, ...]) -> Architecture:
    return Architecture(
        name=name,
        summary=f"{name.replace('resnet', 'ResNet')} with GroupNorm, for images from {LEAST}x{LEAST}",
        records=IMAGE,
        build=_builder(name, depths),
        typical="cifar10",
        head=("classifier.",),
        freezing={"features": ("classifier.",)},
    )


RESNET18 = _architecture("resnet18", (2, 2, 2, 2))
RESNET34 = _architecture("resnet34", (3, 4, 6, 3))
