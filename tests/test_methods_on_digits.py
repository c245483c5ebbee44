"""A short private run on real data with every sound method: it learns, keeps its budget, and its path is sane."""

import pytest
import torch
from torch import nn

import clipwise
from clipwise.clipping import METHODS
from clipwise.data import load


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.sound])
def test_learns_privately(name, digits):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    # Z of `global` stands for all norms of the run: its default is for larger models
    options, groups = {"upper": 20.0} if name == "global" else {}, None
    if METHODS[name].needs_groups:
        options, groups = {"number_of_groups": 10}, lambda batch: batch[1]
    path = []
    result = clipwise.fit(
        model,
        digits.train,
        epsilon=8.0,
        delta=1e-4,
        epochs=20,
        expected_batch_size=256,
        method=name,
        method_options=options,
        groups=groups,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0, momentum=0.9),
        test=digits.test,
        seed=3,
        on_step=lambda values, _: path.append(values),
    )
    assert result.accuracy > 0.6, f"{name}: {result.accuracy}"
    assert 7.9 < result.epsilon <= 8.0
    assert len(path) == result.steps == 120
    numbers = torch.tensor([torch.tensor(value).min().item() for values in path for value in values.values()])
    assert bool((numbers.isfinite() & (numbers > 0)).all())
