"""The grid of `clipwise audit layers`, every 12th case of it; shapes that cannot be told, and one record at a time, in a loop."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise.lab.audit import layers
from clipwise.norms.layers import linear
from clipwise.types import BadArgument, Unsupported

SOME = list(layers.cases())[::12]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_some_of_the_grid():
    assert {case.kind for case in SOME} == {case.kind for case in layers.cases()} - {"InstanceNorm1d", "InstanceNorm3d"}
    odd = [found for case in SOME if (found := layers.look_at(case)).verdict not in ("fast", "generic")]
    assert not odd


def test_a_wrong_norm_would_be_seen(monkeypatch):
    def halved(kernel, call, saved, b):
        part = kernel.direct_part(call, saved, b)
        part.squared_norms = part.squared_norms / 2
        return part

    monkeypatch.setattr(linear.LinearKernel, "candidates", lambda kernel, *_: {"halved": lambda *a: halved(kernel, *a)})
    case = next(case for case in SOME if case.kind == "Linear" and "2x2" not in case.words and case.rows > 1)
    assert layers.look_at(case).verdict == "wrong"


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.GRU(3, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.inner(x)[0][-1])


def trained(model, data, batch, steps=4, *, turn=False, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=batch)
    options = {"noise_multiplier": 1.0, "delta": 1e-3, "threshold": 1.0, "method": "fixed", "seed": 0, **options}
    private = clipwise.attach(model, optimizer, loader, **options)
    for _, (x, y) in zip(range(steps), private.loader, strict=False):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.transpose(0, 1) if turn else x), y).backward()
        optimizer.step()
    private.detach()
    return private


def test_where_the_records_are_can_be_said():
    """Four records of four words, all of them in every batch."""
    data = TensorDataset(torch.randn(4, 4, 3), torch.tensor([0, 1, 0, 1]))
    everything = {"sample_rate": 1.0, "expected_batch_size": 4, "turn": True}
    with pytest.raises(Unsupported) as refusal:
        trained(TimeFirst(), data, 4, **everything)
    assert "batch_dim=0), or 1" in "".join(refusal.value.__notes__)
    private = trained(TimeFirst(), data, 4, batch_dim=1, **everything)
    assert "Declared by the user: dimension 1" in private.statement().to_markdown()
    with pytest.raises(Unsupported, match="cannot be trained privately"):
        trained(TimeFirst(), data, 4, batch_dim=0, **everything)
    with pytest.raises(BadArgument, match="batch_dim=2"):
        trained(TimeFirst(), data, 4, batch_dim=2)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1), (3,)])
def test_one_record_at_a_time(shape):
    """Physical batches of one, and an expected batch of one: no shape tells which dimension has the record."""
    data = TensorDataset(torch.randn(6, *shape), torch.arange(6) % 2)
    model = nn.Sequential(nn.Linear(shape[-1], 4), nn.Tanh(), nn.Flatten(), nn.Linear(4, 2))
    trained(model, data, 3, steps=2, max_physical_batch=1)
    trained(model, data, 1, steps=6)
    trained(
        nn.Sequential(nn.Flatten(), nn.Linear(shape[-1], 2)),
        TensorDataset(data.tensors[0][:1], data.tensors[1][:1]),
        1,
        delta=0.1,
    )


def test_a_batch_that_showed_too_little_is_followed_by_another_look():
    """A record of one word, time first: the second batch shows that its records are in the second dimension, or that they are mixed."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    engine = clipwise.norms.Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
    engine.install()
    for shape, rows in (((1, 1, 3), 1), ((4, 2, 3), 2)):
        engine.open(rows)
        model(torch.randn(*shape)).square().sum((0, 2)).sum().backward()
        assert engine.close().rows == rows
    engine.remove()


def test_packed_sequences_are_a_model_s_own_argument():
    class Model(nn.Module):
        def __init__(self, mixes):
            super().__init__()
            self.inner, self.head, self.mixes = nn.LSTM(3, 5), nn.Linear(5, 2), mixes

        def forward(self, packed):
            out = self.head(self.inner(packed)[1][0][-1])
            return out + packed.data.mean() if self.mixes else out

    for mixes in (False, True):
        model = Model(mixes)
        engine = clipwise.norms.Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
        engine.install()
        engine.open(3)
        given = pack_sequence([torch.randn(n, 3) for n in (2, 4, 3)], enforce_sorted=False)
        if mixes:
            with pytest.raises(Unsupported, match="mixes examples"):
                model(given)
        else:
            model(given).square().sum().backward()
            assert engine.close().rows == 3


def test_a_model_of_keras_is_refused_by_name():
    kind = type("Dense", (nn.Linear,), {"__module__": "keras.src.layers.core.dense"})
    with pytest.raises(Unsupported, match=r"of Keras \(Dense\).*torch\.nn layers"):
        trained(nn.Sequential(kind(3, 2)), TensorDataset(torch.randn(4, 3), torch.arange(4) % 2), 2)
