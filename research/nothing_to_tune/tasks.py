"""The tasks of the study: tensors, a model, a loss and a metric in points. Features are cached as .pt outside the tree."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from clipwise import data as sets
from clipwise import models
from clipwise.models.freezing import on_features

CACHE = Path(os.environ.get("AUTO_CACHE", "/tmp/auto_cache"))
CACHE.mkdir(exist_ok=True)

DEV = ("digits", "adult", "fashion-scat", "agnews", "mnist-cnn", "fashion-cnn")
HELD = ("svhn-feat", "mnist-scat", "cifar-feat", "sst2", "cifar-cnn", "names", "age")


@dataclass
class Task:
    name: str
    x: Tensor
    y: Tensor
    xt: Tensor
    yt: Tensor
    kind: str  # linear, mlp or net
    outputs: int
    regression: bool = False
    q: float = 0.1
    steps: int = 200
    builder: object = None
    hidden: int = 128

    @property
    def n(self) -> int:
        return len(self.x)

    def build(self, seed: int) -> nn.Module:
        torch.manual_seed(1000 + seed)
        if self.kind == "linear":
            return nn.Linear(self.x.shape[1], self.outputs)
        if self.kind == "mlp":
            return nn.Sequential(
                nn.Linear(self.x.shape[1], self.hidden), nn.Tanh(), nn.Linear(self.hidden, self.outputs)
            )
        return self.builder()


def _some(x, y, n, seed=0):
    if len(x) <= n:
        return x, y
    i = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:n]
    return x[i], y[i]


def _raw(name, n, nt=10_000, **kw):
    d = sets.load(name, **kw)
    return (*_some(*d.train.tensors[:2], n), *_some(*d.test.tensors[:2], nt), d)


def _features(model, name, n, nt=10_000):
    import dataclasses

    from torch.utils.data import TensorDataset

    x, y, xt, yt, d = _raw(name, n, nt)
    d = dataclasses.replace(d, train=TensorDataset(x, y), test=TensorDataset(xt, yt), groups={})
    _, f = on_features(models.build_model(model, d, 0), d)
    return (*f.train.tensors, *f.test.tensors)


def _bags(x, size, padding):
    out = torch.zeros(len(x), size)
    there = (x != padding).float()
    out.scatter_add_(1, x, there)
    out[:, padding] = 0
    return out / there.sum(1, keepdim=True).clamp_min(1).sqrt()


def _make(name):
    if name == "digits":
        x, y, xt, yt, d = _raw("digits", 10**9)
        return dict(x=x.flatten(1), y=y, xt=xt.flatten(1), yt=yt, kind="mlp", outputs=10)
    if name in ("adult", "age"):
        x, y, xt, yt, d = _raw("adult", 10**9, 10**9)
        if name == "adult":
            return dict(x=x, y=y, xt=xt, yt=yt, kind="mlp", outputs=2)
        at = list(d.feature_names).index("age")
        keep = [i for i in range(x.shape[1]) if i != at]
        target = lambda v, w: (v[:, at] * 2 - 0.8) * 2 if v.max() <= 1.001 else v[:, at]
        return dict(
            x=torch.cat([x[:, keep], y[:, None].float()], 1), y=target(x, y),
            xt=torch.cat([xt[:, keep], yt[:, None].float()], 1), yt=target(xt, yt),
            kind="mlp", outputs=1, regression=True,
        )  # fmt: skip
    if name == "hours":  # a regression for development: hours a week from the other columns of adult
        x, y, xt, yt, d = _raw("adult", 10**9, 10**9)
        at = next(i for i, f in enumerate(d.feature_names) if f.startswith("hours"))
        keep = [i for i in range(x.shape[1]) if i != at]
        mean, std = x[:, at].mean(), x[:, at].std()
        return dict(x=torch.cat([x[:, keep], y[:, None].float()], 1), y=(x[:, at] - mean) / std * 0.5,
                    xt=torch.cat([xt[:, keep], yt[:, None].float()], 1), yt=(xt[:, at] - mean) / std * 0.5, kind="mlp", outputs=1, regression=True)  # fmt: skip
    if name == "fashion-scat":
        x, y, xt, yt = _features("scattering", "fashion_mnist", 20_000)
    elif name == "mnist-scat":
        x, y, xt, yt = _features("scattering", "mnist", 20_000)
    elif name == "cifar-feat":
        x, y, xt, yt = _features("efficientnet-lite0", "cifar10", 10_000, 3_000)
    elif name == "svhn-feat":
        x, y, xt, yt = _features("efficientnet-lite0", "svhn-subset", 3_000)
    elif name == "agnews":
        x, y, xt, yt, d = _raw("ag_news", 20_000, vocabulary="hashed:4096")
        return dict(x=_bags(x, 4096, d.padding), y=y, xt=_bags(xt, 4096, d.padding), yt=yt, kind="linear", outputs=4)
    else:
        return None
    return dict(x=x.flatten(1), y=y, xt=xt.flatten(1), yt=yt, kind="linear", outputs=10)


NETS = {
    "mnist-cnn": ("mnist", "cnn", 20_000, {}),
    "fashion-cnn": ("fashion_mnist", "cnn-relu", 20_000, {}),
    "cifar-cnn": ("cifar10", "cnn", 20_000, {}),
    "sst2": ("sst2", "bow", 20_000, {"vocabulary": "hashed:4096"}),
    "names": ("names", "bilstm", 12_000, {}),
}


def load(name: str, **change) -> Task:
    if name in NETS:
        source, model, n, kw = NETS[name]
        x, y, xt, yt, d = _raw(source, n, **kw)
        build = lambda: models.build_model(model, d, int(torch.randint(10**6, ())))
        t = Task(name, x, y, xt, yt, "net", d.classes, q=0.05, builder=build)
    else:
        path = CACHE / f"{name}.pt"
        if not path.exists():
            torch.save(_make(name), path)
        t = Task(name, **torch.load(path, weights_only=False))
    for key, value in change.items():
        setattr(t, key, value)
    return t


if __name__ == "__main__":
    import sys
    import time

    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        start = time.time()
        t = load(name)
        print(name, tuple(t.x.shape), t.x.dtype, tuple(t.xt.shape), t.outputs, "norm", float(t.x.float().flatten(1).norm(dim=1).mean()),
              "y", float(t.y.float().mean()), float(t.y.float().std()), f"{time.time() - start:.0f}s", flush=True)  # fmt: skip
