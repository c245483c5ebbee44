"""What has no batch dimension: position tables, class tokens. Fast and exact where the code allows it, exact elsewhere."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clipwise.norms import Bookkeeping
from clipwise.norms.layers import LAYERS, Layer
from clipwise.norms.layers.linear import LINEAR
from clipwise.norms.loop import assert_agrees, squared_output
from clipwise.types import Unsupported

WIDTH, TOKENS, LENGTH = 8, 7, 5


def attention_block():
    return nn.TransformerEncoderLayer(WIDTH, 2, 6, dropout=0.0, batch_first=True, norm_first=True)


class Language(nn.Module):
    """Like GPT: positions from a table, one table for tokens and output layer."""

    def __init__(self, tied=True):
        super().__init__()
        self.token, self.position = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH + 1, WIDTH)
        self.block, self.last = attention_block(), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        if tied:
            self.head.weight = self.token.weight

    def positions(self, x):
        return self.position(torch.arange(x.shape[1]))

    def forward(self, x):
        blocked = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.head(self.last(self.block(self.token(x) + self.positions(x), src_mask=blocked, is_causal=True)))


class WithLeadingOne(Language):
    def positions(self, x):
        return self.position(torch.arange(x.shape[1]).unsqueeze(0))


class NormalisedPositions(Language):
    """The norm has no batch either, until what comes before it is spread; and it is declared before it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.position = self.__dict__["_modules"].pop("position")
        self.mix = nn.Linear(WIDTH, WIDTH)

    def positions(self, x):
        return self.mix(self.norm(super().positions(x)))


class FixedWaves(Language):
    """A linear layer on something that is no parameter and has no batch."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(3, WIDTH)

    def positions(self, x):
        waves = torch.linspace(0, 1, x.shape[1] * 3).view(-1, 3).to(self.last.weight.detach())
        return self.mix(waves)


class Vision(nn.Module):
    """Like ViT: a class token and positions as parameters of the model itself, zero at the start as is usual."""

    def __init__(self):
        super().__init__()
        self.patch, self.block, self.head = nn.Linear(6, WIDTH), attention_block(), nn.Linear(WIDTH, 3)
        self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position = nn.Parameter(torch.zeros(1, LENGTH + 1, WIDTH))

    def with_token(self, x):
        return torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.position

    def forward(self, x):
        return self.head(self.block(self.with_token(self.patch(x)))[:, 0])


class SlicedPositions(Vision):
    def with_token(self, x):
        x = x + self.position[:, 1 : x.shape[1] + 1]
        return torch.cat([self.first.expand(x.shape[0], -1, -1) + self.position[:, :1], x], 1)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision, self.head = Vision(), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.vision(x)) + self.vision(x * 0.5))  # called twice


def tokens(rows=4, length=LENGTH):
    return (torch.randint(0, TOKENS, (rows, length)),)


def patches(rows=4):
    return (torch.randn(rows, LENGTH, 6),)


@pytest.mark.parametrize("rows", [1, 2, 4, 9])
@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        (Language, tokens),
        (WithLeadingOne, tokens),
        (NormalisedPositions, tokens),
        (FixedWaves, tokens),
        (Vision, patches),
        (SlicedPositions, patches),
        (Inner, patches),
    ],
)
def test_fast_and_exact(kind, inputs, rows):
    torch.manual_seed(0)
    assert_agrees(kind(), inputs(rows))  # fails where the generic engine is used


@pytest.mark.parametrize("frozen", ["first", "position", "patch.weight", "head.weight"])
def test_frozen(frozen):
    torch.manual_seed(0)
    model = Vision()
    dict(model.named_parameters())[frozen].requires_grad_(False)
    assert_agrees(model, patches())


class Repeats(Vision):
    def with_token(self, x):
        return torch.cat([self.first.repeat(len(x), 1, 1), x], 1) + self.position


class FirstOnly(Vision):
    """Takes one row's copy for all: right values, but all gradients in the first row."""

    def with_token(self, x):
        return torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.position[0]


class Averages(Vision):
    """The copies' mean is the value itself, but it spreads gradients over the rows."""

    def with_token(self, x):
        return torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.position.mean(0)


class Unsqueezed(Language):
    def positions(self, x):
        return self.position(torch.arange(x.shape[1])).unsqueeze(0)


class ChangedInPlace(Language):
    def positions(self, x):
        return self.position(torch.arange(x.shape[1])).mul_(2.0)


class WeightItself(Language):
    def positions(self, x):
        return self.position.weight[: x.shape[1]]


class BothWays(Language):
    """One table for tokens with and without a batch."""

    def __init__(self):
        super().__init__(tied=False)
        del self.position

    def positions(self, x):
        return self.token(torch.arange(x.shape[1]))


class PositionsDependOnRows(Language):
    """The number of rows in the code: spreading would change the values."""

    def positions(self, x):
        position = self.position(torch.arange(x.shape[1]))
        return position / position.dim() * 2


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        (Repeats, patches),
        (FirstOnly, patches),
        (Averages, patches),
        (Unsqueezed, tokens),
        (ChangedInPlace, tokens),
        (WeightItself, tokens),
        (BothWays, tokens),
        (PositionsDependOnRows, tokens),
    ],
)
def test_exact_by_fallback(kind, inputs):
    torch.manual_seed(0)
    model = kind()
    with pytest.raises(AssertionError, match="fell back"):
        assert_agrees(copy.deepcopy(model), inputs())
    assert_agrees(model, inputs(), allow_generic=True)


def engine_of(model, notices):
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum", notify=notices.append)
    engine.install()
    return engine


def test_a_length_of_one_is_looked_at_anew():
    """`[: length]` cuts nothing from the rows while there are fewer than `length`; at length 1 it leaves one copy."""

    class Cuts(Language):
        def positions(self, x):
            return self.position(torch.arange(x.shape[1]))[: x.shape[1]]

    torch.manual_seed(0)
    model, notices = Cuts(), []
    engine = engine_of(model, notices)
    for length in (LENGTH, 1):
        (x,) = tokens(3, length)
        engine.open(3)
        squared_output(model(x)).backward()
        norms = engine.close().norms
        assert len(notices) == (length == 1)
        engine.remove()
        for i in range(3):
            grads = torch.autograd.grad(squared_output(model(x[i : i + 1])), list(model.parameters()))
            torch.testing.assert_close(
                norms[i].float(), torch.cat([g.flatten() for g in grads]).norm(), rtol=1e-4, atol=1e-5
            )
        engine.install()


def test_parameters_come_back_from_the_probe():
    model, notices = Vision(), []
    before = {name: (p, p.data_ptr(), p.detach().clone()) for name, p in model.named_parameters()}
    engine = engine_of(model, notices)
    engine.open(3)
    model(torch.randn(3, LENGTH, 6))
    for name, p in model.named_parameters():
        same, place, value = before[name]
        assert p is same
        assert p.data_ptr() == place
        assert torch.equal(p, value)
        assert isinstance(p, nn.Parameter)


def test_they_come_back_from_a_failure_too():
    model = Vision()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    engine = engine_of(model, [])
    engine.open(3)
    with pytest.raises(RuntimeError):
        model(torch.randn(3, LENGTH + 2, 6))
    assert all(torch.equal(p, before[name]) and isinstance(p, nn.Parameter) for name, p in model.named_parameters())


class Scaled(nn.Linear):
    """Has a rule, in the test below, that forgets one of its parameters."""

    def __init__(self):
        super().__init__(6, 4)
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return super().forward(x) * self.scale


def test_a_rule_that_leaves_a_parameter_out_is_not_used(monkeypatch):
    def forgets(module, tap, x):
        out = F.linear(x, module.weight.detach(), module.bias.detach())
        return tap(out, LINEAR, {"weight": module.weight, "bias": module.bias}, (x,)) * module.scale.detach()

    monkeypatch.setitem(LAYERS, Scaled, Layer(forgets, lambda _: True))
    torch.manual_seed(0)
    assert_agrees(nn.Sequential(Scaled(), nn.Tanh()), (torch.randn(3, 6),), allow_generic=True)


class Mixes(nn.Module):
    def __init__(self, how, last):
        super().__init__()
        self.layer, self.head, self.how, self.last = nn.Linear(6, 4), nn.Linear(4, 3), how, last
        nn.init.zeros_(self.head.weight)  # as is common; hides what comes before it

    def forward(self, x):
        return self.how(self.layer(x)) if self.last else self.head(self.how(self.layer(x)))


@pytest.mark.parametrize(
    "how",
    [
        lambda x: x.cumsum(0),  # only later examples see earlier ones
        lambda x: x - x.mean(0),
        lambda x: F.softmax(x.roll(1, 0), -1),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_mixing_is_seen_whatever_its_direction(how, last):
    model = Mixes(how, last)
    engine = engine_of(model, [])
    engine.open(5)
    with pytest.raises(Unsupported, match="mixes examples"):
        model(torch.randn(5, 6))
