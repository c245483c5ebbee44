"""A family of small tasks, drawn at random before any result was seen: even numbers are development, odd ones are held out.

    python research/nothing_to_tune/family.py        # lists them

A kind of task is at the same place of both halves (numbers 2 k and 2 k + 1), everything else of it is drawn. Work is bounded (records times
parameters), so that a whole grid of rates takes seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor, nn

MOST_WORK = 1.2e7  # records times parameters
MORE_WORK = 1.2e8  # ... of numbers 32 to 43, drawn after the others had been seen (those were too small for what the library is asked)
TEST = 3000  # records, of made tasks
LARGER = ("many classes", "words", "teacher", "few classes", "words", "friedman")  # numbers 32 to 43: 12 times the work
KINDS = ("few classes", "many classes", "teacher", "words", "friedman", "values", "real", "few records") * 2
REAL = ("digits", "breast cancer", "wine", "diabetes")  # of numbers 12, 13, 28, 29


@dataclass
class Task:
    number: int
    said: str
    x: Tensor
    y: Tensor
    xt: Tensor
    yt: Tensor
    widths: list[int]
    relu: bool

    @property
    def values(self) -> bool:
        return self.y.is_floating_point()

    @property
    def n(self) -> int:
        return len(self.x)

    def first(self, seed: int) -> list[Tensor]:
        """The first weights: torch's."""
        torch.manual_seed(1000 + seed)
        layers = [nn.Linear(a, b) for a, b in zip(self.widths, self.widths[1:], strict=False)]
        return [p.detach().clone() for layer in layers for p in layer.parameters()]


def _log(rng, low, high):
    return int(round(math.exp(rng.uniform(math.log(low), math.log(high)))))


def _classes(rng, n, few):
    classes = int(rng.integers(2, 6)) if few else _log(rng, 7, 20)
    features = _log(rng, 8, 200)
    informative = min(features, max(math.ceil(math.log2(2 * classes)) + 1, int(features * rng.uniform(0.15, 0.7))))
    separation = rng.uniform(0.6, 2.0)
    x, y = datasets.make_classification(
        n + TEST, features, n_informative=informative, n_redundant=int((features - informative) * rng.uniform(0, 0.6)), n_classes=classes,
        n_clusters_per_class=int(rng.integers(1, 3)), class_sep=separation, flip_y=rng.uniform(0, 0.05), random_state=int(rng.integers(1 << 30)),
    )  # fmt: skip
    return x, y, f"{classes} classes, separation {separation:.1f}"


def _teacher(rng, n, values=False):
    features, classes, hidden = _log(rng, 5, 60), 1 if values else _log(rng, 2, 12), _log(rng, 3, 30)
    x = rng.standard_normal((n + TEST, features))
    inner = np.tanh(x @ rng.standard_normal((features, hidden)) * rng.uniform(0.5, 2) / math.sqrt(features))
    out = inner @ rng.standard_normal((hidden, classes))
    if values:
        out = out[:, 0] / np.abs(out).max() + 0.05 * rng.standard_normal(len(x))
        return x, np.clip(out, -1, 1), f"teacher of {hidden}"
    out = (out - out.mean(0)) / out.std(0) + rng.uniform(0, 0.5) * rng.standard_normal(out.shape)
    return x, out.argmax(1), f"{classes} classes, teacher of {hidden}"


def _words(rng, n, larger=False):
    vocabulary, classes, length = _log(rng, *((1500, 4000) if larger else (200, 1000))), int(rng.integers(2, 7)), _log(rng, 8, 60)
    common = 1 / np.arange(1, vocabulary + 1)
    tilt = common[None] * np.exp(rng.uniform(0.4, 0.9) * rng.standard_normal((classes, vocabulary)))
    y = rng.integers(0, classes, n + TEST)
    x = np.stack([rng.multinomial(length, p / p.sum()) for p in tilt[y]]).astype(float)
    return x / np.sqrt(length), y, f"{classes} classes, {length} words of {vocabulary}"


def _friedman(rng, n):
    which = int(rng.integers(1, 4))
    make = (datasets.make_friedman1, datasets.make_friedman2, datasets.make_friedman3)[which - 1]
    noise = (1.0, 100.0, 0.1)[which - 1]
    x, y = make(n + TEST, noise=noise, random_state=int(rng.integers(1 << 30)))
    low, high = ((0, 30), (0, 1800), (-0.2, 1.7))[which - 1]
    return x, np.clip(2 * (y - low) / (high - low) - 1, -1, 1), f"friedman {which}"


def _linear(rng, n):
    features = _log(rng, 5, 80)
    x = rng.standard_normal((n + TEST, features))
    y = x @ rng.standard_normal(features) / math.sqrt(features)
    return x, np.clip(0.4 * y + rng.uniform(0.02, 0.3) * rng.standard_normal(len(x)), -1, 1), "linear values"


def _real(number, rng):
    which = REAL[(number % 16 - 12) + 2 * (number // 16)]
    x, y = {"digits": datasets.load_digits, "breast cancer": datasets.load_breast_cancer, "wine": datasets.load_wine,
            "diabetes": datasets.load_diabetes}[which](return_X_y=True)  # fmt: skip
    order = rng.permutation(len(x))
    x, y = x[order], y[order]
    if which == "digits":
        return x / 16, y, which
    return x, (2 * (y - 25) / 325 - 1 if which == "diabetes" else y), which


def own(number: int) -> Task:
    """Values whose median is not their mean, for the choice of gamma: 100 hours a week of adult's records, 102 a made tail."""
    rng = np.random.default_rng(number)
    if number == 100:
        from clipwise import data as sets

        d = sets.load("adult")
        at = next(i for i, f in enumerate(d.feature_names) if f.startswith("hours"))
        parts = []
        for part in (d.train, d.test):
            x, y = part.tensors[:2]
            keep = [i for i in range(x.shape[1]) if i != at]
            parts += [torch.cat([x[:, keep], y[:, None].float()], 1), x[:, at]]
        mean, std = parts[1].mean(), parts[1].std()
        x, y, xt, yt = parts[0][:8000], (parts[1][:8000] - mean) / std / 2, parts[2][:6000], (parts[3][:6000] - mean) / std / 2
        return Task(number, "hours a week, n 8000, 32 tanh", x, y, xt, yt, [x.shape[1], 32, 1], False)
    x = rng.standard_normal((6000 + TEST, 12))
    y = np.exp(x @ rng.standard_normal(12) / math.sqrt(12) + 0.7 * rng.standard_normal(len(x)))
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(np.clip(y / 4 - 1, -1, 1), dtype=torch.float32)
    return Task(number, "a tail, n 6000, 64 relu", x[:6000], y[:6000], x[6000:], y[6000:], [12, 64, 1], True)


def load(number: int) -> Task:
    """Of 200 and above, task number - 200 with its columns mapped from -3..3 to 0..1, as the library maps the columns of a file."""
    if number >= 400:  # what the model sees where the first layer's inputs are centred (400), and brought to a length of 2 to 4 too (600)
        task = load(number % 200 + (0 if "words" in load(number % 200).said or "digits" in load(number % 200).said else 200))
        mean = task.x.mean(0)
        task.x, task.xt = task.x - mean, task.xt - mean
        length = float(task.x.square().sum(1).mean().sqrt())
        scale = 2.0 ** math.floor(math.log2(4 / length)) if number >= 600 else 1.0
        task.x, task.xt = scale * task.x, scale * task.xt
        task.number, task.said = number, f"{task.said}, length {length:.2f} x {scale:g}"
        return task
    if number >= 200:
        task = load(number - 200)
        task.x, task.xt = (task.x + 3) / 6, (task.xt + 3) / 6
        task.number, task.said = number, task.said + ", 0..1"
        return task
    if number >= 100:
        return own(number)
    rng = np.random.default_rng(number)
    larger = number >= 32
    kind = LARGER[number // 2 - 16] if larger else KINDS[number // 2]
    n = _log(rng, 200, 1000) if kind == "few records" else _log(rng, 5000 if larger else 1000, 12_000)
    if kind == "values":
        x, y, said = _linear(rng, n) if number // 16 == 0 else _teacher(rng, n, values=True)
    else:
        x, y, said = {"few classes": lambda: _classes(rng, n, True), "many classes": lambda: _classes(rng, n, False), "teacher": lambda: _teacher(rng, n),
                      "words": lambda: _words(rng, n, larger), "friedman": lambda: _friedman(rng, n), "real": lambda: _real(number, rng),
                      "few records": lambda: _classes(rng, n, bool(rng.integers(2)))}[kind]()  # fmt: skip
    if kind == "real":
        n = int(0.8 * len(x))
    if kind != "words" and said != "digits":
        x = np.clip((x - x.mean(0)) / x.std(0), -3, 3)
    values = y.dtype.kind == "f" and kind in ("friedman", "values", "real")
    outputs = 1 if values else int(y.max()) + 1
    depth = int(rng.choice([0, 1, 2], p=[0.3, 0.5, 0.2])) if not values else int(rng.choice([0, 1, 2], p=[0.1, 0.6, 0.3]))
    if said in ("digits",):
        depth = 1
    if larger and kind == "words":
        depth = 0
    hidden = [_log(rng, 32, 256) for _ in range(depth)]
    relu = bool(rng.integers(2))

    def size(h):
        w = [x.shape[1], *h, outputs]
        return sum((a + 1) * b for a, b in zip(w, w[1:], strict=False))

    most = MORE_WORK if larger else MOST_WORK
    while n * size(hidden) > most * (1.3 if kind == "real" else 1) and hidden and max(hidden) > 32:
        hidden = [max(32, int(h * 0.8)) for h in hidden]
    if kind != "real":
        n = min(n, int(most / size(hidden)))
    x = torch.tensor(x, dtype=torch.float32)
    y = torch.tensor(y, dtype=torch.float32 if values else torch.long)
    end = n if kind == "real" else len(x) - TEST
    said = f"{kind}: {said}; n {n}, {x.shape[1]} features, {' + '.join(map(str, hidden)) or 'linear'}{'' if not hidden else ' relu' if relu else ' tanh'}"
    return Task(number, said, x[:n], y[:n], x[end:], y[end:], [x.shape[1], *hidden, outputs], relu)


if __name__ == "__main__":
    for number in [*range(44), 100, 102]:
        print(number, "held out" if number % 2 else "development", load(number).said)
