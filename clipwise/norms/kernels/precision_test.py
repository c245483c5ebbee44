"""Reduced-precision products of an accelerator, emulated on the CPU: the bound holds all the same."""

from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from clipwise import devices
from clipwise.norms.kernels import precision
from clipwise.norms.kernels.precision import exact_products
from clipwise.norms.sensitivity_test import BOUND, clipped_sum

PRODUCTS = {"mm": "matmul", "bmm": "matmul", "addmm": "matmul", "baddbmm": "matmul", "mv": "matmul", "addmv": "matmul"}
PRODUCTS |= {"convolution": "conv", "convolution_backward": "conv"}


def rounded(x):
    """To TF32: 10 of the 23 bits of a float32."""
    if not isinstance(x, torch.Tensor) or x.dtype != torch.float32:
        return x
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).view(x.shape)


class Accelerator(TorchDispatchMode):
    """Rounds what goes into a product, where torch's flags allow an accelerator to."""

    def __init__(self):
        super().__init__()
        self.rounded = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kind = PRODUCTS.get(func._schema.name.removeprefix("aten::").removesuffix("_"))
        flags = {"matmul": torch.backends.cuda.matmul, "conv": torch.backends.cudnn.conv}
        if kind and flags[kind].fp32_precision == "tf32":
            self.rounded += 1
            args = tree_map(rounded, args)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def tf32(monkeypatch):
    elsewhere = replace(devices._HOST, precision=devices._ACCELERATOR.precision)
    monkeypatch.setattr(devices, "_HOST", elsewhere)  # this CPU stands for an accelerator
    backends = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = [b.fp32_precision for b in backends]
    for b in backends:
        b.fp32_precision = "tf32"
    yield
    for b, was in zip(backends, before, strict=True):
        b.fp32_precision = was


CASES = [
    (nn.Linear(40, 30), torch.randn(1, 40), "ghost"),
    (nn.Linear(40, 30), torch.randn(1, 60, 40), "ghost"),
    (nn.Linear(40, 30), torch.randn(1, 60, 40), "direct"),
    (nn.Conv2d(8, 12, 3), torch.randn(1, 8, 9, 9), "direct"),
    (nn.Conv2d(32, 24, 3), torch.randn(1, 32, 6, 6), "ghost"),
    (nn.LSTM(12, 8, batch_first=True), torch.randn(1, 20, 12), "ghost"),
]


def squared(model, x):
    out = model(x)
    return (100 * (out[0] if isinstance(out, tuple) else out) - 3).square().sum()


def exceeded():
    """By how much one record alone exceeds the bound, at most."""
    with Accelerator() as mode:
        sums = [clipped_sum(model, (x,), squared, way=way) for model, x, way in CASES]
    assert mode.rounded  # the model's own products, at least
    return max(float(s.norm()) for s in sums) / BOUND - 1


@pytest.mark.usefixtures("tf32")
def test_the_bound_holds_where_products_may_be_reduced():
    assert exceeded() <= 0


@pytest.mark.usefixtures("tf32")
def test_the_emulation_would_show_it(monkeypatch):
    """Without the switch, as it was: beyond the slack."""
    monkeypatch.setattr(precision, "_REDUCED", ())
    assert exceeded() > 3e-5


def test_the_users_settings_are_given_back():
    torch.set_float32_matmul_precision("medium")
    try:
        for device, matmul in (("cpu", torch.backends.mkldnn.matmul), ("cuda", torch.backends.cuda.matmul)):
            with suppress(ZeroDivisionError), exact_products(torch.device(device)):
                assert matmul.fp32_precision == "ieee"
                raise ZeroDivisionError
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.set_float32_matmul_precision("highest")
