"""A user's own CNN, transformer and LSTM in the README's loop, with Adam and OneCycleLR, on the fast path and learning something."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise.norms.loop import per_example_gradients

ROWS, BATCH, EPOCHS = 400, 80, 10


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.GroupNorm(4, 8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3),
            nn.ReLU(),
        )
        self.head = nn.Linear(8 * 2 * 2, 2)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens):
        return self.head(self.encoder(self.words(tokens)).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.lstm = nn.LSTM(16, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens):
        return self.head(self.lstm(self.words(tokens))[0].mean(1))


def images():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(ROWS, 1, 8, 8, generator=generator), torch.randint(0, 2, (ROWS,), generator=generator)
    x[y == 1, :, :4] += 1.5
    return TensorDataset(x, y)


def sentences():
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (ROWS,), generator=generator)
    x = torch.randint(0, 10, (ROWS, 12), generator=generator) + 10 * y[:, None] * torch.randint(
        0, 2, (ROWS, 12), generator=generator
    )
    return TensorDataset(x, y)


CASES = [(ConvNet, images), (Transformer, sentences), (Recurrent, sentences)]


@pytest.mark.parametrize(("network", "data"), CASES)
def test_the_loop_runs_unchanged(network, data):
    torch.manual_seed(0)
    model, dataset = network(), data()
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=EPOCHS * len(loader))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no notice of a fallback
        private = clipwise.attach(
            model, optimizer, loader, epsilon=30.0, delta=1e-5, epochs=EPOCHS, method="fixed", threshold=1.0, seed=0
        )
        for _ in range(EPOCHS):
            for x, y in private.loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                scheduler.step()
    assert private.epsilon() <= 30.0
    private.detach()
    model.eval()
    x, y = dataset.tensors
    assert float((model(x).argmax(1) == y).float().mean()) > 0.8


@pytest.mark.parametrize(("network", "data"), CASES)
def test_the_step_is_that_of_the_reference_engine(network, data):
    """Norms and sums of the fast engine through the public API, against the loop over single examples."""
    torch.manual_seed(0)
    model, dataset = network().eval(), data()  # eval: dropout off, so that both see the same function
    twin = copy.deepcopy(model).double()
    loader = DataLoader(dataset, batch_size=BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    private = clipwise.attach(model, optimizer, loader, noise_multiplier=0.0, threshold=0.05, seed=0, method="fixed")
    for x, y in private.loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        break
    rows = x.double() if x.is_floating_point() else x
    each = per_example_gradients(Named(twin, y), (rows, torch.arange(len(y))), lambda loss: loss.sum())
    norms = torch.stack([g.flatten(1).square().sum(1) for g in each.values()]).sum(0).sqrt()
    weights = (0.05 / norms).clamp(max=1.0)
    for (name, g), p in zip(each.items(), model.parameters(), strict=True):
        want = torch.einsum("r,r...->...", weights, g) / BATCH
        torch.testing.assert_close(p.grad.double(), want, rtol=1e-3, atol=1e-7, msg=lambda m, name=name: f"{name}: {m}")


class Named(nn.Module):
    """The twin with its loss inside, so that the reference can call it row by row."""

    def __init__(self, model, y):
        super().__init__()
        self.model, self.y = model, y

    def forward(self, x, index):
        return F.cross_entropy(self.model(x), self.y[index], reduction="none")
