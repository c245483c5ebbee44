"""The models that are timed, each with its batch and the cost it is meant to stay under.

Inputs are random: the time of a step does not depend on their values, only (for embeddings) on how often a token
repeats; tokens are drawn uniformly. Targets are ratios to the plain step of the same model and batch; of a batch that is split
into parts, to our own step on the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

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
    part: int | None = None  # rows of a physical batch, where the batch is split
    device: torch.device = torch.device("cpu")  # noqa: RUF009

    @property
    def base(self) -> str:
        """The method that others are compared with."""
        return "plain" if self.part is None else "unsplit"

    def model(self) -> nn.Module:
        """The same weights every time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build().train().to(self.device)

    def batch(self) -> tuple[Tensor, Tensor]:
        """The same batch every time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            x, y = self.inputs(self.rows), torch.randint(0, self.classes, (self.rows,))
        return x.to(self.device), y.to(self.device)


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


class _BertLayer(nn.Module):
    """A layer of BERT: attention of three projections, and a perceptron, each added and normalised after it."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.joined, self.norm1 = nn.Linear(width, width), nn.LayerNorm(width)
        self.wide, self.narrow, self.norm2 = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
            nn.LayerNorm(width),
        )
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        rows, places, width = x.shape
        q, k, v = (
            part(x).view(rows, places, self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, places, width)
        x = self.norm1(x + self.joined(seen))
        return self.norm2(x + self.narrow(F.gelu(self.wide(x))))


class _BertTiny(nn.Module):
    """The sizes of BERT-tiny (2 layers, width 128, 30,522 word pieces), without dropout: 4.4 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30_522, 128), nn.Embedding(512, 128)
        self.norm = nn.LayerNorm(128)
        self.layers = nn.Sequential(_BertLayer(128, 2), _BertLayer(128, 2))
        self.pooler, self.out = nn.Linear(128, 128), nn.Linear(128, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x = self.layers(self.norm(self.words(tokens) + self.places(places)))
        return self.out(torch.tanh(self.pooler(x[:, 0])))


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


def _deep(layers: int) -> nn.Module:
    return nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(16, 16), nn.ReLU())], nn.Linear(16, 10))


def _normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda rows: torch.randn(rows, *shape)


def _tokens(vocabulary: int, length: int) -> Callable[[int], Tensor]:
    return lambda rows: torch.randint(0, vocabulary, (rows, length))


_cnn_workload = partial(Workload, build=_cnn, inputs=_normal(1, 28, 28))
_resnet_workload = partial(Workload, rows=64, inputs=_normal(3, 32, 32))


def _mlp_204k(rows: int, **options: Any) -> Workload:
    return Workload(f"mlp-204k-b{rows}", f"784-256-10, ReLU, {rows} rows", rows, _mlp(256), _normal(784), **options)


def _wide(width: int, **options: Any) -> Workload:
    name, summary = f"mlp-{795 * width + 10}-b64", f"784-{width}-10, ReLU: {795 * width + 10:,} parameters"
    return Workload(name, summary, 64, _mlp(width), _normal(784), **options)


def _layers(layers: int, **options: Any) -> Workload:
    summary = f"{layers} times Linear(16, 16) and ReLU"
    return Workload(f"deep-{layers}-b64", summary, 64, partial(_deep, layers), _normal(16), **options)


def _vocabulary(power: int, **options: Any) -> Workload:
    summary = f"Embedding(10^{power}, 32), mean of 64 tokens, linear"
    model = partial(_BagOfWords, 10**power, 32)
    return Workload(f"vocabulary-1e{power}-b64", summary, 64, model, _tokens(10**power, 64), **options)


def _bert_tiny(length: int, **options: Any) -> Workload:
    name, summary = f"bert-tiny-{length}-b32", f"the sizes of BERT-tiny, in plain torch, {length} tokens"
    return Workload(name, summary, 32, _BertTiny, _tokens(30_522, length), classes=2, **options)


def _split(kind: str, part: int, **options: Any) -> Workload:
    whole = {"mlp": _mlp_204k(512), "cnn": _cnn_workload("", "the CNN", 512)}[kind]
    summary = f"{whole.summary}, 512 rows {part} at a time"
    return replace(whole, name=f"{kind}-by{part}-b512", summary=summary, part=part, **options)


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
        _mlp_204k(1),
        _mlp_204k(8),
        _mlp_204k(64, time_target=1.8),
        _mlp_204k(512),
        Workload("mlp-535k-b256", "784-512-256-10, ReLU", 256, _mlp(512, 256), _normal(784), time_target=1.3),
        _layers(200, time_target=2.0),
        _vocabulary(3),
        _vocabulary(5, time_target=2.0),
        _vocabulary(6),
        _bert_tiny(128, time_target=1.4),
        *(
            _split(kind, part, time_target=2.0 if part == 16 else None)
            for kind in ("mlp", "cnn")
            for part in (64, 16, 4)
        ),
        *(_wide(width, listed=False) for width in (16, 128, 1024, 4096)),
        *(_layers(layers, listed=False) for layers in (10, 50, 1000)),
        _vocabulary(4, listed=False),
        *(_bert_tiny(length, listed=False) for length in (16, 64, 256)),
        Workload("tiny-b32", "two linear layers: for tests", 32, _tiny, _normal(20), memory_target=None, listed=False),
    )
}


def choose(names: Sequence[str] | None, *, quick: bool) -> list[Workload]:
    """The workloads of a run: those named, or those of the default or the quick list."""
    if names is None:
        return [w for w in WORKLOADS.values() if w.listed and (w.quick or not quick)]
    return [WORKLOADS[validate.choice("models", name, WORKLOADS)] for name in dict.fromkeys(names)]
