"""A loop with everything prepared by accelerate: the page's code, the same weights as without, and what is refused."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise.types import Unsupported

accelerate = pytest.importorskip("accelerate")
PAGE = Path(__file__).parent.parent / "docs" / "accelerate.md"


@pytest.fixture(autouse=True)
def fresh():
    """Accelerate keeps its state for the whole process."""
    yield
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


def test_the_page_runs(capsys):
    code = PAGE.read_text().split("```python\n")[1].split("```")[0]
    exec(compile(code, str(PAGE), "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == "epsilon 3.000\n"


def weights(prepare):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.arange(40) % 2), batch_size=10)
    accelerator = accelerate.Accelerator(cpu=True)
    if prepare:
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    options = {"noise_multiplier": 1.0, "delta": 1e-3, "method": "fixed", "threshold": 1.0, "seed": 3}
    private = clipwise.attach(model, optimizer, loader, lr_scheduler=scheduler, **options)
    for x, y in private.loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        scheduler.step()
    rate = private.optimizer.param_groups[0]["lr"]
    private.detach()
    return [p.detach().clone() for p in model.parameters()], rate


def test_prepared_or_not_the_weights_are_the_same():
    (plain, rate), (prepared, other) = weights(False), weights(True)
    assert all(map(torch.equal, plain, prepared))
    assert rate == other == 0.125


def test_accumulation_is_refused():
    model = nn.Linear(4, 2)
    loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.arange(40) % 2), batch_size=10)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5), loader)
    with pytest.raises(Unsupported, match="max_physical_batch"):
        clipwise.attach(*prepared, epsilon=3.0, delta=1e-3)
