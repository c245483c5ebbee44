"""Linear layers at one place, alone and on a stack, against the loop over single examples."""

import pytest
import torch
from torch import nn

from clipwise.norms import Bookkeeping
from clipwise.norms.kernels.outer import FEWEST_ALIKE, STACKED_NUMBERS, OuterParts
from clipwise.norms.loop import assert_agrees, squared_output


def deep(layers, width=4, **options):
    torch.manual_seed(0)
    alike = [m for _ in range(layers) for m in (nn.Linear(width, width, **options), nn.Tanh())]
    return nn.Sequential(*alike, nn.Linear(width, 3))


@pytest.mark.parametrize("options", [{}, {"bias": False}])
@pytest.mark.parametrize("layers", [1, FEWEST_ALIKE - 1, FEWEST_ALIKE, 7])
def test_layers_alike_agree_with_the_loop(layers, options):
    assert_agrees(deep(layers, **options), (torch.randn(5, 4),))


def test_frozen_weights_and_biases_on_a_stack():
    model = deep(6)
    for i, layer in enumerate(m for m in model if isinstance(m, nn.Linear)):
        (layer.weight if i % 2 else layer.bias).requires_grad_(False)
    assert_agrees(model, (torch.randn(5, 4),))


def tape_of(model, x):
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
    engine.install()
    try:
        engine.open(len(x))
        squared_output(model(x)).backward()
        return engine.close()
    finally:
        engine.remove()


def test_a_row_that_is_not_finite_is_out_of_a_stack_and_leaves_the_others_alone():
    model, x = deep(5).double(), torch.randn(6, 4, dtype=torch.float64)
    bad = x.clone()
    bad[2] = torch.inf
    tape = tape_of(model, bad)
    [parts] = tape._outer.values()
    assert parts._stacks
    got = tape.weighted_sums(lambda norms, _: {"sum": torch.ones_like(norms)})["sum"]
    kept = [0, 1, 3, 4, 5]
    want = tape_of(model, x[kept]).weighted_sums(lambda norms, _: {"sum": torch.ones_like(norms)})["sum"]
    torch.testing.assert_close(got, want)


def test_large_layers_are_not_copied():
    width = STACKED_NUMBERS // 8
    tape = tape_of(deep(4, width), torch.randn(8, width))
    [parts] = tape._outer.values()
    assert isinstance(parts, OuterParts)
    assert not parts._stacks
