"""The first look at a model: what it tells apart, and what it refuses."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from clipwise.norms import Bookkeeping
from clipwise.norms.bookkeeping_test import Functional, Net
from clipwise.norms.loop import assert_agrees, squared_output
from clipwise.types import LoopMisuse, Unsupported


def recorded(engine, model, x, *more, **named):
    """The norms of one batch."""
    engine.open(len(x))
    squared_output(model(x, *more, **named)).backward()
    return engine.close().norms


def installed(model, **options):
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    engine = Bookkeeping(model, trainable, loss_reduction="sum", notify=lambda _: None, **options)
    engine.install()
    return engine


def true_norms(model, x, **named):
    each = []
    for i in range(len(x)):
        loss = squared_output(model(x[i : i + 1], **{k: t[i : i + 1] for k, t in named.items()}))
        grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        each.append(torch.stack([g.square().sum() for g in grads if g is not None]).sum().sqrt())
    return torch.stack(each).double()


class PerPlace(Net):
    def forward(self, x):
        return self.c(torch.tanh(self.a(x)))


class Masked(Net):
    """A mask of the length of the texts, given with each batch."""

    def forward(self, x, mask):
        h = self.a(x)
        return self.c(((h @ h.mT + mask).softmax(-1) @ h).mean(1))


class WithMask(nn.Module):
    def __init__(self, model, mask):
        super().__init__()
        self.model, self.mask = model, mask

    def forward(self, x):
        return self.model(x, self.mask)


def test_a_batch_that_cannot_be_told_from_the_places_is_refused():
    """Rows first, or places first? The model says nothing, and its gradients would be clipped place by place."""
    torch.manual_seed(0)
    assert_agrees(PerPlace(), (torch.randn(5, 4, 7),))
    with pytest.raises(Unsupported, match="as many records as its second dimension is long"):
        assert_agrees(PerPlace(), (torch.randn(4, 4, 7),))


@pytest.mark.parametrize("rows", [2, 3, 4, 6])
def test_an_argument_that_is_no_batch_but_as_long_as_one(rows):
    torch.manual_seed(0)
    model, x, mask = Masked().double(), torch.randn(rows, 4, 7).double(), torch.randn(4, 4).double()
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
    engine.install()
    engine.open(rows)
    squared_output(model(x, mask)).backward()
    norms = engine.close().norms
    engine.remove()
    torch.testing.assert_close(norms, true_norms(WithMask(model, mask), x))


class Auxiliary(Net):
    """A generic child that also returns one number for the batch, which every row then uses."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(7, 8))

        def forward(self, x):
            h = x @ self.w
            return h.mean(), h

    def __init__(self):
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x):
        aux, h = self.inner(x)
        return self.c(h.mean(1)) + aux


class CentredInside(Functional):
    """Mixes, in a module that runs generically: row by row, the mean over the batch would silently be the row itself."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


class CentredTokens(nn.Module):
    """The same where no gradient could show it: the input is tokens."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 3))

    def forward(self, tokens):
        h = F.embedding(tokens, self.table)
        return h - h.mean(0)


@pytest.mark.parametrize(
    ("kind", "x"),
    [
        (Auxiliary, torch.randn(5, 4, 7)),
        (CentredInside, torch.randn(5, 4, 7)),
        (CentredTokens, torch.arange(20).view(5, 4) % 9),
    ],
)
def test_mixing_inside_a_generic_module_is_refused(kind, x):
    torch.manual_seed(0)
    with pytest.raises(Unsupported, match="mixes examples"):
        assert_agrees(kind(), (x,), allow_generic=True)


class TwoLayouts(Net):
    """A generic child with one output rows first and one places first."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(7, 8))

        def forward(self, x):
            h = torch.tanh(x @ self.w)
            return h.transpose(0, 1), h.sum(1)

    def __init__(self):
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x):
        places, whole = self.inner(x)
        return self.c(self.b(places).mean(0) + whole)


def test_a_generic_module_with_outputs_of_two_layouts():
    torch.manual_seed(0)
    assert_agrees(TwoLayouts(), (torch.randn(5, 4, 7),), allow_generic=True)


class Before(nn.Module):
    """Mixes before the first layer, or through a value that no gradient goes through."""

    def __init__(self, mix):
        super().__init__()
        self.layer, self.mix = nn.Linear(4, 3), mix

    def forward(self, x):
        return self.mix(x, self.layer)


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, layer: layer(x - x.mean(0)),
        lambda x, layer: layer(F.batch_norm(x, None, None, training=True)),
        lambda x, layer: layer(x + x.roll(1, 0)),
        lambda x, layer: layer(x / x.abs().max()),
        lambda x, layer: (h := layer(x)) - h.mean(0).detach(),
        lambda x, layer: (h := layer(x)) / h.detach().norm(),
    ],
)
def test_mixing_that_no_gradient_shows_is_refused(mix):
    torch.manual_seed(0)
    model = Before(mix)
    with pytest.raises(Unsupported, match="changes with the values of another"):
        recorded(installed(model), model, torch.randn(6, 4))


class Optional(nn.Module):
    """No fast rule, and a mask that may be left out."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3))

    def forward(self, x, mask=None, scale=None):
        h = torch.einsum("rti,io->rto", x, self.w)  # no row dimension fits in: it runs generically
        h = h if scale is None else h * scale[:, None, None]
        return h if mask is None else h * mask[..., None]


def test_a_generic_model_that_is_called_in_another_way_later():
    torch.manual_seed(0)
    model, x, mask, scale = Optional(), torch.randn(6, 5, 4), torch.rand(6, 5), torch.rand(6)
    engine = installed(model)
    for named in ({}, {"mask": mask}, {"mask": mask, "scale": scale}, {"scale": scale, "mask": mask}, {}):
        got = recorded(engine, model, x, **named)
        engine.remove()
        want = true_norms(model, x, **named)
        engine.install()
        torch.testing.assert_close(got, want, rtol=1e-5, atol=0)


def test_a_generic_module_inside_that_is_called_in_another_way_later_is_refused():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.mask = Optional(), None

        def forward(self, x):
            return self.inner(x, self.mask)

    torch.manual_seed(0)
    model, x = Sometimes(), torch.randn(6, 5, 4)
    engine = installed(model)
    recorded(engine, model, x)
    model.mask = torch.rand(6, 5)
    with pytest.raises(Unsupported, match="called with other arguments"):
        recorded(engine, model, x)


class Branch(Net):
    """A layer that the first batch does not reach."""

    late = places_first = False

    def forward(self, x):
        h = self.a(x)
        if self.late:
            h = self.b(h.transpose(0, 1)).transpose(0, 1) if self.places_first else self.b(h)
        return self.c(h.mean(1))


@pytest.mark.parametrize("places_first", [False, True])
def test_a_layer_that_the_first_batch_did_not_reach(places_first):
    torch.manual_seed(0)
    model = Branch()
    engine = installed(model)
    recorded(engine, model, torch.randn(6, 5, 7))
    model.late, model.places_first = True, places_first
    x = torch.randn(6, 5, 7)
    got = recorded(engine, model, x)
    with pytest.raises(Unsupported, match="was not called for the first batch"):  # a square batch: which is which?
        recorded(engine, model, torch.randn(5, 5, 7))
    engine.remove()
    torch.testing.assert_close(got, true_norms(model, x), rtol=1e-5, atol=0)


def test_a_forward_of_the_instances_own_is_used():
    torch.manual_seed(0)
    layer = nn.Linear(4, 2)
    layer.forward = lambda x: F.linear(x, layer.weight, layer.bias).relu() * 10
    assert_agrees(nn.Sequential(layer), (torch.randn(6, 4),), allow_generic=True)


def test_one_number_as_a_parameter():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.layer = nn.Parameter(torch.tensor(1.3)), nn.Linear(6, 4)

        def forward(self, x):
            return self.layer(x) * self.gate

    assert_agrees(Gate(), (torch.randn(7, 6),), allow_generic=True)


@pytest.mark.parametrize("value", [1e20, 1e38, float("inf"), float("nan")])
@pytest.mark.parametrize("row", [0, 1])
def test_the_first_records_may_be_bad(row, value):
    """What is found out about a model does not hang on a record that overflows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    x = torch.randn(8, 6)
    clean = recorded(engine := installed(model), model, x)
    engine.remove()
    x[row] = value
    got = recorded(installed(model), model, x)
    others = torch.arange(8) != row
    torch.testing.assert_close(got[others], clean[others])


def test_two_backward_passes_of_one_batch_are_refused():
    """Their gradients would have to be added before the norm is taken; together they could be sqrt(2) too long."""
    model = nn.Linear(4, 1)
    engine = installed(model)
    engine.open(3)
    x = torch.randn(3, 4)
    model(x).sum().backward()
    with pytest.raises(LoopMisuse, match="twice before"):
        model(x).sum().backward()
    with pytest.raises(LoopMisuse):
        engine.close()
    engine.open(3)  # two forward passes, and losses added: fine
    (model(x) + model(x)).sum().backward()
    torch.testing.assert_close(engine.close().norms, 2 * (x.square().sum(1) + 1).sqrt().double(), rtol=1e-5, atol=0)


def test_a_reentrant_checkpoint_is_refused_by_name():
    class Old(Net):
        def forward(self, x):
            return self.c(checkpoint(lambda h: self.b(torch.tanh(h)), self.a(x), use_reentrant=True).mean(1))

    model = Old()
    with pytest.raises(Unsupported, match="use_reentrant=False"):
        recorded(installed(model), model, torch.randn(5, 4, 7))


class Remembers(nn.Module):
    """A buffer that the forward pass changes: by the records, or by nothing but a count."""

    def __init__(self, by):
        super().__init__()
        self.layer, self.by = nn.Linear(4, 3), by
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen.mul_(0.9).add_(self.by(x))
        return self.layer(x)


def test_a_buffer_that_remembers_records_is_refused():
    torch.manual_seed(0)
    model = Remembers(lambda x: 0.1 * x.detach().mean(0))
    with pytest.raises(Unsupported, match="buffer or parameter 'seen'"):
        recorded(installed(model), model, torch.randn(6, 4))
    assert (model.seen == 0).all()
    counts = Remembers(lambda _: 1.0)
    recorded(installed(counts), counts, torch.randn(6, 4))
    assert (counts.seen == 1).all()


class MixesInTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        h = self.layer(x)
        return h - h.mean(0) if self.training else h


def test_a_model_is_looked_at_again_in_its_other_mode():
    model = MixesInTraining().eval()
    engine = installed(model)
    recorded(engine, model, torch.randn(6, 4))
    model.train()
    with pytest.raises(Unsupported, match="mixes examples"):
        recorded(engine, model, torch.randn(6, 4))


def test_a_model_that_is_random_by_itself_is_not_taken_for_one_that_mixes():
    class Jitters(Net):
        def forward(self, x):
            return self.c(self.a(x * (1 + random.random())).mean(1))

    model = Jitters()
    recorded(installed(model), model, torch.randn(5, 4, 7))
