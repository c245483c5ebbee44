import pytest
import torch
from torch import nn

from clipwise.optim.averaging import WeightAverage
from clipwise.types import BadArgument


def test_a_hand_worked_average():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 8.0)
    average = WeightAverage(model.parameters(), 0.15)
    for value in (18.0, 9.0):
        nn.init.constant_(model.weight, value)
        average.update()
    # t = 0: d = 1/10: 0.1 * 8 + 0.9 * 18 = 17;  t = 1: d = min(0.15, 2/11) = 0.15: 0.15 * 17 + 0.85 * 9 = 10.2
    with average.in_place():
        assert model.weight.item() == pytest.approx(10.2)
    assert model.weight.item() == 9.0  # training goes on from the last weights
    average.finish()
    assert model.weight.item() == pytest.approx(10.2)


def test_no_decay_leaves_the_weights_alone():
    model = nn.Linear(3, 2)
    before = model.weight.clone()
    average = WeightAverage(model.parameters(), 0.0)
    average.update()
    average.finish()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(BadArgument, match=r"average_weights=.* such as 0\.99"):
        WeightAverage(nn.Linear(1, 1).parameters(), decay)
