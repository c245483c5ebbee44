"""Convolutions against the loop, on shapes and options made by hypothesis."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from clipwise.norms.bookkeeping import Bookkeeping
from clipwise.norms.kernels.kernel import Call
from clipwise.norms.layers import conv, conv_layout, find_layer
from clipwise.norms.loop import assert_agrees
from clipwise.types import Unsupported

pytestmark = pytest.mark.filterwarnings(
    "ignore:Using padding='same' with even kernel lengths"
)  # torch's own forward says so
KINDS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@pytest.fixture(autouse=True)
def every_way(monkeypatch):
    """All the ways for every shape: which of them are worth offering is a matter of speed only."""

    def ways(self, call, saved, b):  # noqa: ARG001
        if "weight" not in call.params:
            return {"direct": self.direct_part}
        ways = {"direct": self.direct_part, "in blocks": self.in_blocks}
        if call.config.groups == 1:
            ways |= {"direct as one image": self.as_one_image, "ghost": self.ghost}
            ways |= {"ghost, summed by torch": self.ghost_by_torch}
        return ways

    monkeypatch.setattr(conv.ConvKernel, "candidates", ways)


@st.composite
def cases(draw, dims):
    def numbers(low, high):
        return tuple(draw(st.lists(st.integers(low, high), min_size=dims, max_size=dims)))

    groups = draw(st.sampled_from([1, 1, 2, 3]))
    kernel, dilation = numbers(1, 4 if dims < 3 else 3), numbers(1, 2)
    padding = draw(st.one_of(st.sampled_from(["same", "valid"]), st.just(numbers(0, 2))))
    return {
        "rows": draw(st.integers(1, 4)),
        "size": [d * (k - 1) + draw(st.integers(1, 4)) for k, d in zip(kernel, dilation, strict=True)],
        "in_channels": groups * draw(st.integers(1, 3)),
        "out_channels": groups * draw(st.integers(1, 3)),
        "kernel_size": kernel,
        "stride": (1,) * dims if padding == "same" else numbers(1, 3),
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding_mode": draw(st.sampled_from(["zeros", "zeros", "replicate", "circular"])),
        "frozen": draw(st.sampled_from([None, None, "weight", "bias"])),
        "buffer": draw(st.sampled_from([1, 2000, conv.PATCH_BYTES])),
        "short_run": draw(st.sampled_from([0, conv_layout.SHORT_RUN])),
        "strips": draw(st.booleans()),
    }


def check(dims, case):
    rows, size, frozen, buffer, short_run, by_strips = (
        case.pop(name) for name in ("rows", "size", "frozen", "buffer", "short_run", "strips")
    )
    case["bias"] |= frozen is not None
    if case["padding_mode"] == "circular" and not isinstance(case["padding"], str):
        case["padding"] = tuple(min(p, n) for p, n in zip(case["padding"], size, strict=True))
    layer = KINDS[dims](**case)
    if frozen:
        getattr(layer, frozen).requires_grad_(False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv, "PATCH_BYTES", buffer)  # few rows at a time, or all
        patch.setattr(conv, "GRAM_BYTES", buffer)
        patch.setattr(conv, "STRIP_BYTES", buffer)
        patch.setattr(conv_layout, "SHORT_RUN", short_run)
        if by_strips:
            patch.setattr(conv, "LONG_STRIP", 0)
            patch.setattr(conv, "MANY_PLACES", 0)
        assert_agrees(nn.Sequential(layer, nn.Tanh()), (torch.randn(rows, layer.in_channels, *size),))


@settings(max_examples=30, deadline=None)
@given(case=cases(1))
def test_conv1d(case):
    check(1, case)


@settings(max_examples=40, deadline=None)
@given(case=cases(2))
def test_conv2d(case):
    check(2, case)


@settings(max_examples=20, deadline=None)
@given(case=cases(3))
def test_conv3d(case):
    check(3, case)


@st.composite
def grey_cases(draw):
    """Stride 2 over grey images, whose blocks of pixels are taken as channels."""
    kernel = tuple(draw(st.sampled_from([4, 6, 8])) for _ in range(2))
    return {
        "rows": draw(st.integers(1, 4)),
        "size": [k + draw(st.integers(0, 9)) for k in kernel],
        "in_channels": 1,
        "out_channels": draw(st.integers(1, 3)),
        "kernel_size": kernel,
        "stride": 2,
        "padding": draw(st.tuples(st.integers(0, 5), st.integers(0, 5))),
        "bias": draw(st.booleans()),
        "padding_mode": draw(st.sampled_from(["zeros", "zeros", "circular"])),
        "frozen": draw(st.sampled_from([None, "bias"])),
        "buffer": draw(st.sampled_from([1, 2000, conv.PATCH_BYTES])),
        "short_run": conv_layout.SHORT_RUN,
        "strips": draw(st.booleans()),
    }


@settings(max_examples=40, deadline=None)
@given(case=grey_cases())
def test_folded(case):
    with pytest.MonkeyPatch.context() as patch:
        calls = []
        patch.setattr(conv, "fold", lambda *args: calls.append(args) or conv_layout.fold(*args))
        check(2, case)
        assert calls


def test_strips_are_views_of_one_copy():
    """A copy for each tap would be as much as the patches."""
    x, geo, places = torch.randn(3, 2, 9, 7), conv.Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1), torch.Size((9, 7))
    for rows_inside in (False, True):
        found = conv.strips(x, geo, places, rows_inside=rows_inside)
        assert len(found) == 3
        assert len({strip.untyped_storage().data_ptr() for strip in found}) == 1


@st.composite
def padded_cases(draw, dims):
    """Images smaller than the kernel: taps that meet padding alone."""
    made = []
    for _ in range(dims):
        size, kernel, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
        least = max(0, (dilation * (kernel - 1) + 2 - size) // 2)
        made.append((size, kernel, dilation, least + draw(st.integers(0, 3)), draw(st.integers(1, 4))))
    size, kernel, dilation, padding, stride = zip(*made, strict=True)
    groups = draw(st.sampled_from([1, 1, 2]))
    return {
        "rows": draw(st.integers(1, 3)),
        "size": size,
        "in_channels": groups * draw(st.integers(1, 2)),
        "out_channels": groups * draw(st.integers(1, 2)),
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding_mode": "zeros",
        "frozen": None,
        "buffer": conv.PATCH_BYTES,
        "short_run": conv_layout.SHORT_RUN,
        "strips": draw(st.booleans()),
    }


@settings(max_examples=40, deadline=None)
@given(case=st.integers(1, 3).flatmap(lambda dims: st.tuples(st.just(dims), padded_cases(dims))))
def test_taps_that_meet_only_padding(case):
    check(*case)


@settings(max_examples=200, deadline=None)
@given(case=padded_cases(2))
def test_live_taps_are_those_that_an_image_of_ones_reaches(case):
    kernel, stride, padding, dilation = (case[k] for k in ("kernel_size", "stride", "padding", "dilation"))
    geo = conv.Geometry(kernel, stride, padding, dilation, 1)
    layer = nn.Conv2d(1, 1, kernel, stride, padding, dilation)
    layer(torch.ones(1, 1, *case["size"])).sum().backward()
    reached = layer.weight.grad[0, 0] > 0
    live = conv._live(geo, case["size"]) or tuple(slice(0, k) for k in kernel)
    if not reached.any():
        assert live == tuple(slice(0, k) for k in kernel)
        return
    for dim, taps in enumerate(live):
        found = reached.any(1 - dim).nonzero().flatten().tolist()
        assert (taps.start, taps.stop) == (found[0], found[-1] + 1)


@pytest.mark.parametrize(
    ("size", "within"), [((1, 1), ((1, 2, 3), (1, 2, 3))), ((1, 4), ((1, 2, 3), (0, 3, 3))), ((2, 2), None)]
)
def test_a_small_image_is_convolved_by_the_taps_that_meet_it(size, within):
    layer, seen = nn.Conv2d(2, 3, 3, padding=1), []
    x = torch.randn(4, 2, *size)

    def tap(out, kernel, params, saved, geo, rows_dim):  # noqa: ARG001
        seen.append((saved[0], geo))
        return out

    out = find_layer(layer).forward(layer, tap, x)
    [(kept, geo)] = seen
    torch.testing.assert_close(out, layer(x))
    assert geo.within == within
    assert hash(geo) == hash(geo._replace())  # a call's config is part of the key of a choice
    assert kept.data_ptr() == x.data_ptr() or within == ((1, 2, 3), (0, 3, 3))
    for weighted in (conv._weighted_gradient, conv._weighted_by_torch):
        assert weighted(torch.ones(4), kept, out.detach(), geo).shape == layer.weight.shape


def test_every_dimension_has_its_own_options():
    layer = nn.Conv3d(2, 3, (2, 1, 3), stride=(3, 1, 2), padding=(1, 2, 0), dilation=(1, 2, 1))
    assert_agrees(nn.Sequential(layer, nn.Tanh()), (torch.randn(3, 2, 7, 4, 8),))
    layer = nn.Conv2d(2, 3, (2, 3), stride=(3, 1), padding=(0, 1), dilation=(2, 1))
    assert_agrees(nn.Sequential(layer, nn.Tanh()), (torch.randn(3, 2, 9, 6),))


def test_in_a_model_with_in_place_activations():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding="same", groups=2),
        nn.ELU(inplace=True),
        nn.Conv2d(6, 5, 1),
        nn.Flatten(),
        nn.Linear(5 * 4 * 4, 3),
    )
    assert_agrees(model, (torch.randn(5, 1, 16, 16),))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        return self.conv(torch.tanh(self.conv(x)))


def test_called_twice():
    assert_agrees(Twice(), (torch.randn(4, 3, 5, 6),))


def test_channels_last_input_and_options_set_after_construction():
    layer = nn.Conv2d(3, 4, 3)
    layer.stride, layer.padding, layer.dilation = 2, 2, (2, 1)  # torch takes single numbers here too
    assert_agrees(
        nn.Sequential(layer, nn.Tanh()), (torch.randn(4, 3, 7, 8).contiguous(memory_format=torch.channels_last),)
    )


class Standardized(nn.Conv2d):
    """Another function of its weight than nn.Conv2d, with nn.Conv2d's own `forward`."""

    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight - weight.mean(), bias)


def test_other_functions_go_generic():
    assert find_layer(nn.Conv2d(1, 1, 3)) is not None
    assert find_layer(Standardized(1, 1, 3)) is None
    assert find_layer(nn.ConvTranspose2d(1, 1, 3)) is None
    assert_agrees(nn.Sequential(Standardized(2, 3, 3), nn.Tanh()), (torch.randn(3, 2, 5, 5),), allow_generic=True)


def test_refuses_an_input_without_a_batch():
    layer = nn.Conv2d(2, 3, 1)
    forward = find_layer(layer).forward
    with pytest.raises(Unsupported, match="batch dimension"):
        forward(layer, lambda out, *_, **__: out, torch.randn(2, 5, 5))


def parts(layer, x, b):
    """Every way's part."""
    geo = conv.Geometry(layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups)
    call = Call(conv.CONV, {"weight": layer.weight, "bias": layer.bias}, geo)
    return {name: way(call, (x,), b) for name, way in conv.CONV.candidates(call, (x,), b).items()}


@pytest.mark.parametrize("groups", [1, 3])
def test_a_bad_row_stays_alone(groups):
    layer = nn.Conv2d(3, 3, 3, padding=1, groups=groups)
    x, b = torch.randn(5, 3, 6, 6), torch.randn(5, 3, 6, 6)
    bad = torch.arange(5) == 2
    clean = parts(layer, x[~bad], b[~bad])
    x[2, 1, 3, 3] = torch.nan
    for name, part in parts(layer, x, b).items():
        assert part.squared_norms[2].isnan(), name
        torch.testing.assert_close(part.squared_norms[~bad], clean[name].squared_norms, rtol=1e-5, atol=0)  # of float32
        part.drop_rows(bad)
        want = clean[name].weighted_sum(torch.ones(4))
        for role, value in part.weighted_sum(torch.ones(5)).items():
            torch.testing.assert_close(value, want[role], rtol=1e-4, atol=1e-4)


def test_gram_norms_never_fall_below_the_truth_where_terms_cancel():
    """Constant pixels, output gradients that sum to zero: the true gradient is zero, and float32 sums are all rounding."""
    layer = nn.Conv2d(8, 8, 3)
    x, b = torch.full((16, 8, 7, 7), 3.0), torch.randn(16, 8, 5, 5)
    b -= b.mean((2, 3), keepdim=True)
    found = parts(layer, x, b)
    truth = parts(layer.double(), x.double(), b.double())["direct"].squared_norms
    assert (found["ghost"].squared_norms >= truth).all()
    assert (found["ghost"].squared_norms <= truth + 1e-3 * x[0].square().sum() * b[0].square().sum()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_measures_in_the_type_of_the_parameters(dtype):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten())
    x = torch.randn(6, 1, 7, 7)
    norms = []
    for enabled in (False, True):
        engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
        engine.install()
        engine.open(6)
        with torch.autocast("cpu", dtype, enabled=enabled and dtype is not torch.float32):
            loss = model(x).float().square().sum()
        loss.backward()
        tape = engine.close()
        engine.remove()
        assert all(s.dtype == torch.float32 for s in tape.weighted_sum(torch.ones(6)))
        norms.append(tape.norms)
    torch.testing.assert_close(*norms, rtol=0.05, atol=0)
