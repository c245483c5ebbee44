"""AdamWOSM against its formula, worked by hand, and in a private loop."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise.optim import AdamWOSM
from clipwise.types import BadArgument


def test_learning_rate_of_the_paper():
    """methods.md: alpha .001, sigma 1, C 1, B 256 -> .2559993"""
    assert AdamWOSM([nn.Parameter(torch.ones(1))], noise_std=1 / 256).param_groups[0]["lr"] == pytest.approx(
        0.2559993, abs=1e-7
    )


def test_two_steps_by_hand():
    """beta .5, lr 1 (noise .001): g = 2: m = 1, / (1 - .5) = 2 -> -2; g = 4: m = 2.5, / .75 = 3.3333 -> -5.3333."""
    p = nn.Parameter(torch.zeros(1))
    optimizer = AdamWOSM([p], noise_std=1e-3 - 1e-8, beta=0.5)
    for g in (2.0, 4.0):
        p.grad = torch.tensor([g])
        optimizer.step()
    assert float(p.detach()) == pytest.approx(-2 - 2.5 / 0.75, rel=1e-6)


def test_in_a_private_loop():
    model = nn.Linear(3, 2)
    data = TensorDataset(torch.randn(60, 3), torch.randint(0, 2, (60,)))
    optimizer = AdamWOSM(model.parameters(), noise_std=1.0 / 20)
    private = clipwise.attach(model, optimizer, DataLoader(data, batch_size=20), noise_multiplier=1.0)
    before = model.weight.detach().clone()
    for x, y in private.loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert not torch.equal(before, model.weight)
    private.detach()


@pytest.mark.parametrize("options", [{"alpha": 0}, {"beta": 1.0}, {"noise_std": -1}])
def test_bad_arguments(options):
    (name,) = options
    with pytest.raises(BadArgument, match=f"{name}="):
        AdamWOSM([nn.Parameter(torch.ones(1))], **{"noise_std": 1.0, **options})
