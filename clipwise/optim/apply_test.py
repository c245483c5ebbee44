"""What reaches p.grad: the released sum over the expected batch size, and with `normalise` over the threshold too."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise.clipping import METHODS, make_method
from clipwise.types import BadArgument


def gradients(method, steps=4, **options):
    """p.grad at each step, and the bound it was clipped at; the weights stand still, so that two runs see the same."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    data = TensorDataset(torch.randn(60, 3), torch.randint(0, 2, (60,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    private = clipwise.attach(
        model, optimizer, DataLoader(data, batch_size=20), noise_multiplier=1.0, seed=1, method=method, **options
    )
    seen = []
    for x, y in private.loader:
        bound = private.run.plan.method.l2_bound(private.run.state.method)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        seen.append((model.weight.grad.clone(), bound))
        if len(seen) == steps:
            break
    private.detach()
    return seen


@pytest.mark.parametrize("name", ["fixed", "quantile", "dc-sgd-p", "auto-dp-sound", "dpsgd-f", "dynamic"])
def test_normalised_steps_are_the_same_over_the_bound(name):
    options = {"threshold": 3.0}
    if name == "dpsgd-f":
        options["groups"] = lambda batch: batch[1]
    if name == "dynamic":
        options["epochs"] = 2
    if name == "quantile":
        options["count_std"] = 1.0
    plain, normalised = gradients(name, **options), gradients(name, normalise=True, **options)
    for (grad, bound), (divided, same) in zip(plain, normalised, strict=True):
        assert same == bound
        torch.testing.assert_close(divided, grad / bound, rtol=1e-5, atol=1e-7)
    assert name == "fixed" or len({bound for _, bound in plain}) > 1


def test_an_optimizer_that_knows_the_noise_hears_of_it():
    """sigma C / (B C): the noise on p.grad."""
    model = nn.Linear(3, 2)
    data = TensorDataset(torch.randn(60, 3), torch.randint(0, 2, (60,)))
    optimizer = clipwise.optim.AdamWOSM(model.parameters())
    loader = DataLoader(data, batch_size=20)
    private = clipwise.attach(
        model, optimizer, loader, noise_multiplier=1.5, threshold=4.0, normalise=True, method="fixed"
    )
    batches = iter(private.loader)
    x, y = next(batches)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert optimizer.param_groups[0]["noise_std"] == pytest.approx(1.5 / 20)
    private.detach()


def test_bounded_quantile_normalises_and_the_others_are_as_published():
    assert [name for name in METHODS if make_method(name).normalise] == ["bounded-quantile"]


def test_what_is_refused():
    with pytest.raises(BadArgument, match="normalise='yes'"):
        make_method("fixed", normalise="yes")
    with pytest.raises(BadArgument, match="no bound to divide by"):
        gradients("auto-dp", normalise=True, allow_unsound=True)
