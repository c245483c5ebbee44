"""What a steady step asks of the host, counted under a dispatch mode: each read of a value is a wait on a GPU, each operation a
launch. Run on the CPU, under the policy of other devices (clipwise/devices.py): the counts are those that a GPU would see, but for
torch's own kernels there.

The two reads of a step are of the proof that the loss is row-wise, and are named below: the count may fall, and not rise.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise import attach, devices
from clipwise.clipping import METHODS
from clipwise.norms import modes_of_torch

READS = {
    "_local_scalar_dense",
    "nonzero",
    "equal",
    "is_nonzero",
    "masked_select",
    "_unique2",
    "unique_consecutive",
    "bincount",
}
# By file: what is read there, and how often a step at most.
ENGINE = {
    "norms/loss/certificate.py": 1,  # whether targets are left out of cross entropy's mean
    "norms/loss/rules/state.py": 1,  # the gradient that backward() was given
}
# Numbers that a method's update reads of what was released: 0 where a threshold does not move. One small read would do for each.
METHOD = {
    "global-adapt": 1,
    "quantile": 1,
    "bounded-quantile": 1,
    "auto-dp-sound": 1,
    "auto-dp": 2,
    "oso": 1,
    "dc-sgd-p": 1,
    "dc-sgd-e": 1,
}
OPTIONS = {"fixed": {"threshold": 1.0}}
UNSOUND = {name for name, kind in METHODS.items() if not kind.sound}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch):
    """The CPU stands for a device that the host has to wait for. That the mode which counts is there makes no difference: under
    any other each pass is looked at anew."""
    monkeypatch.setattr(devices, "_HOST", devices._ACCELERATOR)
    monkeypatch.setattr(modes_of_torch, "of_operations", lambda: False)


class Counts(TorchDispatchMode):
    """Reads of values of the device. `.cpu()` is one; what is made of its result is the host's own, and may be read."""

    def __init__(self):
        super().__init__()
        self.reads, self.operations = Counter(), 0
        self._on_host = {}  # by id; kept, so that no id comes twice

    def copied(self, x):
        self._count()
        out = x.clone()
        self._on_host[id(out)] = out
        return out

    def _count(self):
        ours = [f.filename for f in traceback.extract_stack() if "/clipwise/" in f.filename]
        self.reads[ours[-1].rpartition("/clipwise/")[2] if ours else "the loop"] += 1

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        on_host = any(id(x) in self._on_host for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor))
        if func._schema.name.removeprefix("aten::") in READS and not on_host:
            self._count()
        out = func(*args, **(kwargs or {}))
        if on_host:
            self._on_host |= {id(x): x for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor)}
        return out


def steady_step(model, inputs, method="auto-s", optimizer=torch.optim.SGD):
    """Counts of the seventh step: the first looks at the model, and the 1st, 2nd, 4th and 8th take checksums of buffers."""
    data = TensorDataset(inputs, torch.randint(0, 3, (len(inputs),)))
    own = optimizer(model.parameters(), lr=0.1)
    private = attach(
        model,
        own,
        DataLoader(data, batch_size=16),
        noise_multiplier=1.0,
        delta=1e-5,
        epochs=2,
        method=method,
        seed=0,
        allow_unsound=method in UNSOUND,
        **OPTIONS.get(method, {}),
    )
    for number, (x, y) in enumerate(private.loader):
        counted = number == 6
        with Counts() if counted else torch.enable_grad() as counts, pytest.MonkeyPatch.context() as patch:
            if counted:
                patch.setattr(torch.Tensor, "cpu", lambda x, counts=counts: counts.copied(x))
            own.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            own.step()
        if counted:
            return counts
    raise AssertionError("the run was too short")


def perceptron(layers=2):
    hidden = [part for _ in range(layers - 1) for part in (nn.Linear(8, 8), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(8, 3))


class Last(nn.Module):
    def __init__(self, part, width):
        super().__init__()
        self.part, self.head = part, nn.Linear(width, 3)

    def forward(self, x):
        out = self.part(x, x, x, need_weights=False) if isinstance(self.part, nn.MultiheadAttention) else self.part(x)
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))


ROWS = 160
LAYERS = {
    "linear": lambda: (perceptron(), torch.randn(ROWS, 8)),
    "conv": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)),
        torch.randn(ROWS, 3, 8, 8),
    ),
    "conv1d": lambda: (nn.Sequential(nn.Conv1d(3, 4, 3), nn.Flatten(), nn.Linear(24, 3)), torch.randn(ROWS, 3, 8)),
    "lstm": lambda: (Last(nn.LSTM(4, 8, batch_first=True), 8), torch.randn(ROWS, 5, 4)),
    "attention": lambda: (Last(nn.MultiheadAttention(8, 2, batch_first=True), 8), torch.randn(ROWS, 5, 8)),
    "layer norm": lambda: (Last(nn.LayerNorm(8), 8), torch.randn(ROWS, 5, 8)),
    "embedding": lambda: (Last(nn.Embedding(20, 8), 8), torch.randint(0, 20, (ROWS, 6))),
    "padded embedding": lambda: (Last(nn.Embedding(20, 8, padding_idx=0), 8), torch.randint(0, 20, (ROWS, 6))),
    "bag": lambda: (
        nn.Sequential(nn.EmbeddingBag(20, 8, padding_idx=0), nn.Linear(8, 3)),
        torch.randint(0, 20, (ROWS, 6)),
    ),
}


def beyond(reads, allowed):
    return {place: count for place, count in reads.items() if count > allowed.get(place, 0)}


@pytest.mark.parametrize("kind", LAYERS)
def test_reads_of_each_layer(kind):
    torch.manual_seed(0)
    reads = steady_step(*LAYERS[kind]()).reads
    assert not beyond(reads, ENGINE)


@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"dpsgd-f"}))  # which wants groups
def test_reads_of_each_method(method):
    torch.manual_seed(0)
    others = beyond(steady_step(perceptron(), torch.randn(ROWS, 8), method).reads, ENGINE)
    assert all(place.startswith("clipping/") for place in others)
    assert sum(others.values()) == METHOD.get(method, 0)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adam])
def test_reads_of_each_optimizer(optimizer):
    """Adam reads its step counts, one a parameter, which torch keeps on the CPU."""
    reads = steady_step(perceptron(), torch.randn(ROWS, 8), optimizer=optimizer).reads
    assert not beyond(reads, ENGINE | {"step.py": 4 if optimizer is torch.optim.Adam else 0})


class Chain(nn.Module):
    """Some parts, one after the other or side by side and added up."""

    def __init__(self, parts, *, beside=False):
        super().__init__()
        self.parts, self.beside, self.head = nn.ModuleList(parts), beside, nn.Linear(8, 3)

    def forward(self, x):
        if self.beside:
            return self.head(sum(part(x) for part in self.parts).mean(1))
        for part in self.parts:
            out = part(x, x, x, need_weights=False) if isinstance(part, nn.MultiheadAttention) else part(x)
            x = out[0] if isinstance(out, tuple) else out
        return self.head(x.mean(1) if x.dim() == 3 else x)


WORDS = torch.arange(ROWS * 6).view(ROWS, 6) % 20
# What adds one, its input, and how many operations one more of it may add to a step (forward, backward, norms, sums, noise and SGD),
# as counted when this was written.
LAUNCHES = {
    "linear and ReLU": (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(ROWS, 8), 26),
    "linear, 5 places": (lambda: nn.Linear(8, 8), torch.randn(ROWS, 5, 8), 46),
    "conv1d": (lambda: nn.Conv1d(5, 5, 3, padding=1), torch.randn(ROWS, 5, 8), 48),
    "layer norm": (lambda: nn.LayerNorm(8), torch.randn(ROWS, 5, 8), 38),
    "rms norm": (lambda: nn.RMSNorm(8), torch.randn(ROWS, 5, 8), 43),
    "group norm": (lambda: nn.GroupNorm(5, 5), torch.randn(ROWS, 5, 8), 48),
    "embedding": (lambda: nn.Embedding(20, 8), WORDS, 65),
    "padded embedding": (lambda: nn.Embedding(20, 8, padding_idx=0), WORDS, 70),
    "lstm, 5 words": (lambda: nn.LSTM(8, 8, batch_first=True), torch.randn(ROWS, 5, 8), 261),
    "attention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(ROWS, 5, 8), 126),
}


@pytest.mark.parametrize("kind", LAUNCHES)
def test_operations_of_a_layer_stay_within_their_budget(kind):
    torch.manual_seed(0)
    make, inputs, budget = LAUNCHES[kind]
    beside = not inputs.is_floating_point()
    few, many = (steady_step(Chain([make() for _ in range(n)], beside=beside), inputs).operations for n in (4, 8))
    assert (many - few) / 4 <= budget


def test_norms_noise_and_optimizer_know_no_device_by_name():
    names = re.compile(
        r"""["'](cpu|cuda|mps|xpu)\b|\.is_(cpu|cuda|mps|xpu)\b|torch\.(cuda|mps|xpu)\b|\.cpu\(\)|\.cuda\(\)"""
    )
    package = Path(clipwise.__file__).parent
    found = [
        f"{path.relative_to(package)}: {line}"
        for room in ("norms", "noise", "optim")
        for path in (package / room).rglob("*.py")
        if not path.name.endswith("_test.py")
        for line in path.read_text().splitlines()
        if names.search(line)
    ]
    assert not found
    assert names.search((package / "devices.py").read_text())
