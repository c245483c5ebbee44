"""Attention against torch's own module (outputs) and against the loop (gradients), alone and inside transformers."""

import warnings

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from clipwise.norms import Bookkeeping
from clipwise.norms.layers.registry import find_layer
from clipwise.norms.loop import assert_agrees, squared_output
from clipwise.types import Unsupported

WIDTH, HEADS, ROWS = 8, 2, 3
MORE_KEYS = st.fixed_dictionaries({"add_bias_kv": st.booleans(), "add_zero_attn": st.booleans()})


def with_random_biases(module):
    """torch starts biases at zero, where a wrong piece of a packed bias would not be seen."""
    with torch.no_grad():
        for p in module.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p))
    return module


def padding(rows, length):
    """The last places of each row, never all; a different number in each."""
    return torch.arange(length).expand(rows, length) >= 1 + torch.arange(rows).unsqueeze(1) % length


def causal(length, kind):
    blocked = torch.ones(length, length, dtype=torch.bool).triu(1)
    return blocked if kind == "bool" else torch.zeros(length, length).masked_fill(blocked, -torch.inf)


def untapped(out, *_, **__):
    return out


@settings(max_examples=60, deadline=None)
@given(
    batch_first=st.booleans(),
    length=st.integers(1, 4),
    other=st.sampled_from(["self", "key is value", "all apart", "other widths"]),
    mask=st.sampled_from([None, "bool", "float", "each head", "causal hint"]),
    padded=st.sampled_from([None, "bool", "float"]),
    need_weights=st.booleans(),
    average=st.booleans(),
    training=st.booleans(),
    bias=st.booleans(),
    more=MORE_KEYS,
)
def test_outputs_are_torch_s_own(batch_first, length, other, mask, padded, need_weights, average, training, bias, more):
    assume(mask is None or padded is None or (mask == "bool") == (padded == "bool"))  # torch warns of mixed masks
    torch.manual_seed(0)
    widths = {"kdim": 5, "vdim": 6} if other == "other widths" else {}
    module = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=batch_first, **widths, **more).train(training)
    with_random_biases(module)
    source = length if other == "self" or mask in ("bool", "float", "causal hint") else length + 1
    q = torch.randn(ROWS, length, WIDTH)
    k = torch.randn(ROWS, source, widths.get("kdim", WIDTH))
    v = torch.randn(ROWS, source, widths.get("vdim", WIDTH))
    if not batch_first:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    k, v = (q, q) if other == "self" else (k, k if other == "key is value" else v)
    options = {"need_weights": need_weights, "average_attn_weights": average}
    if mask == "each head":
        options["attn_mask"] = torch.randn(ROWS * HEADS, length, source)
    elif mask is not None:
        options |= {"attn_mask": causal(length, mask), "is_causal": mask == "causal hint"}
    if padded:
        blocked = padding(ROWS, source)
        options["key_padding_mask"] = blocked if padded == "bool" else blocked * -2.5
    want, want_weights = module(q, k, v, **options)
    out, weights = find_layer(module).forward(module, untapped, q, k, v, **options)
    torch.testing.assert_close(out, want)
    assert (weights is None) == (want_weights is None)
    if weights is not None:
        torch.testing.assert_close(weights, want_weights)


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_query_that_may_look_at_nothing_is_as_in_torch(need_weights):
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    x, blocked = torch.randn(2, 3, WIDTH), torch.tensor([[False, False, True], [True, True, True]])
    options = {"key_padding_mask": blocked, "need_weights": need_weights}
    want, _ = module(x, x, x, **options)
    out, _ = find_layer(module).forward(module, untapped, x, x, x, **options)
    torch.testing.assert_close(out, want, equal_nan=True)


class Attends(nn.Module):
    """Attention among what a linear layer makes of the input, so that the gradients of q, k and v all matter."""

    def __init__(self, other="self", need_weights=True, is_causal=False, bias=True, batch_first=True, **more):
        super().__init__()
        widths = {"kdim": 5, "vdim": 6} if other == "other widths" else {}
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=batch_first, **widths, **more)
        with_random_biases(self.attention)
        self.before, self.key, self.value = (
            nn.Linear(4, WIDTH),
            *(nn.Linear(4, widths.get(w, WIDTH)) for w in ("kdim", "vdim")),
        )
        self.other, self.batch_first = other, batch_first
        self.options = {"need_weights": need_weights, "is_causal": is_causal}

    def forward(self, x, blocked=None):
        x = x if self.batch_first else x.transpose(0, 1)
        q = torch.tanh(self.before(x))
        k, v = (q, q) if self.other == "self" else (self.key(x), self.value(x))
        v = k if self.other == "key is value" else v
        length = q.shape[1] if self.batch_first else q.shape[0]
        mask = causal(length, "float").to(q) if self.options["is_causal"] else None
        out, weights = self.attention(q, k, v, key_padding_mask=blocked, attn_mask=mask, **self.options)
        out = out.relu_() if self.batch_first else out.transpose(0, 1)
        return out if weights is None else (out, weights)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 4),
    length=st.integers(1, 4),
    other=st.sampled_from(["self", "key is value", "all apart", "other widths"]),
    need_weights=st.booleans(),
    is_causal=st.booleans(),
    padded=st.booleans(),
    batch_first=st.booleans(),
    bias=st.booleans(),
    frozen=st.sampled_from([None, "in_proj_bias", "in_proj_weight", "out_proj.weight", "out_proj.bias", "bias_k"]),
    more=MORE_KEYS,
)
def test_gradients(rows, length, other, need_weights, is_causal, padded, batch_first, bias, frozen, more):
    torch.manual_seed(0)
    model = Attends(other, need_weights, is_causal, bias, batch_first, **more)
    for name, p in model.attention.named_parameters():
        p.requires_grad_(name != frozen)
    blocked = ((padding(rows, length) * -2.5).double(),) if padded else ()
    assert_agrees(model, (torch.randn(rows, length, 4), *blocked))


def test_called_twice_and_tied_to_another_attention():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = (nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in range(2))
            self.two.in_proj_weight = self.one.in_proj_weight

        def forward(self, x, y):
            x = self.one(x, x, x)[0] + self.one(x, y, y)[0]  # the packed weight whole, and in pieces
            return self.two(x, x, x)[0]

    torch.manual_seed(0)
    assert_agrees(Model(), (torch.randn(3, 4, WIDTH), torch.randn(3, 2, WIDTH)))


def test_a_parametrized_out_projection_is_generic():
    module = nn.MultiheadAttention(WIDTH, HEADS)
    nn.utils.parametrizations.weight_norm(module.out_proj)
    assert find_layer(module) is None


def test_one_example_without_a_batch_is_refused():
    module = nn.MultiheadAttention(WIDTH, HEADS)
    x = torch.randn(3, WIDTH)
    with pytest.raises(Unsupported, match="batch"):
        find_layer(module).forward(module, untapped, x, x, x)


def test_attention_across_the_batch_is_refused():
    """The classic slip: batch_first forgotten, so that examples attend to each other."""
    model = Attends(need_weights=False)
    model.attention.batch_first = False
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
    engine.install()
    engine.open(3)
    with pytest.raises(Unsupported, match="mixes examples"):
        model(torch.randn(3, 5, 4))


class Encoder(nn.Module):
    def __init__(self, is_causal=False, layers=1, **options):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 6, dropout=0.0, **options)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=options.get("batch_first", False))
        with_random_biases(self)
        self.is_causal, self.batch_first = is_causal, options.get("batch_first", False)

    def forward(self, x, blocked=None):
        x = x if self.batch_first else x.transpose(0, 1)
        mask = causal(x.shape[1 if self.batch_first else 0], "bool") if self.is_causal else None
        out = self.encoder(x, mask=mask, src_key_padding_mask=blocked)
        return out if self.batch_first else out.transpose(0, 1)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but")
@settings(max_examples=12, deadline=None)
@given(
    batch_first=st.booleans(),
    norm_first=st.booleans(),
    activation=st.sampled_from(["relu", "gelu"]),
    is_causal=st.booleans(),
    padded=st.booleans(),
    training=st.booleans(),
    bias=st.booleans(),
)
def test_encoder(batch_first, norm_first, activation, is_causal, padded, training, bias):
    """In eval mode torch has fast paths past the layers (fused, nested tensors); they must not be taken."""
    torch.manual_seed(0)
    options = {"batch_first": batch_first, "norm_first": norm_first, "activation": activation, "bias": bias}
    model = Encoder(is_causal, 2, **options).train(training)
    blocked = (padding(3, 4),) if padded else ()
    assert_agrees(model, (torch.randn(3, 4, WIDTH), *blocked))


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer(batch_first, norm_first):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Transformer(
                WIDTH, HEADS, 1, 1, 6, dropout=0.0, batch_first=batch_first, norm_first=norm_first
            )
            with_random_biases(self)

        def forward(self, source, target, blocked):
            if not batch_first:
                source, target = source.transpose(0, 1), target.transpose(0, 1)
            mask = causal(4, "bool")
            out = self.inner(
                source, target, tgt_mask=mask, src_key_padding_mask=blocked, memory_key_padding_mask=blocked
            )
            return out if batch_first else out.transpose(0, 1)

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "enable_nested_tensor is True, but")
        model = Model()
    assert_agrees(model, (torch.randn(3, 5, WIDTH), torch.randn(3, 4, WIDTH), padding(3, 5)))


def test_dropout_in_training_runs():
    model = Encoder(batch_first=True, layers=2)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.3
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
    engine.install()
    engine.open(3)
    squared_output(model(torch.randn(3, 4, WIDTH))).backward()
    assert engine.close().norms.isfinite().all()
