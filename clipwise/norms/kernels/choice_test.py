"""The choice of a way never changes a result; gradients are stored for no more rows than the cap allows."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from clipwise import devices
from clipwise.norms import Bookkeeping
from clipwise.norms.kernels import choice
from clipwise.norms.kernels.blocks import Unformed
from clipwise.norms.kernels.choice import Chooser
from clipwise.norms.kernels.kernel import Call, Direct, Ghost, Kernel, Split
from clipwise.norms.layers.linear import LINEAR, LinearKernel
from clipwise.norms.loop import per_example_gradients, squared_output


class capped(Chooser):
    """With another cap than the device's."""

    def __init__(self, most):
        self.most = most

    def part(self, *given):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(devices, "_HOST", replace(devices._HOST, direct_bytes=self.most))
            return super().part(*given)


class LastOfLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.lstm(x)[0]


def taped(model, x, chooser):
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
    engine._chooser = chooser
    engine.install()
    try:
        engine.open(len(x))
        squared_output(model(x)).backward()
        return engine.close()
    finally:
        engine.remove()


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["linear", "conv", "grouped", "lstm"]),
    rows=st.integers(1, 9),
    fit=st.integers(0, 9),
    places=st.integers(2, 6),
    bad=st.sets(st.integers(0, 8), max_size=3),
)
def test_a_split_agrees_with_the_loop_and_leaves_bad_rows_out(kind, rows, fit, places, bad):
    assume(kind != "linear" or rows == 1 or rows != places)  # or nothing could tell them apart
    torch.manual_seed(rows)
    model, shape = {
        "linear": (nn.Linear(4, 3), (places, 4)),
        "conv": (nn.Conv2d(2, 3, 3, padding=1), (2, places, places)),
        "grouped": (nn.Conv1d(4, 2, 2, groups=2), (4, places)),
        "lstm": (LastOfLSTM(), (places, 4)),
    }[kind]
    model, x = model.double(), torch.randn(rows, *shape, dtype=torch.float64)
    size = sum(p.numel() for p in model.parameters()) * 8
    truth = per_example_gradients(model, (x,), squared_output)
    weights = torch.linspace(0.1, 1.7, rows, dtype=torch.float64)
    is_bad = torch.tensor([i in bad for i in range(rows)])
    given_x = x.clone()
    given_x[is_bad] = torch.nan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "FEWEST", 1e-9)
        patch.setattr(choice, "MOST", 1)
        tape = taped(model, given_x, capped(fit * size))
    want = torch.stack([g.flatten(1).square().sum(1) for g in truth.values()]).sum(0).sqrt()
    assert torch.equal(tape.norms.isfinite(), ~is_bad)
    torch.testing.assert_close(tape.norms[~is_bad], want[~is_bad], rtol=1e-9, atol=1e-9)
    for got, (name, g) in zip(tape.weighted_sum(weights), truth.items(), strict=True):
        clean = torch.einsum("r,r...->...", weights[~is_bad], g[~is_bad])
        torch.testing.assert_close(got, clean, rtol=1e-9, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


class Watched(LinearKernel):
    """Notes how many rows each way was asked for; direct is first."""

    def __init__(self):
        self.asked = []

    def direct_part(self, call, saved, b):
        self.asked.append(("direct", len(b)))
        return super().direct_part(call, saved, b)

    def ghost(self, call, saved, b):
        self.asked.append(("ghost", len(b)))
        return super().ghost(call, saved, b)

    def candidates(self, call, saved, b):  # noqa: ARG002
        return {"direct": self.direct_part, "ghost": self.ghost}


def one(kernel, rows, width=16):
    layer = nn.Linear(width, width)
    call = Call(kernel, {"weight": layer.weight, "bias": layer.bias})
    return call, (torch.randn(rows, 3, width),), torch.randn(rows, 3, width)


ROW = (16 * 16 + 16) * 4


@pytest.mark.parametrize(
    ("rows", "kinds"),
    [
        (10, [("direct", 10)]),
        (12, [("direct", 12)]),
        (13, [("ghost", 3), ("direct", 10)]),
        (40, [("ghost", 30), ("direct", 10)]),
        (41, [("ghost", 41)]),
    ],
)
def test_as_many_rows_direct_as_fit_if_that_is_worth_it(rows, kinds):
    kernel = Watched()
    capped(10 * ROW).part(*one(kernel, rows))
    assert kernel.asked == kinds


def test_a_spare_way_serves_where_direct_may_not_store_all_rows():
    kernel = Watched()
    kernel.spares = frozenset({"ghost"})
    for rows, asked in ((40, [("direct", 40)]), (63, [("ghost", 63)]), (200, [("ghost", 200)])):
        kernel.asked.clear()
        capped(40 * ROW).part(*one(kernel, rows))
        assert kernel.asked == asked


def test_a_kernel_without_another_way_is_stored_whole():
    class Only(Kernel):
        direct = LINEAR.direct

    assert isinstance(capped(ROW).part(*one(Only(), 10)), Direct)


def test_the_rest_does_not_keep_the_whole_batch():
    part = capped(10 * ROW).part(*one(Watched(), 16))
    assert isinstance(part, Split)
    assert isinstance(part._rest, Ghost)
    for t in part._rest._tensors:
        assert t.untyped_storage().nbytes() == t.nbytes <= 6 * 3 * 16 * 4


@pytest.mark.parametrize(("fit", "kind"), [(5, Ghost), (3, Unformed)])  # a Ghost of stored gradients
@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_above_the_cap_is_formed_in_blocks(monkeypatch, groups, fit, kind):
    model = nn.Sequential(nn.Conv1d(2, 2, 4, groups=groups), nn.Tanh())
    size = sum(p.numel() for p in model.parameters()) * 4
    monkeypatch.setattr(devices, "_HOST", replace(devices._HOST, direct_bytes=fit * size))
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
    engine.install()
    engine.open(5)
    model(torch.randn(5, 2, 9)).square().sum().backward()
    [(_, part)] = engine.close()._parts
    engine.remove()
    assert isinstance(part, kind)
