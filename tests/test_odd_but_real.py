"""What people bring to `fit(model, data, epsilon=3)` and `attach(model, loader=loader, epsilon=3)`: it works, or one sentence says
what to change, before anything is spent."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise import modes

SHORT = {"epsilon": 3.0, "epochs": 2, "expected_batch_size": 50, "seed": 0}  # 8 steps


def net(out=2, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8, dtype=dtype), nn.Tanh(), nn.Linear(8, out, dtype=dtype))


def inputs(size=200):
    return torch.randn(size, 5, generator=torch.Generator().manual_seed(1))


def classes(x):
    return (x[:, 0] > 0).long()


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 4, padding_idx=0), nn.Linear(4, 2)

    def forward(self, words):
        return self.out(self.embed(words).mean(1))


def frozen(norm=False):
    torch.manual_seed(0)
    body = [nn.Linear(5, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU()]
    model = nn.Sequential(*body, nn.Dropout(0.1), nn.Linear(8, 2))
    for part in model[:-1]:
        for p in part.parameters():
            p.requires_grad_(False)
    return model.eval()


def words():
    return torch.randint(1, 50, (200, 7), generator=torch.Generator().manual_seed(2))


WORKS = {
    "60 records": lambda: (net(), TensorDataset(inputs(60), classes(inputs(60)))),
    "one class in a hundred": lambda: (net(), TensorDataset(inputs(), (torch.arange(200) % 100 == 0).long())),
    "numbers in a flat list": lambda: (net(1), TensorDataset(inputs(), 3 * inputs()[:, 0])),
    "several labels a record": lambda: (net(5), TensorDataset(inputs(), (inputs() > 0).float())),
    "words": lambda: (Words(), TensorDataset(words(), (words()[:, 0] > 25).long())),
    "float64": lambda: (net(dtype=torch.float64), TensorDataset(inputs().double(), classes(inputs()))),
    "a frozen backbone": lambda: (frozen(), TensorDataset(inputs(), classes(inputs()))),
    "a frozen backbone with BatchNorm": lambda: (frozen(norm=True), TensorDataset(inputs(), classes(inputs()))),
    "a list of pairs": lambda: (net(), [(x, int(x[0] > 0)) for x in inputs()]),
}


@pytest.mark.parametrize("case", WORKS)
def test_it_works(case):
    model, data = WORKS[case]()
    done = clipwise.fit(model, data, **SHORT)
    assert 2.9 < done.epsilon <= 3.0
    assert all(p.isfinite().all() for p in model.parameters())
    model, data = WORKS[case]()
    private = clipwise.attach(model, loader=DataLoader(data, batch_size=50), **SHORT)
    assert private.run.plan.method.rate is not None
    private.detach()


def test_a_frozen_batch_norm_keeps_its_statistics_and_everything_else_trains():
    model = frozen(norm=True)
    before = {name: value.clone() for name, value in model[1].state_dict().items()}
    clipwise.fit(model, TensorDataset(inputs(), classes(inputs())), **SHORT)
    assert not model[1].training
    assert model[3].training  # dropout
    assert all(torch.equal(before[name], value) for name, value in model[1].state_dict().items())
    model[1].weight.requires_grad_(True)
    modes.to_training(model)
    assert model[1].training  # which the engine refuses


REFUSED = {
    "one output for two classes": (
        lambda: (net(1), TensorDataset(inputs(), classes(inputs()))),
        "outputs? (of|for)|one output",
    ),
    "labels beyond the outputs": (lambda: (net(2), TensorDataset(inputs(), torch.arange(200) % 3)), "outside 0 ... 1"),
    "whole numbers for several labels": (
        lambda: (net(5), TensorDataset(inputs(), (inputs() > 0).long())),
        "float|loss=",
    ),
    "inputs of another type": (
        lambda: (net(dtype=torch.float64), TensorDataset(inputs(), classes(inputs()))),
        "float64",
    ),
    "whole numbers as inputs": (lambda: (net(), TensorDataset(inputs().long(), classes(inputs()))), "x.to"),
    "nothing to train": (lambda: (net().requires_grad_(False), TensorDataset(inputs(), classes(inputs()))), "unfreeze"),
    "records of unlike lengths": (
        lambda: (Words(), [(row[: 3 + i % 4], i % 2) for i, row in enumerate(words())]),
        "pad them",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_one_sentence_says_what_to_change_before_anything_is_spent(case, tmp_path):
    make, says = REFUSED[case]
    model, data = make()
    with pytest.raises(clipwise.BadArgument, match=says):
        clipwise.fit(model, data, ledger=tmp_path / "fit.jsonl", **SHORT)
    model, data = make()
    with pytest.raises(clipwise.BadArgument, match=says):
        clipwise.attach(model, loader=DataLoader(data, batch_size=50), ledger=tmp_path / "attach.jsonl", **SHORT)
    assert [path for path in tmp_path.glob("[!.]*") if clipwise.accounting.Ledger.read(path).events()] == []


def test_what_an_error_says_of_a_record_is_not_repeated():
    """torch's own message names the class of a record, or its length."""
    with pytest.raises(clipwise.BadArgument) as caught:
        clipwise.losses.cross_entropy(torch.zeros(3, 4), torch.tensor([0, 17, 2]))
    assert "17" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
