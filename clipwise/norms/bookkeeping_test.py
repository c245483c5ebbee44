"""The engine against the loop, on the things that break silently elsewhere; and its refusals."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from clipwise.norms import Bookkeeping
from clipwise.norms.kernels.kernel import Call, gram_squared_norms, sum_of_squares
from clipwise.norms.layers.conv import CONV
from clipwise.norms.layers.conv_layout import Geometry
from clipwise.norms.layers.embedding import EMBEDDING, Config
from clipwise.norms.loop import assert_agrees, per_example_gradients, squared_output
from clipwise.norms.record.recording import overlap as overlapping
from clipwise.norms.record.tape import Tape
from clipwise.types import LoopMisuse, Unsupported


class Net(nn.Module):
    """Subclasses give a forward over three linear layers on (rows, T, 7)."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(7, 8), nn.Linear(8, 8), nn.Linear(8, 3)


class CalledTwice(Net):
    def forward(self, x):
        return self.c(self.b(torch.relu(self.b(torch.tanh(self.a(x))))).mean(1))


class Tied(Net):
    def __init__(self):
        super().__init__()
        self.d = nn.Linear(8, 8)
        self.d.weight = self.b.weight

    def forward(self, x):
        return self.c(self.d(torch.tanh(self.b(self.a(x)))).mean(1))


class Functional(Net):
    def forward(self, x):
        return self.c(F.linear(torch.tanh(self.a(x)), self.b.weight).mean(1))


class FunctionalInside(nn.Module):
    """Only the module that holds the functional use runs generically; its neighbours keep their rules."""

    def __init__(self):
        super().__init__()
        self.before, self.inner, self.after = nn.Linear(7, 7), Functional(), nn.Linear(3, 3)

    def forward(self, x):
        return self.after(self.inner(self.before(x)))


class OwnParameter(Net):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        return self.c(self.b(self.a(x).mean(1) @ self.scale))


class Flattened(Net):
    def forward(self, x):
        h = self.a(x.reshape(-1, 7)).view(len(x), -1, 8)
        return self.c(self.b(h).mean(1))


class TimeFirst(Net):
    def forward(self, x):
        return self.c(self.b(self.a(x.transpose(0, 1))).mean(0))


class Residual(Net):
    def forward(self, x):
        h = self.a(x)
        h = h + F.relu_(self.b(h))
        return self.c(h.mean(1))


class Checkpointed(Net):
    def forward(self, x):
        h = self.a(x)
        return self.c(checkpoint(lambda h: self.b(torch.tanh(h)), h, use_reentrant=False).mean(1))


class UnusedLayer(Net):
    def forward(self, x):
        return self.c(self.a(x).mean(1))


class TwoOutputs(Net):
    def forward(self, x):
        h = self.a(x).mean(1)
        return {"logits": self.c(h), "hidden": (self.b(h),)}


class Looped(Net):
    """Data-dependent control flow: vmap cannot, the loop over rows can."""

    def forward(self, x):
        h = F.linear(x.mean(1), self.a.weight, self.a.bias)
        if float(h.detach().sum()) > 1e9:
            h = h * 2
        return self.c(h)


@pytest.mark.parametrize("kind", [CalledTwice, Tied, TimeFirst, Residual, Checkpointed, UnusedLayer, TwoOutputs])
def test_exact_without_fallback(kind):
    torch.manual_seed(0)
    assert_agrees(kind(), (torch.randn(5, 4, 7),))


@pytest.mark.parametrize("kind", [Functional, FunctionalInside, OwnParameter, Flattened, Looped])
def test_exact_with_fallback(kind):
    torch.manual_seed(0)
    assert_agrees(kind(), (torch.randn(5, 4, 7),), allow_generic=True)


def test_time_first_is_told_apart_even_where_rows_equal_length():
    torch.manual_seed(0)
    assert_agrees(TimeFirst(), (torch.randn(4, 4, 7),))


def test_fallback_covers_no_more_than_it_must():
    notices = []
    model = FunctionalInside()
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum", notify=notices.append)
    engine.install()
    engine.open(5)
    squared_output(model(torch.randn(5, 4, 7))).backward()
    engine.close()
    assert len(notices) == 1
    assert "inner (Functional)" in notices[0]
    assert "before" not in notices[0]


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 6), length=st.integers(1, 5), frozen=st.sets(st.sampled_from(["a", "b", "c"]), max_size=2))
def test_frozen_layers(rows, length, frozen):
    torch.manual_seed(0)
    model = Residual()
    for name in frozen:
        getattr(model, name).requires_grad_(False)
    assert_agrees(model, (torch.randn(rows, length, 7),))


def recorded(model, x, loss=squared_output, **options):
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum", **options)
    engine.install()
    try:
        engine.open(len(x))
        loss(model(x)).backward()
        return engine.close()
    finally:
        engine.remove()


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_bad_row_leaves_the_others_alone(generic, value):
    torch.manual_seed(0)
    model, x = Residual(), torch.randn(6, 4, 7)
    bad = x.clone()
    bad[2, 1, 3] = value
    weights = torch.ones(6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clean = recorded(model, torch.cat([x[:2], x[3:]]), generic=generic)
        tape = recorded(model, bad, generic=generic)
    assert not tape.norms[2].isfinite()
    torch.testing.assert_close(tape.norms[[0, 1, 3, 4, 5]], clean.norms)
    for a, b in zip(tape.weighted_sum(weights), clean.weighted_sum(torch.ones(5)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert bad[2, 1, 3].isnan() or bad[2, 1, 3] > 1e38  # the user's own batch is not touched


def test_several_weighted_sums_of_one_tape():
    torch.manual_seed(0)
    model, x = CalledTwice(), torch.randn(5, 4, 7)
    tape = recorded(model, x)
    one, two = torch.rand(5), torch.rand(5)
    for a, b, c in zip(tape.weighted_sum(one), tape.weighted_sum(two), tape.weighted_sum(one + two), strict=True):
        torch.testing.assert_close(a + b, c, rtol=1e-4, atol=1e-5)


def test_norms_are_never_below_the_truth_under_cancellation():
    """T terms that cancel: Gram matrices in float32 lose them, the guard does not."""
    torch.manual_seed(0)
    a = torch.randn(1, 1, 32).expand(1, 64, 32) * 1e3 + 1e-3 * torch.randn(1, 64, 32)
    b = torch.randn(1, 32, 16) * 1e3
    b = torch.cat([b, -b], 1) + 1e-3 * torch.randn(1, 64, 16)
    truth = torch.bmm(b.double().mT, a.double()).square().sum()
    assert float(gram_squared_norms(a, b)) >= float(truth) * (1 - 1e-3)


EPS = torch.finfo(torch.float32).eps
SLACK = Tape([torch.nn.Parameter(torch.zeros(1))], [], 1, 1.0).slack


@pytest.mark.parametrize("count", [1, 1000, 5000, 2**18 + 3, 2**22])
@pytest.mark.parametrize("value", [0.1, 0.3, 0.7])
def test_norms_of_long_rows_are_not_short(count, value):
    """Equal numbers are the worst case: their rounding errors all point the same way."""
    rows = torch.full((2, count), value)
    error = sum_of_squares(rows).double().sqrt() / rows.double().norm(dim=1) - 1
    assert error.abs().max() < SLACK / 4


@pytest.mark.parametrize(("a", "b"), [(0.1, 0.3), (0.3, 0.9), (0.7, 0.1)])
def test_grams_of_wide_layers_are_not_short(a, b):
    for wide in (256, 16384, 65536):
        got = gram_squared_norms(torch.full((1, 2, wide), a), torch.full((1, 2, wide), b)).double()
        truth = 4 * wide**2 * (torch.tensor(a).double() * torch.tensor(b).double()) ** 2
        assert (1 - SLACK) ** 2 < float(got / truth) < 1 + wide * EPS + SLACK


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 0.9])
def test_norms_over_many_places_and_tokens_are_not_short(value):
    """Whatever adds up a long row, with numbers whose rounding errors all point the same way."""
    conv = nn.Conv2d(1, 2, 3, bias=False)
    geo = Geometry((3, 3), (1, 1), (0, 0), (1, 1), 1)
    image, back = torch.full((1, 1, 34, 34), value), torch.full((1, 2, 32, 32), value)
    call = Call(CONV, {"weight": conv.weight}, geo)
    tokens = torch.arange(20_000).unsqueeze(0)
    apart = torch.full((1, 20_000, 4), value)
    apart[0, 0] = 1.01 * value
    lookup = Call(EMBEDDING, {"weight": nn.Embedding(20_000, 4).weight}, Config(None))
    for found, truth in [
        *((way(call, (image,), back), CONV.direct(call, (image,), back)) for way in (CONV.direct_part, CONV.ghost)),
        (EMBEDDING.sorted(lookup, (tokens,), apart), {"weight": apart}),
    ]:
        true = truth["weight"].double().norm()
        assert (1 - SLACK) * true < found.squared_norms.double().sqrt() < (1 + 10 * SLACK) * true


def test_half_precision_is_widened_for_norms_and_costs_little():
    torch.manual_seed(0)
    a, b = torch.randn(3, 64, 32).bfloat16(), torch.randn(3, 64, 16).bfloat16()
    truth = torch.bmm(b.double().mT, a.double()).square().sum((1, 2))
    torch.testing.assert_close(gram_squared_norms(a, b).double(), truth, rtol=1e-3, atol=0)
    torch.testing.assert_close(sum_of_squares(a).double(), a.double().square().sum((1, 2)), rtol=1e-5, atol=0)
    assert Tape([nn.Parameter(torch.zeros(1).bfloat16())], [], 1, 1.0).slack < 0.04


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.bag = nn.Embedding(9, 32), nn.EmbeddingBag(9, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(32, 3)

    def forward(self, x):
        return self.out(self.layer(self.embed(x)).mean(1) + self.bag(x))


@pytest.mark.parametrize("everything", [False, True], ids=["forward", "forward, backward and step"])
@pytest.mark.parametrize("kind", ["dense", "places", "tokens", "images", "recurrent", "tied", "generic"])
def test_autocast_rounds_neither_norms_nor_sums(kind, everything):
    """Inputs and output gradients are bfloat16; each example's part of a sum has the norm that it was given, to float32."""
    torch.manual_seed(0)
    model, x = {
        "dense": (nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), torch.randn(6, 8)),
        "places": (nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 4)), torch.randn(6, 5, 64)),
        "tokens": (Tokens(), torch.randint(0, 9, (6, 7))),
        "images": (nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten()), torch.randn(6, 1, 7, 7)),
        "recurrent": (Named(nn.GRU(8, 8, batch_first=True)), torch.randn(6, 5, 8)),
        "tied": (Tied(), torch.randn(6, 5, 7)),
        "generic": (Functional(), torch.randn(6, 5, 7)),
    }[kind]
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum", notify=lambda _: None)
    engine.install()
    engine.open(6)
    with torch.autocast("cpu", torch.bfloat16):
        loss = squared_output(model(x))
        if everything:
            loss.backward()
            tape = engine.close()
            sums = [tape.weighted_sum(one) for one in torch.eye(6)]
    if not everything:
        loss.backward()
        tape = engine.close()
        sums = [tape.weighted_sum(one) for one in torch.eye(6)]
    engine.remove()
    plain = per_example_gradients(model, (x,), squared_output)
    truth = torch.stack([g.flatten(1).square().sum(1) for g in plain.values()]).sum(0).sqrt()
    torch.testing.assert_close(tape.norms.float(), truth, rtol=0.1, atol=0)
    for norm, parts in zip(tape.norms, sums, strict=True):
        assert all(part.dtype == torch.float32 for part in parts)
        own = torch.stack([part.double().square().sum() for part in parts]).sum().sqrt()
        torch.testing.assert_close(own, norm, rtol=1e-5, atol=0)


class Named(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


def test_an_input_changed_in_place_is_caught():
    class Spoils(Net):
        def forward(self, x):
            h = self.a(x)
            out = self.b(h)
            h.mul_(2)
            return self.c((out + h).mean(1))

    with pytest.raises(RuntimeError, match="inplace operation"):
        recorded(Spoils(), torch.randn(5, 4, 7))


def test_the_model_must_be_called_itself():
    model = Residual()
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
    engine.install()
    engine.open(5)
    with pytest.raises(Unsupported, match="call the model itself"):
        model.a(torch.randn(5, 4, 7))


def test_a_batch_that_cannot_be_found_is_refused():
    model = Residual()
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
    engine.install()
    engine.open(5)
    with pytest.raises(Unsupported, match="one row a record"):
        model(torch.randn(9, 4, 7))


def test_an_output_without_rows_is_refused():
    class Scalar(Net):
        def forward(self, x):
            return self.a(x).sum()

    with pytest.raises(Unsupported, match="one output a row"):
        recorded(Scalar(), torch.randn(5, 4, 7))


def test_hooks_and_buffers_survive_the_probe():
    class Counts(Residual):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    model, seen = Counts(), []
    model.a.register_forward_hook(lambda _module, _args, out: seen.append(out.shape))
    before = torch.random.get_rng_state()
    recorded(model, torch.randn(5, 4, 7, generator=torch.Generator().manual_seed(1)))
    assert float(model.calls) == 1
    assert seen[-1] == (5, 4, 8)
    assert torch.equal(before, torch.random.get_rng_state())


def test_dropout_sees_the_same_mask_in_norms_and_output():
    """out = c h + bias with h after dropout: sum_j grad_c[k, j] c[k, j] = b_k (out_k - bias_k) only if both saw one mask."""

    class Drops(Net):
        def forward(self, x):
            self.out = self.c(F.dropout(F.linear(x.mean(1), self.a.weight), 0.5, training=True))
            return self.out

    torch.manual_seed(0)
    model, x = Drops(), torch.randn(1, 2, 7)
    kept = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tape = recorded(model, x, loss=lambda out: (kept.append(out.detach()), squared_output(out))[1])
    sums = dict(zip(dict(model.named_parameters()), tape.weighted_sum(torch.ones(1)), strict=True))
    b = sums["c.bias"]
    want = b * (kept[-1][0] - model.c.bias.detach())
    torch.testing.assert_close((sums["c.weight"] * model.c.weight.detach()).sum(1), want)


def test_a_model_that_sorts_its_rows_is_refused():
    class Sorts(Net):
        def forward(self, x):
            order = x[:, 0, 0].argsort()
            return self.c(self.b(self.a(x)[order])[order.argsort()].mean(1))

    for seed in range(4):
        x = torch.randn(6, 4, 7, generator=torch.Generator().manual_seed(seed))
        with pytest.raises(Unsupported, match="reorders"):
            recorded(Sorts(), x)


@pytest.mark.parametrize(
    ("pieces", "overlap"),
    [
        ([None], False),
        ([None, None], True),
        ([slice(0, 4), slice(4, 8)], False),
        ([slice(4, 8), slice(0, 4), slice(0, 4)], True),
        ([slice(0, 4), None], True),
        ([slice(0, 5), slice(4, 8)], True),
    ],
)
def test_overlapping_pieces(pieces, overlap):
    assert overlapping(pieces) is overlap


def test_reference_is_the_gradient_of_the_sum():
    torch.manual_seed(0)
    model, x = Residual().double(), torch.randn(5, 4, 7).double()
    each = per_example_gradients(model, (x,), squared_output)
    squared_output(model(x)).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(each[name].sum(0), p.grad)


def test_backward_after_the_batch_is_over():
    model = Residual()
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
    engine.install()
    engine.open(5)
    loss = squared_output(model(torch.randn(5, 4, 7)))
    engine.open(5)
    with pytest.raises(LoopMisuse, match="over"):
        loss.backward()


def two_linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_inputs_that_need_a_gradient_give_the_same_norms(needs_gradient):
    """Taps stand in the graph as hooks or as nodes of their own; where the inputs need a gradient, all as nodes."""
    model, x = two_linear(), torch.randn(5, 4)
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
    engine.install()
    engine.open(5)
    given = x.clone().requires_grad_(needs_gradient)
    model(given).square().sum().backward()
    norms = engine.close().norms
    engine.remove()
    assert not needs_gradient or given.grad is not None
    for i in range(5):
        own = torch.autograd.grad(model(x[i : i + 1]).square().sum(), list(model.parameters()))
        assert float(norms[i]) == pytest.approx(float(sum(g.square().sum() for g in own)) ** 0.5, rel=1e-5)


def test_a_gradient_by_a_way_that_the_look_did_not_take_is_refused(monkeypatch):
    """Were a hook's node not run in the trial (its inputs lead to no tap of ours), its gradient would be taken unseen."""
    model = two_linear()
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
    monkeypatch.setattr("clipwise.norms.bookkeeping._need_gradients", lambda *_: False)
    engine.install()
    engine.open(5)
    with pytest.raises(LoopMisuse, match="by a way that was not seen"):
        model(torch.randn(5, 4).requires_grad_()).square().sum().backward()
    engine.remove()
