"""Normalisation layers against the loop, and against torch's own forward."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from clipwise.norms.kernels.kernel import Call
from clipwise.norms.layers import norm as norms
from clipwise.norms.layers.norm import LAYER_NORM, batch_norm
from clipwise.norms.layers.registry import find_layer
from clipwise.norms.loop import assert_agrees


def freeze(module, role):
    if role is not None and getattr(module, role, None) is not None:
        getattr(module, role).requires_grad_(False)


def with_random_affine(module):
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn_like(p))
    return module


def model_of(norm, channels, after=lambda: nn.ReLU(inplace=True)):
    """The norm between a trainable layer, to which its input's gradient must be right, and an in-place activation."""
    return nn.Sequential(nn.Linear(channels, channels), norm, after())


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 4),
    middle=st.lists(st.integers(1, 4), max_size=2),
    shape=st.lists(
        st.integers(2, 5), min_size=1, max_size=2
    ),  # of one number layer norm makes nothing but rounding errors
    kind=st.sampled_from([nn.LayerNorm, nn.RMSNorm]),
    frozen=st.sampled_from([None, "weight", "bias"]),
)
def test_layer_and_rms_norm(rows, middle, shape, kind, frozen):
    assume(rows == 1 or middle[:1] != [rows])  # or nothing could tell rows from places
    norm = with_random_affine(kind(shape, eps=1e-3))
    freeze(norm, frozen)
    assert_agrees(model_of(norm, shape[-1]), (torch.randn(rows, *middle, *shape),))


def test_large_layer_norm_has_two_ways(monkeypatch):
    """Large enough that the row by row way is offered; assert_agrees tries both."""
    monkeypatch.setattr(norms, "MANY_NUMBERS", 3 * 130 * 128)
    torch.manual_seed(0)
    norm = with_random_affine(nn.LayerNorm(128))
    x = torch.randn(3, 130, 128)
    call = Call(LAYER_NORM, dict(norm.named_parameters()))
    assert len(LAYER_NORM.candidates(call, (x, x[..., :1], x[..., :1]), x)) == 2
    assert_agrees(nn.Sequential(norm, nn.Tanh()), (x,))
    norm.bias.requires_grad_(False)
    assert_agrees(nn.Sequential(norm, nn.Tanh()), (x,))


def test_layer_norm_without_bias():
    assert_agrees(nn.Sequential(with_random_affine(nn.LayerNorm(6, bias=False)), nn.Tanh()), (torch.randn(3, 4, 6),))


class TimeFirst(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return torch.tanh(self.norm(x.transpose(0, 1))).transpose(0, 1)


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_time_first(kind):
    assert_agrees(TimeFirst(with_random_affine(kind(6))), (torch.randn(3, 4, 6),))


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 4),
    groups=st.integers(1, 3),
    in_group=st.integers(1, 3),
    space=st.lists(st.integers(2, 4), max_size=3),
    frozen=st.sampled_from([None, "weight", "bias"]),
)
def test_group_norm(rows, groups, in_group, space, frozen):
    in_group = in_group if space else in_group + 1
    norm = with_random_affine(nn.GroupNorm(groups, groups * in_group, eps=1e-3))
    freeze(norm, frozen)
    shape = (groups * in_group, *space)
    assert_agrees(model_of(norm, shape[-1]), (torch.randn(rows, *shape),))


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 4), channels=st.integers(1, 4), dims=st.integers(1, 3), frozen=st.sampled_from([None, "bias"])
)
def test_instance_norm(rows, channels, dims, frozen):
    kind = [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d][dims - 1]
    norm = with_random_affine(kind(channels, affine=True, eps=1e-3))
    freeze(norm, frozen)
    assert_agrees(model_of(norm, 3), (torch.randn(rows, channels, *[3] * dims),))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = with_random_affine(nn.GroupNorm(2, 4)), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu_(self.norm(torch.tanh(self.norm(x)))).mean((2, 3)))


def test_called_twice_in_a_small_network():
    torch.manual_seed(0)
    assert_agrees(Network(), (torch.randn(3, 4, 5, 5),))


def test_channels_last_input_is_folded_right():
    """Not against torch's own backward pass: it crashes on some gradients in this format."""
    torch.manual_seed(0)
    norm, x = with_random_affine(nn.GroupNorm(2, 4)), torch.randn(3, 4, 5, 5)
    grads = []

    def tap(out, *_, **__):
        out.requires_grad_().register_hook(grads.append)
        return out

    outs = [find_layer(norm).forward(norm, tap, y) for y in (x, x.contiguous(memory_format=torch.channels_last))]
    for out in outs:
        out.square().sum().backward()
    torch.testing.assert_close(outs[0], outs[1])
    assert len(grads) == 4
    torch.testing.assert_close(sorted(g.sum() for g in grads[:2]), sorted(g.sum() for g in grads[2:]))


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.LayerNorm(8), (3, 5, 8)),
        (nn.RMSNorm(8), (3, 5, 8)),
        (nn.GroupNorm(2, 8), (3, 8, 5)),
        (nn.InstanceNorm2d(8, affine=True), (3, 8, 5, 5)),
    ],
)
def test_forward_is_torch_s_own(norm, shape):
    norm, x = with_random_affine(norm), torch.randn(*shape)
    rule = find_layer(norm)
    out = rule.forward(norm, lambda out, *_, **__: out, x)
    torch.testing.assert_close(out, norm(x))
    assert not out._is_view()  # an in-place activation then costs nothing


def test_a_row_with_nan_stays_alone():
    x, b = torch.randn(3, 4, 6), torch.randn(3, 4, 6)
    b[1] = torch.nan
    norm = nn.LayerNorm(6)
    _, mean, rstd = torch.native_layer_norm(x, [6], norm.weight, norm.bias, 1e-5)
    call = Call(LAYER_NORM, dict(norm.named_parameters()))
    for way in (LAYER_NORM.by_row, LAYER_NORM.direct_part):
        assert way(call, (x, mean.detach(), rstd.detach()), b).squared_norms.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (nn.BatchNorm1d, (5, 4)),
        (nn.BatchNorm1d, (5, 4, 3)),
        (nn.BatchNorm2d, (5, 4, 3, 2)),
        (nn.BatchNorm3d, (2, 4, 3, 2, 3)),
    ],
)
@pytest.mark.parametrize("frozen", [None, "weight", "bias"])
def test_batch_norm_in_eval_mode(kind, shape, frozen):
    """Fine-tuning by statistics of public data: row-wise, with torch's own output."""
    torch.manual_seed(0)
    norm = with_random_affine(kind(shape[1]))
    norm(3 * torch.randn(shape) + 1)
    norm.eval()
    x = torch.randn(shape)
    torch.testing.assert_close(batch_norm(norm, lambda out, *_, **__: out, x), norm(x))
    freeze(norm, frozen)
    assert_agrees(
        nn.Sequential(nn.Sequential(norm, nn.ReLU(inplace=True)), nn.Flatten(), nn.Linear(x[0].numel(), 2)), (x,)
    )
