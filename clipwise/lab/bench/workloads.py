"""The models that are timed, each with its batch and the cost it is meant to stay under.

Inputs are random: the time of a step does not depend on their values, only (for embeddings) on how often a token
repeats; tokens are drawn uniformly. Targets are ratios to the plain step of the same model and batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise import validate

MEMORY_TARGET = 1.3  # times the peak of a plain step: what a private one is to stay within


@dataclass(frozen=True)
class Workload:
    name: str
    summary: str
    rows: int
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    classes: int = 10
    time_target: float | None = None
    memory_target: float | None = MEMORY_TARGET
    listed: bool = True  # part of a run that names no models
    quick: bool = False  # part of a --quick run

    def model(self) -> nn.Module:
        """The same weights every time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build().train()

    def batch(self) -> tuple[Tensor, Tensor]:
        """The same batch every time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return self.inputs(self.rows), torch.randint(0, self.classes, (self.rows,))


class _GroupNormBlock(nn.Module):
    """ResNet's basic block with GroupNorm."""

    def __init__(self, wide_in: int, wide: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(wide_in, wide, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(32, wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(32, wide)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or wide_in != wide:
            self.short = nn.Sequential(nn.Conv2d(wide_in, wide, 1, stride, bias=False), nn.GroupNorm(32, wide))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + self.short(x))


def _resnet18(stem: Sequence[nn.Module]) -> nn.Module:
    blocks: list[nn.Module] = []
    wide_in = 64
    for wide, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [_GroupNormBlock(wide_in, wide, stride), _GroupNormBlock(wide, wide, 1)]
        wide_in = wide
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def _resnet18_stem7() -> nn.Module:
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.GroupNorm(32, 64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return _resnet18(stem)


def _resnet18_cifar() -> nn.Module:
    return _resnet18([nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(32, 64), nn.ReLU()])


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, 10),
    )


def _small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


class _BagOfWords(nn.Module):
    def __init__(self, vocabulary: int = 20_000, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.out = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.embed(tokens).mean(1))


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8_000, 256)
        layers = [nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True) for _ in range(2)]
        self.layers = nn.Sequential(*layers)
        self.out = nn.Linear(256, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.layers(self.embed(tokens)).mean(1))


class _BiLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8_000, 128)
        self.lstm = nn.LSTM(128, 128, batch_first=True, bidirectional=True)
        self.out = nn.Linear(256, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(tokens))[0].mean(1))


def _tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10))


def _tabular() -> nn.Module:
    return nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 2))


def _mlp(*widths: int) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        sizes = [784, *widths]
        hidden = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(sizes[-1], 10))

    return build


def _deep() -> nn.Module:
    return nn.Sequential(*[m for _ in range(200) for m in (nn.Linear(16, 16), nn.ReLU())], nn.Linear(16, 10))


def _normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda rows: torch.randn(rows, *shape)


def _tokens(vocabulary: int, length: int) -> Callable[[int], Tensor]:
    return lambda rows: torch.randint(0, vocabulary, (rows, length))


_cnn_workload = partial(Workload, build=_cnn, inputs=_normal(1, 28, 28))
_resnet_workload = partial(Workload, rows=64, inputs=_normal(3, 32, 32))

WORKLOADS = {
    workload.name: workload
    for workload in (
        _cnn_workload("cnn-b64", "two 5x5 convolutions, two linear layers, 28x28", 64, time_target=1.3, quick=True),
        _cnn_workload("cnn-b512", "the same, 512 rows", 512, time_target=1.15),
        Workload(
            "small-cnn-b256",
            "8x8 and 4x4 convolutions with stride, two linear layers, 28x28",
            256,
            _small_cnn,
            _normal(1, 28, 28),
            time_target=1.3,
            quick=True,
        ),
        _resnet_workload(
            "resnet18-stem7-b64",
            "ResNet18, GroupNorm, 7x7 stem with stride, 32x32x3",
            build=_resnet18_stem7,
            time_target=1.5,
        ),
        _resnet_workload(
            "resnet18-cifar-b64",
            "ResNet18, GroupNorm, 3x3 stem, 32x32x3",
            build=_resnet18_cifar,
            time_target=1.15,
        ),
        Workload(
            "bag-of-words-b256",
            "Embedding(20000, 64), mean of 256 tokens, linear",
            256,
            _BagOfWords,
            _tokens(20_000, 256),
            time_target=1.5,
            quick=True,
        ),
        Workload(
            "transformer-b32",
            "two nn.TransformerEncoderLayer(256, 4 heads, 1024), 128 tokens of 8000",
            32,
            _Transformer,
            _tokens(8_000, 128),
            time_target=1.15,
        ),
        Workload(
            "bilstm-b64",
            "Embedding(8000, 128), bidirectional LSTM(128), mean of 64 tokens",
            64,
            _BiLSTM,
            _tokens(8_000, 64),
            time_target=2.0,
            quick=True,
        ),
        Workload(
            "small-cnn-b64",
            "the small CNN, 26 thousand parameters, 64 rows",
            64,
            _small_cnn,
            _normal(1, 28, 28),
        ),
        Workload("tabular-b64", "100-64-2, ReLU", 64, _tabular, _normal(100), classes=2, time_target=2.0),
        Workload("mlp-204k-b64", "784-256-10, ReLU", 64, _mlp(256), _normal(784), time_target=1.8),
        Workload("mlp-535k-b256", "784-512-256-10, ReLU", 256, _mlp(512, 256), _normal(784), time_target=1.3),
        Workload("deep-200-b64", "200 times Linear(16, 16) and ReLU", 64, _deep, _normal(16), time_target=2.0),
        Workload(
            "vocabulary-1e5-b64",
            "Embedding(100000, 32), mean of 64 tokens, linear",
            64,
            partial(_BagOfWords, 100_000, 32),
            _tokens(100_000, 64),
            time_target=2.0,
        ),
        Workload("tiny-b32", "two linear layers: for tests", 32, _tiny, _normal(20), memory_target=None, listed=False),
    )
}


def choose(names: Sequence[str] | None, *, quick: bool) -> list[Workload]:
    """The workloads of a run: those named, or those of the default or the quick list."""
    if names is None:
        return [w for w in WORKLOADS.values() if w.listed and (w.quick or not quick)]
    return [WORKLOADS[validate.choice("models", name, WORKLOADS)] for name in dict.fromkeys(names)]
