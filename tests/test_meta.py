"""A private step of every model on torch's `meta` device, which has shapes and no values: an operation that mixes devices, reads a
value or makes a tensor on the host fails there, as it would fail or wait on a GPU.

What the look at a model settles (where the rows are) is found on the CPU first, and handed over: it compares values. So is the proof
that the loss is row-wise. Everything behind is the code of any run, under the policy of devices that are not the host.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from clipwise.clipping.fixed import Fixed
from clipwise.keystream import Key
from clipwise.models import MODELS, build_model
from clipwise.noise import GaussianNoise
from clipwise.norms import Bookkeeping
from clipwise.norms.loss import roots

ROWS, META = 3, torch.device("meta")
LARGE = ("resnet18", "nf-resnet50", "nfnet-f0")  # made on meta alone: their rows come first
LARGER = ("resnet34", "nfnet-f1")  # the same with more blocks
WITH_WEIGHTS = ("efficientnet-lite0", "bert")  # cannot be made without weights of others


@pytest.fixture(autouse=True)
def _without_autocast(monkeypatch):
    """Which `meta` does not have."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


def given(name):
    """Facts that a model is made from, and a batch."""
    if MODELS[name].records == "tokens":
        facts = {"shape": (9,), "classes": 3, "kind": "text", "vocabulary_size": 20, "padding": 0}
        return SimpleNamespace(**facts), torch.randint(1, 20, (ROWS, 9))
    shape = (3, 32, 32)
    return SimpleNamespace(shape=shape, classes=3, kind="image", vocabulary_size=None, padding=None), torch.randn(
        ROWS, *shape
    )


def engine_of(model):
    own = {name: p for name, p in model.named_parameters() if p.requires_grad}
    engine = Bookkeeping(model, own, loss_reduction="sum")
    engine.install()
    return engine


def looked_at(model, inputs):
    """Its units, as a first batch on the CPU settles them."""
    engine = engine_of(model)
    try:
        engine.open(len(inputs))
        engine.backward(model(inputs).flatten(1).square().sum(1))
        engine.close()
        return engine.units
    finally:
        engine.remove()


def on_meta(engine, inputs, units):
    """A step's passes and tape, with what a look finds given."""
    engine._restore_forwards()
    engine._units = units
    engine._replace_forwards()
    engine._is_new = lambda *_: False
    engine.open(len(inputs))
    engine._pass.scale, engine._pass.passes = 1.0, 1
    with pytest.MonkeyPatch.context() as patch:
        out = engine._model(inputs)
        patch.setattr(torch.autograd, "_engine_run_backward", roots._original)  # a pass that nobody judges
        out.flatten(1).square().sum().backward()
    return engine.close()


def names():
    return [
        pytest.param(name, marks=[pytest.mark.slow] if name == "nfnet-f0" else [])
        for name in MODELS
        if name not in WITH_WEIGHTS + LARGER
    ]


@pytest.mark.parametrize("name", names())
def test_a_step_of_every_model_keeps_to_its_device_and_shapes(name):
    facts, inputs = given(name)
    if name in LARGE:
        with META:
            model = build_model(name, facts)
        found = [replace(unit, batch_dim=0) for unit in engine_of(model).units]
    else:
        host = build_model(name, facts)
        found = looked_at(host, inputs)
        model = copy.deepcopy(host).to(META)
    for module in model.modules():
        module.__dict__.pop("forward", None)
    units = [replace(unit, module=model.get_submodule(unit.name)) for unit in found]
    engine = engine_of(model)
    try:
        tape = on_meta(engine, inputs.to(META), units)
        method = Fixed(threshold=1.0)
        decide = lambda norms, _: {"sum": method.decide(method.init(None), norms, None).weights}  # noqa: E731
        sums = tape.weighted_sums(decide)["sum"]
    finally:
        engine.remove()
    released = GaussianNoise(Key.from_seed(0)).add(sums, 1.0, step=0)
    assert {total.device.type for total in released} == {"meta"}
    assert [total.shape for total in released] == [p.shape for p in engine.parameters]
    for p, total in zip(engine.parameters, released, strict=True):
        p.grad = total
    torch.optim.Adam(engine.parameters, capturable=False, foreach=True).step()


def test_it_fails_where_devices_mix():
    """The broken twin: a rule that makes a tensor on the host."""

    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Linear(4, 4)

        def forward(self, x):
            return self.part(x) + torch.arange(4.0, device="cpu")

    model = Mixing().to(META)
    engine = engine_of(model)
    units = [replace(unit, batch_dim=0) for unit in engine.units]
    try:
        with pytest.raises(RuntimeError, match="device"):
            on_meta(engine, torch.zeros(ROWS, 4, device=META), units)
    finally:
        engine.remove()
