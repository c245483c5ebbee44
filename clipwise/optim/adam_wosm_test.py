"""AdamWOSM against its formula, worked by hand, and in a private loop."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise.optim import AdamWOSM
from clipwise.types import BadArgument, LoopMisuse


def with_noise(noise_std, **options):
    p = nn.Parameter(torch.zeros(1))
    optimizer = AdamWOSM([p], **options)
    optimizer.param_groups[0]["noise_std"] = noise_std
    return p, optimizer


def test_learning_rate_of_the_paper():
    """By hand, alpha / (sigma C / B + 1e-8): alpha .001, sigma 1, C 1, B 256 -> .2559993; with g = 1 the first step is exactly that long."""
    p, optimizer = with_noise(1 / 256)
    p.grad = torch.ones(1)
    optimizer.step()
    assert float(p.detach()) == pytest.approx(-0.2559993, abs=1e-7)


def test_two_steps_by_hand():
    """beta .5, rate 1 (noise .001): g = 2: m = 1, / (1 - .5) = 2 -> -2; g = 4: m = 2.5, / .75 = 3.3333 -> -5.3333."""
    p, optimizer = with_noise(1e-3 - 1e-8, beta=0.5)
    for g in (2.0, 4.0):
        p.grad = torch.tensor([g])
        optimizer.step()
    assert float(p.detach()) == pytest.approx(-2 - 2.5 / 0.75, rel=1e-6)


def test_the_private_step_tells_it_the_noise():
    """sigma C / B, at each step of a schedule: 1.5 * 2 / 20 = 0.15, then half of it."""
    model = nn.Linear(3, 2)
    data = TensorDataset(torch.randn(60, 3), torch.randint(0, 2, (60,)))
    optimizer = AdamWOSM(model.parameters())
    loader = DataLoader(data, batch_size=20)
    private = clipwise.attach(
        model, optimizer, loader, noise_multiplier=1.5, threshold=2.0, schedule=[1.0, 0.5], method="fixed"
    )
    seen = []
    for _ in range(2):
        for x, y in private.loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            seen.append(optimizer.param_groups[0]["noise_std"])
    assert seen == pytest.approx([0.15] * 3 + [0.075] * 3)
    private.detach()


def test_without_a_private_step_it_says_so():
    p = nn.Parameter(torch.zeros(1))
    p.grad = torch.ones(1)
    with pytest.raises(LoopMisuse, match="attach"):
        AdamWOSM([p]).step()


@pytest.mark.parametrize("options", [{"lr": 0}, {"beta": 1.0}])
def test_bad_arguments(options):
    (name,) = options
    with pytest.raises(BadArgument, match=f"{name}="):
        AdamWOSM([nn.Parameter(torch.ones(1))], **options)
