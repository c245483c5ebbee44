"""Recurrent layers against the loop and against torch's own, on shapes and options made by hypothesis."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from clipwise.norms.bookkeeping import Bookkeeping
from clipwise.norms.layers.recurrent import forward
from clipwise.norms.loop import assert_agrees, per_example_gradients, squared_output
from clipwise.types import Unsupported

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": nn.RNN}


def make(kind, *sizes, **options):
    return KINDS[kind](*sizes, **options, **({"nonlinearity": kind} if KINDS[kind] is nn.RNN else {}))


class Tagger(nn.Module):
    """A recurrent layer whose outputs and last states all come out, rows first."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, *states):
        hx = None if not states else tuple(s.transpose(0, 1) for s in states)
        out, last = self.inner(x, hx if hx is None or isinstance(self.inner, nn.LSTM) else hx[0])
        last = last if isinstance(last, tuple) else (last,)
        return [out if self.inner.batch_first else out.transpose(0, 1), *(s.transpose(0, 1) for s in last)]


def run(model, inputs, *, retain=False, rows=None, notify=pytest.fail):
    """Norms and a weighted sum from the engine."""
    rows = rows or len(inputs[0])
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    engine = Bookkeeping(model, trainable, loss_reduction="sum", notify=notify)
    engine.install()
    try:
        engine.open(rows)
        squared_output(model(*inputs)).backward(retain_graph=retain)
        tape = engine.close()
        return tape.norms, tape.weighted_sum(torch.linspace(0.1, 1.7, rows))
    finally:
        engine.remove()


def sizes(layer, rows, steps):
    """Never as many steps as rows with time first: nobody could tell the two apart."""
    return (rows, steps) if layer.batch_first else (steps + (steps == rows), rows)


def untapped(out, *_, **__):
    return out


def layers():
    return st.fixed_dictionaries(
        {
            "kind": st.sampled_from(list(KINDS)),
            "sizes": st.tuples(st.integers(1, 4), st.integers(1, 4)),
            "num_layers": st.integers(1, 2),
            "bidirectional": st.booleans(),
            "batch_first": st.booleans(),
            "bias": st.booleans(),
        }
    ).map(lambda d: make(d.pop("kind"), *d.pop("sizes"), **d))


@settings(max_examples=40, deadline=None)
@given(layer=layers(), rows=st.integers(1, 4), steps=st.integers(1, 5), data=st.data())
def test_every_option(layer, rows, steps, data):
    names = [name for name, _ in layer.named_parameters()]
    frozen = data.draw(st.lists(st.sampled_from(names), max_size=len(names) - 1, unique=True))
    for name in frozen:
        layer.get_parameter(name).requires_grad_(False)
    shape = sizes(layer, rows, steps)
    x = torch.randn(*shape, layer.input_size)
    assert_agrees(Tagger(layer), (x,), rows_dim=0 if layer.batch_first else 1)


@settings(max_examples=30, deadline=None)
@given(
    layer=layers(), rows=st.integers(1, 4), steps=st.integers(1, 5), dropout=st.sampled_from([0, 0.4]), data=st.data()
)
def test_the_outputs_and_the_input_gradient_are_those_of_torch(layer, rows, steps, dropout, data):
    layer.double()
    layer.dropout = dropout
    depth = layer.num_layers * (1 + layer.bidirectional)
    shape = sizes(layer, rows, steps)
    x = torch.randn(*shape, layer.input_size, dtype=torch.double, requires_grad=True)
    hx = None
    if data.draw(st.booleans()):
        hx = tuple(torch.randn(depth, rows, layer.hidden_size, dtype=torch.double, requires_grad=True) for _ in "hc")
        hx = hx if isinstance(layer, nn.LSTM) else hx[0]
    leaves = [x, *([] if hx is None else hx if isinstance(hx, tuple) else [hx])]
    found = []
    for ours in (False, True):
        torch.manual_seed(0)
        out, last = forward(layer, untapped, x, hx) if ours else layer(x, hx)
        assert isinstance(last, tuple) == isinstance(layer, nn.LSTM)
        outs = [out, *(last if isinstance(last, tuple) else [last])]
        loss = sum((o.square() * torch.arange(1, o.numel() + 1).view(o.shape)).sum() for o in outs)
        found.append([t.detach() for t in (*outs, *torch.autograd.grad(loss, leaves))])
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10 * float(want.abs().max()))


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_between_layers(kind):
    model = Tagger(make(kind, 3, 4, num_layers=3, dropout=0.5, bidirectional=True, batch_first=True)).double()
    x = torch.randn(5, 4, 3, dtype=torch.double)
    params = list(model.parameters())

    def seeded(*inputs):
        torch.manual_seed(3)
        return model(*inputs)

    each = [torch.autograd.grad(squared_output([o[i : i + 1] for o in seeded(x)]), params) for i in range(5)]
    truth = torch.stack([torch.cat([g.flatten() for g in grads]).norm() for grads in each])
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum", notify=pytest.fail)
    engine.install()
    for _ in range(2):  # the first batch is probed, and draws other masks
        engine.open(5)
        squared_output(seeded(x)).backward()
        norms = engine.close().norms
    engine.remove()
    torch.testing.assert_close(norms, truth)


class Classifier(nn.Module):
    """Embedding, a first layer, one whose state comes from the features, an activation in place, and a head."""

    def __init__(self, kind):
        super().__init__()
        self.words = nn.Embedding(11, 3)
        self.first = make(kind, 3, 4, bidirectional=True)
        self.start = nn.Linear(2, 5)
        self.second = make(kind, 8, 5, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, tokens, features):
        x, _ = self.first(self.words(tokens.T))
        h = self.start(features).tanh().unsqueeze(0)
        x, last = self.second(x.relu_().transpose(0, 1), (h, 2 * h) if isinstance(self.second, nn.LSTM) else h)
        return self.head(x.mul_(2).mean(1)) + self.head(last[0][0] if isinstance(last, tuple) else last[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_with_states_from_elsewhere_and_changes_in_place(kind):
    assert_agrees(Classifier(kind), (torch.randint(0, 11, (4, 6)), torch.randn(4, 2)))


@pytest.mark.parametrize("kind", KINDS)
def test_called_twice(kind):
    class Twice(Tagger):
        def forward(self, x):
            out, last, *_ = super().forward(x)
            return super().forward(out.sin())[0] + last.mean(1, keepdim=True)

    assert_agrees(Twice(make(kind, 4, 4, batch_first=True)), (torch.randn(3, 5, 4),))


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_last_state(kind):
    class Last(Tagger):
        def forward(self, x):
            return super().forward(x)[-1]

    assert_agrees(Last(make(kind, 2, 3, batch_first=True, bidirectional=True)), (torch.randn(3, 5, 2),))


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_graph_and_tensors_saved_elsewhere_change_nothing(kind):
    class Away(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
                return self.inner(x)

    model = Tagger(make(kind, 3, 4, num_layers=2, batch_first=True, bidirectional=True))
    x = torch.randn(4, 5, 3)
    norms, sums = run(model, (x,))
    for other, options in ((model, {"retain": True}), (Away(model), {})):
        again, others = run(other, (x,), **options)
        torch.testing.assert_close(again, norms)
        torch.testing.assert_close(others, sums)


@pytest.mark.parametrize("kind", KINDS)
def test_under_activation_checkpointing(kind):
    class Net(nn.Sequential):
        thrifty = False

        def forward(self, x):
            x = self[0](x)
            return checkpoint(self[1], x, use_reentrant=False) if self.thrifty else self[1](x)

    model = Net(nn.Linear(2, 3), Tagger(make(kind, 3, 4, batch_first=True, bidirectional=True)))
    x = torch.randn(4, 5, 2)
    norms, sums = run(model, (x,))
    model.thrifty = True
    again, others = run(model, (x,))
    torch.testing.assert_close(again, norms, rtol=1e-5, atol=0)
    torch.testing.assert_close(others, sums, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_ghost", [True, False])
def test_a_bad_row_stays_alone(kind, by_ghost):
    steps, hidden = (2, 8) if by_ghost else (9, 2)  # the rule's choice
    model = Tagger(make(kind, 3, hidden, batch_first=True, bidirectional=True))
    x = torch.randn(4, steps, 3)
    run(model, (x,))
    bad = x.clone()
    bad[1, 1, 0] = float("nan")
    zero = torch.where(torch.arange(4) == 1, 0, torch.linspace(0.1, 1.7, 4))
    norms, sums = run(model, (bad,))
    assert norms.isfinite().tolist() == [True, False, True, True]
    truth = per_example_gradients(model, (x,), squared_output)
    for found, g in zip(sums, truth.values(), strict=True):
        torch.testing.assert_close(found, torch.einsum("r,r...->...", zero, g), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_ghost_norms_are_never_too_small(kind):
    """Steps whose gradients all but cancel: the Gram sum alone could fall below the truth."""
    model = Tagger(make(kind, 2, 6, batch_first=True))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1e-3)
    x = torch.full((8, 40, 2), 100.0)
    weights = torch.randn(8, 40, 6)
    weights -= weights.mean(1, keepdim=True)

    def cancelling(out):
        return (out[0] * weights.to(out[0])[: len(out[0])]).sum()

    trainable = dict(model.named_parameters())
    truth = torch.stack([g.flatten(1).square().sum(1) for g in _looped(model, x, weights).values()]).sum(0).sqrt()
    engine = Bookkeeping(model, trainable, loss_reduction="sum", notify=pytest.fail)
    engine._chooser.part = lambda call, saved, b: call.kernel.ghost(call, saved, b)
    engine.install()
    engine.open(8)
    cancelling(model(x)).backward()
    norms = engine.close().norms
    engine.remove()
    assert (norms >= truth * (1 - 1e-5)).all()


def _looped(model, x, weights):
    model = copy.deepcopy(model).double()
    grads = []
    for one, w in zip(x.double(), weights.double(), strict=True):
        grads.append(torch.autograd.grad((model(one[None])[0] * w).sum(), list(model.parameters())))
    return {i: torch.stack(column) for i, column in enumerate(zip(*grads, strict=True))}


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_measures_in_the_type_of_the_parameters(kind):
    class Cast(nn.Sequential):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    model = Tagger(make(kind, 3, 4, num_layers=2, batch_first=True))
    x = torch.randn(4, 5, 3)
    norms, _ = run(model, (x,))
    again, sums = run(Cast(model), (x,))
    torch.testing.assert_close(again, norms, rtol=1e-5, atol=0)
    assert all(s.dtype == torch.float32 for s in sums)


def test_projections_go_to_the_generic_engine():
    class Outputs(Tagger):
        def forward(self, x):
            return super().forward(x)[0]

    model = Outputs(nn.LSTM(3, 4, proj_size=2, batch_first=True))
    assert_agrees(model, (torch.randn(3, 2, 3),), allow_generic=True)


class Packing(nn.Module):
    """Rows of their own lengths; outputs and last states all come out, rows first."""

    def __init__(self, inner, enforce_sorted=False):
        super().__init__()
        self.inner, self.enforce_sorted = inner, enforce_sorted

    def forward(self, x, lengths, *states):
        hx = tuple(s.transpose(0, 1) for s in states) or None
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=self.enforce_sorted)
        out, last = self.inner(packed, hx if hx is None or isinstance(self.inner, nn.LSTM) else hx[0])
        out = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0]
        return [out, *(s.transpose(0, 1) for s in (last if isinstance(last, tuple) else (last,)))]


@settings(max_examples=30, deadline=None)
@given(
    layer=layers(),
    lengths=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    extra=st.integers(0, 2),
    given_states=st.booleans(),
)
def test_packed_sequences(layer, lengths, extra, given_states):
    rows = len(lengths)
    x = torch.randn(rows, max(lengths) + extra + (max(lengths) + extra == rows), layer.input_size)
    count = layer.num_layers * (1 + layer.bidirectional)
    states = [torch.randn(rows, count, layer.hidden_size)] * (2 if isinstance(layer, nn.LSTM) else 1)
    inputs = (x, torch.tensor(lengths), *(states if given_states else []))
    model = Packing(layer)
    want = [t.detach() for t in model(*inputs)]
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum", notify=pytest.fail)
    engine.install()
    engine.open(rows)
    for got, expected in zip(model(*inputs), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    engine.remove()
    assert_agrees(model, inputs)


@pytest.mark.parametrize("both", [False, True])
def test_packed_projections_are_run_row_by_row_where_they_are_packed(both):
    torch.manual_seed(0)
    model = Packing(nn.LSTM(3, 4, proj_size=2, batch_first=True, bidirectional=both))
    assert_agrees(model, (torch.randn(4, 5, 3), torch.tensor([3, 5, 2, 4])), allow_generic=True)


class Packed(nn.Module):
    """Takes a PackedSequence; returns one, or what it holds padded."""

    def __init__(self, inner, unpack):
        super().__init__()
        self.inner, self.unpack = inner, unpack

    def forward(self, x):
        out = self.inner(x)[0]
        return pad_packed_sequence(out, batch_first=True)[0].sum(1) if self.unpack else out


@pytest.mark.parametrize(
    ("layer", "unpack", "remedy"),
    [
        (nn.LSTM(3, 4, proj_size=2), True, "inner: it has no fast rule.*padded tensor and its lengths"),
        (nn.LSTM(3, 4), False, "unpack it in forward by torch.nn.utils.rnn.pad_packed_sequence"),
    ],
)
@pytest.mark.parametrize("lengths", [(3, 5, 2, 4), (1, 1, 1, 1)])  # with one step each, the rows look like a batch
def test_packed_sequences_whose_rows_cannot_be_told_are_refused(layer, unpack, remedy, lengths):
    packed = pack_sequence([torch.randn(n, 3) for n in lengths], enforce_sorted=False)
    with pytest.raises(Unsupported, match=remedy):
        run(Packed(layer, unpack), (packed,), rows=4)


def test_packed_sequences_that_are_sorted_already_cannot_be_looked_at():
    """The look puts a short row between two long ones; torch says itself what to do."""
    model = Packing(nn.GRU(3, 4, batch_first=True), enforce_sorted=True)
    with pytest.raises(RuntimeError, match="enforce_sorted=False"):
        run(model, (torch.randn(4, 5, 3), torch.tensor([2, 3, 3, 5]).flip(0)))


def test_single_sequences_are_refused():
    class Single(Tagger):
        def forward(self, x):
            return self.inner(x)[0]

    with pytest.raises(Unsupported, match="batch dimension"):
        run(Single(nn.GRU(3, 4)), (torch.randn(4, 3),))
