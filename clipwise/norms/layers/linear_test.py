"""Linear layers against the loop, on shapes made by hypothesis."""

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from clipwise.norms.loop import assert_agrees


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 5),
    middle=st.lists(st.integers(1, 4), max_size=2),
    inputs=st.integers(1, 6),
    outputs=st.integers(1, 6),
    bias=st.booleans(),
    frozen=st.sampled_from([None, "weight", "bias"]),
)
def test_linear(rows, middle, inputs, outputs, bias, frozen):
    assume(rows == 1 or middle[:1] != [rows])  # or nothing could tell rows from places
    layer = nn.Linear(inputs, outputs, bias=bias or frozen is not None)
    if frozen:
        getattr(layer, frozen).requires_grad_(False)
    assert_agrees(nn.Sequential(layer, nn.Tanh()), (torch.randn(rows, *middle, inputs),))


def test_chain_with_in_place_activation():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))
    assert_agrees(model, (torch.randn(6, 4),))
