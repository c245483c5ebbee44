"""Networks without norms: NF-ResNet50, NFNet-F0 and F1 (Brock et al. 2021). Nothing in them mixes records, by design.

Parameters are named as in timm, whose checkpoints of `nf_resnet50`, `dm_nfnet_f0` and `dm_nfnet_f1` fit (`--pretrained`). Auto
DP-SGD (paper 000) fine-tunes F0 on CIFAR-10 and F1 on CIFAR-100, the last layer made afresh. No dropout, no stochastic depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.models.architecture import IMAGE, Architecture, Records, refuse_small
from clipwise.models.freezing import FeaturesAndHead
from clipwise.models.scaled_conv import ScaledStdConv2d

LEAST = 32  # pixels: the network halves them five times
ALPHA = 0.2  # of what a block adds
ATTENTION_GAIN = 2.0  # makes up for the mean of a sigmoid, 1/2; as published
# What keeps the variance through an activation at 1 (the papers' constants).
GELU_GAMMA, RELU_GAMMA = 1.7015043497085571, 1.7139588594436646


@dataclass(frozen=True)
class Plan:
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    stem: int  # channels
    bottleneck: float
    deepmind: bool  # an F network: GELU, four convolutions in the stem, attention, a learned gain on each block
    group: int | None = None  # channels in a group of the 3x3 convolutions
    top: int | None = None  # channels of a last convolution


NF_RESNET50 = Plan((3, 4, 6, 3), (256, 512, 1024, 2048), 64, 0.25, deepmind=False)
F_WIDTHS = (256, 512, 1536, 1536)  # channels of the four stages, as published
NFNET_F0 = Plan((1, 2, 6, 3), F_WIDTHS, 128, 0.5, deepmind=True, group=128, top=3072)
NFNET_F1 = Plan((2, 4, 12, 6), F_WIDTHS, 128, 0.5, deepmind=True, group=128, top=3072)


class Attention(nn.Module):
    """Squeeze and excitation: channels weighed by what the whole image shows."""

    def __init__(self, width: int):
        super().__init__()
        self.fc1 = nn.Conv2d(width, width // 2, 1)
        self.fc2 = nn.Conv2d(width // 2, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.fc2(self.fc1(x.mean((2, 3), keepdim=True)).relu()).sigmoid()


class Downsample(nn.Module):
    def __init__(self, before: int, width: int, stride: int, conv: Callable[..., nn.Module]):
        super().__init__()
        self.pool: nn.Module = (
            nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False) if stride > 1 else nn.Identity()
        )
        self.conv = conv(before, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.pool(x))


class Block(nn.Module):
    """x + ALPHA * f(x / beta), f a bottleneck; `beta` is the deviation that x is expected to have."""

    def __init__(self, plan: Plan, before: int, width: int, stride: int, beta: float, conv: Callable[..., nn.Module]):
        super().__init__()
        middle = int(width * plan.bottleneck)
        groups = middle // plan.group if plan.group else 1
        self.act, self.beta = _activation(plan), beta
        self.downsample = Downsample(before, width, stride, conv) if before != width or stride != 1 else None
        self.conv1 = conv(before, middle, 1)
        self.conv2 = conv(middle, middle, 3, stride=stride, groups=groups)
        self.conv2b = conv(middle, middle, 3, groups=groups) if plan.deepmind else None
        # Either way a block starts as the identity, and learns to be more.
        self.conv3 = conv(middle, width, 1, gain=1.0 if plan.deepmind else 0.0)
        self.attn_last = Attention(width) if plan.deepmind else None
        # timm's is a number; this shape lets the engine give each record its own copy.
        self.skipinit_gain = nn.Parameter(torch.zeros(1, 1, 1, 1)) if plan.deepmind else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(x) / self.beta
        shortcut = x if self.downsample is None else self.downsample(out)
        out = self.conv2(self.act(self.conv1(out)))
        if self.conv2b is not None:
            out = self.conv2b(self.act(out))
        out = self.conv3(self.act(out))
        if self.attn_last is not None:
            out = ATTENTION_GAIN * self.attn_last(out)
        if self.skipinit_gain is not None:
            out = out * self.skipinit_gain
        return ALPHA * out + shortcut


class NFNet(FeaturesAndHead):
    def __init__(self, plan: Plan, channels: int, classes: int):
        super().__init__()

        def conv(*args: Any, **kwargs: Any) -> nn.Module:
            gamma = 1.0 if plan.deepmind else RELU_GAMMA  # the F networks have theirs in the activation
            return ScaledStdConv2d(*args, gamma=gamma, same=plan.deepmind, **kwargs)

        self.act = _activation(plan)
        self.stem = nn.Sequential()
        if plan.deepmind:
            before = channels
            for i, (width, stride) in enumerate(zip((8, 4, 2, 1), (2, 1, 1, 2), strict=True), start=1):
                self.stem.add_module(f"conv{i}", conv(before, plan.stem // width, 3, stride=stride))
                before = plan.stem // width
                if width > 1:
                    self.stem.add_module(f"act{i + 1}", Activation(self.act))
        else:
            self.stem.add_module("conv", conv(channels, plan.stem, 7, stride=2))
            self.stem.add_module("pool", nn.MaxPool2d(3, 2, 1))
        before, variance, stages = plan.stem, 1.0, []
        for stage, (depth, width) in enumerate(zip(plan.depths, plan.widths, strict=True)):
            blocks = []
            for i in range(depth):
                blocks.append(Block(plan, before, width, 2 if stage and not i else 1, variance**0.5, conv))
                variance = (1.0 if i == 0 else variance) + ALPHA**2  # a stage's first block starts afresh
                before = width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.final_conv = conv(before, plan.top, 1) if plan.top else nn.Identity()
        self.head = nn.ModuleDict({"fc": nn.Linear(plan.top or before, classes)})
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif name == "head.fc":
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)

    @property
    def last_layer(self) -> nn.Module:
        return self.head["fc"]

    def features(self, x: Tensor) -> Tensor:
        return self.act(self.final_conv(self.stages(self.stem(x)))).mean((2, 3))


class Activation(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor]):
        super().__init__()
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x)


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x) * GELU_GAMMA


def _activation(plan: Plan) -> Callable[[Tensor], Tensor]:
    return _gelu if plan.deepmind else torch.relu


def _architecture(name: str, plan: Plan, summary: str, typical: str) -> Architecture:
    def build(records: Records, _: Any) -> nn.Module:
        refuse_small(name, records, LEAST, "'cnn'")
        return NFNet(plan, records.shape[0], records.classes)

    return Architecture(
        name=name,
        summary=f"{summary}, weight-standardised convolutions and no norms; takes timm's weights",
        records=IMAGE,
        build=build,
        typical=typical,
        head=("head.",),
        freezing={"features": ("head.",)},
    )


NF_RESNET = _architecture("nf-resnet50", NF_RESNET50, "NF-ResNet50", "cifar10")
NFNET = (
    _architecture("nfnet-f0", NFNET_F0, "NFNet-F0", "cifar10"),
    _architecture("nfnet-f1", NFNET_F1, "NFNet-F1", "cifar100"),
)
