"""Every operation on a gradient that is not released is refused, and what is put there instead is noticed."""

import pytest
import torch
from torch import nn

from clipwise.norms.record.unreleased import HeldBack, Unreleased
from clipwise.types import LoopMisuse


def held_back(*parameters):
    return HeldBack(parameters, {id(p): f"p{i}" for i, p in enumerate(parameters)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "use",
    [
        lambda g: g.norm(),
        lambda g: g.mul_(2),
        lambda g: g + 1,
        lambda g: g.clone(),
        lambda g: g.detach(),
        lambda g: g.data,
        lambda g: g.zero_(),
        lambda g: g.sum().item(),
        lambda g: torch._foreach_norm([g]),
        lambda g: torch._foreach_mul_([g], 2.0),
    ],
)
def test_no_operation_passes(dtype, use):
    p = nn.Parameter(torch.ones(3, 2, dtype=dtype))
    held_back(p).put()
    assert p.grad.shape == p.shape
    assert p.grad.dtype == dtype
    with pytest.raises(LoopMisuse, match="register_step_pre_hook"):
        use(p.grad)


def test_what_stands_there_at_the_step():
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(()))
    held = held_back(first, second)
    held.take()  # nothing was put
    for change in (None, torch.ones(())):
        held.put()
        second.grad = change
        with pytest.raises(LoopMisuse, match="'p1' was set or cleared"):
            held.take()
        assert first.grad is None
    held.put()
    held.take()
    assert first.grad is second.grad is None


def test_a_released_gradient_is_left_alone():
    p = nn.Parameter(torch.ones(2))
    held = held_back(p)
    held.put()
    p.grad = released = torch.ones(2)
    held.clear()
    assert p.grad is released


def test_a_model_that_moves_to_another_type():
    p = nn.Parameter(torch.ones(2))
    held = held_back(p)
    held.put()
    held.take()
    p.data = p.data.double()
    held.put()
    assert isinstance(p.grad, Unreleased)
    assert p.grad.dtype == torch.float64
    held.take()
