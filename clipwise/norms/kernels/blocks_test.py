"""Gradients that are formed block by block: the same norms and sums, whatever the size of a block, and no row touches
another."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from clipwise import devices
from clipwise.models.scaled_conv import ScaledStdConv2d
from clipwise.norms import Bookkeeping
from clipwise.norms.kernels import blocks
from clipwise.norms.kernels.choice import Chooser
from clipwise.norms.layers import conv
from clipwise.norms.loop import per_example_gradients, squared_output, sums_and_norms


class TwoWide(nn.Module):
    """Layers that are formed in blocks, and between them one that is not."""

    def __init__(self, width, bias=True):
        super().__init__()
        wide = 16
        self.up = nn.Linear(width, wide, bias=bias)
        self.norm = nn.LayerNorm(wide)
        self.down = nn.Linear(wide, width)

    def forward(self, x):
        return self.down(self.norm(self.up(x)).tanh())


class Last(Chooser):
    """Blocks wherever there are any."""

    def part(self, call, saved, b):
        ways = call.kernel.candidates(call, saved, b)
        return ways.get("in blocks", next(iter(ways.values())))(call, saved, b)


def taped(model, x, reduction="sum"):
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction=reduction)
    engine._chooser = Last()
    engine.install()
    try:
        engine.open(len(x))
        loss = squared_output(model(x))
        (loss / len(x) if reduction == "mean" else loss).backward()
        return engine.close()
    finally:
        engine.remove()


def in_blocks(tape):
    return [part for _, part in tape._parts if isinstance(part, blocks.Unformed)]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 9),
    at_once=st.integers(0, 10),
    places=st.integers(2, 5),
    width=st.integers(8, 10),
    bias=st.booleans(),
    bad=st.sets(st.integers(0, 8), max_size=3),
    reduction=st.sampled_from(["sum", "mean"]),
)
def test_blocks_agree_with_the_loop_and_leave_bad_rows_out(rows, at_once, places, width, bias, bad, reduction):
    assume(rows == 1 or rows != places)  # or nothing could tell them apart
    torch.manual_seed(rows)
    model = TwoWide(width, bias).double()
    x = torch.randn(rows, places, width, dtype=torch.float64)
    truth = per_example_gradients(model, (x,), squared_output)
    is_bad = torch.tensor([i in bad for i in range(rows)])
    given_x = x.clone()
    given_x[is_bad] = torch.nan
    want = torch.stack([g.flatten(1).square().sum(1) for g in truth.values()]).sum(0).sqrt()
    names = {"first": torch.linspace(0.1, 1.7, rows), "second": torch.linspace(3, -1, rows)}
    seen = []

    def weigh(norms, which):
        seen.append((norms, which))
        return {name: weights[which] for name, weights in names.items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            devices,
            "_HOST",
            replace(
                devices._HOST, block_bytes=at_once * 8 * sum(p.numel() for p in (model.up.weight, model.down.weight))
            ),
        )
        tape = taped(model, given_x, reduction)
        assert len(in_blocks(tape)) == 2
        sums = tape.weighted_sums(weigh)
    assert max(len(norms) for norms, _ in seen) <= max(1, at_once)
    assert [i for _, which in seen for i in range(rows)[which]] == list(range(rows))  # each row once, in order
    norms = torch.cat([norms for norms, _ in seen])
    assert torch.equal(norms.isfinite(), ~is_bad)
    torch.testing.assert_close(norms[~is_bad], want[~is_bad], rtol=1e-9, atol=1e-9)
    for name, weights in names.items():
        for got, g in zip(sums[name], truth.values(), strict=True):
            clean = torch.einsum("r,r...->...", weights[~is_bad].double(), g[~is_bad])
            torch.testing.assert_close(got, clean, rtol=1e-9, atol=1e-9)
    # And by itself, for whoever asks for norms and sums apart.
    again = taped(model, given_x, reduction)
    torch.testing.assert_close(again.norms[~is_bad], want[~is_bad], rtol=1e-9, atol=1e-9)
    for got, want_sum in zip(again.weighted_sum(names["first"]), sums["first"], strict=True):
        torch.testing.assert_close(got, want_sum, rtol=1e-9, atol=1e-9)


def test_a_row_that_overflows_only_in_a_block_is_dropped_everywhere():
    """Its inputs and output gradients are finite, the product is not: known only once it is formed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 4))
    x = torch.randn(6, 2, 4)
    without = torch.arange(6) != 3
    clean = sums_and_norms(taped(model, x), without.float())[0]
    x[3] = 1e25
    got, norms = sums_and_norms(taped(model, x), torch.ones(6))
    assert torch.equal(norms.isfinite(), without)
    for a, b in zip(got, clean, strict=True):
        torch.testing.assert_close(a, b)


def test_memory_is_that_of_a_block():
    model = nn.Linear(64, 64)
    tape = taped(model, torch.randn(50, 2, 64))
    [part] = in_blocks(tape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "_HOST", replace(devices._HOST, block_bytes=7 * 64 * 64 * 4))
        patch.setattr(torch, "get_num_threads", lambda: 8)
        made = blocks.Blocks([part])
    assert [len(range(50)[rows]) for rows in made] == [7] * 7 + [1]
    assert sum(g.nbytes for space in made._space for g in space) == 7 * 64 * 64 * 4


@pytest.mark.parametrize(
    ("rows", "most", "threads", "size"),
    [
        (32, 4, 2, 4),
        (32, 3, 2, 2),
        (50, 7, 2, 6),
        (9, 9, 2, 9),
        (9, 20, 4, 9),
        (64, 10, 4, 8),
        (5, 1, 2, 1),
        (0, 3, 2, 1),
    ],
)
def test_no_thread_waits_for_another(monkeypatch, rows, most, threads, size):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert blocks._block_size(rows, most) == size


class Images(nn.Module):
    """Convolutions and linear layers that are formed in the same blocks."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv
        self.linear = nn.Linear(4, 40)

    def forward(self, x):
        return self.linear(self.conv(x).tanh().flatten(2).mT[:, :3])  # few places, or it would not be in blocks


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(["strips", "patches", "groups", "standardised"]),
    rows=st.integers(1, 7),
    at_once=st.integers(0, 8),
    bad=st.sets(st.integers(0, 6), max_size=2),
)
def test_blocks_of_convolutions(kind, rows, at_once, bad):
    assume(rows != 3)
    torch.manual_seed(rows)
    layer = {
        "strips": lambda: nn.Conv2d(2, 4, 3, padding=1),
        "patches": lambda: nn.Conv2d(2, 4, 3, stride=2, bias=False),
        "groups": lambda: nn.Conv2d(2, 4, 3, groups=2),
        "standardised": lambda: ScaledStdConv2d(2, 4, 3),
    }[kind]()
    model = Images(layer).double()
    x = torch.randn(rows, 2, 5, 5, dtype=torch.float64)
    truth = per_example_gradients(model, (x,), squared_output)
    is_bad = torch.tensor([i in bad for i in range(rows)])
    given_x = x.clone()
    given_x[is_bad] = torch.nan
    weights = torch.linspace(0.1, 1.7, rows, dtype=torch.float64)
    want = torch.stack([g.flatten(1).square().sum(1) for g in truth.values()]).sum(0).sqrt()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            devices,
            "_HOST",
            replace(devices._HOST, block_bytes=at_once * 8 * sum(p.numel() for p in model.parameters())),
        )
        patch.setattr(conv, "LONG_STRIP", 0 if kind == "strips" else 10**9)
        patch.setattr(conv, "MANY_PLACES", 0)
        tape = taped(model, given_x)
        assert len(in_blocks(tape)) == 2
        got, norms = sums_and_norms(tape, weights)
        again = taped(model, given_x)
        torch.testing.assert_close(again.norms, norms, rtol=1e-9, atol=1e-9, equal_nan=True)
        apart = again.weighted_sum(weights)
    assert torch.equal(norms.isfinite(), ~is_bad)
    torch.testing.assert_close(norms[~is_bad], want[~is_bad], rtol=1e-9, atol=1e-9)
    for each in (got, apart):
        for value, g in zip(each, truth.values(), strict=True):
            clean = torch.einsum("r,r...->...", weights[~is_bad], g[~is_bad])
            torch.testing.assert_close(value, clean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("places", "some"), [(2, 1), (40, 0)])
def test_blocks_are_for_layers_whose_gradients_are_larger_than_what_they_come_from(places, some):
    tape = taped(nn.Linear(64, 64), torch.randn(5, places, 64))
    assert len(in_blocks(tape)) == some
