from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipwise.accounting import gradient_share, joint_noise_multiplier
from clipwise.types import BadArgument

# (total, side query, what is left for the gradient): (total^-2 - side^-2)^(-1/2), by hand. Andrew's bit is shifted by 1/2,
# so that his sigma_b = 3.2 is a noise multiplier of 6.4.
SPLITS = [(1, 5, 1.0206207), (0.9659, 5, 0.9844436), (2.5, 8, 2.6318068), (1.4929, 6.4, 1.5352529)]
sizes = st.floats(min_value=1e-3, max_value=1e3)


def test_joint_of_known_pairs():
    assert joint_noise_multiplier([3.0]) == pytest.approx(3.0, rel=1e-15)
    assert joint_noise_multiplier([1.0, 1.0]) == pytest.approx(math.sqrt(0.5), rel=1e-15)
    assert joint_noise_multiplier([15, 20]) == pytest.approx(12, rel=1e-15)
    assert joint_noise_multiplier([1.0, 0.0]) == 0


@pytest.mark.parametrize(("total", "side", "gradient"), SPLITS)
def test_known_splits(total, side, gradient):
    assert gradient_share(total, [side]) == pytest.approx(gradient, rel=1e-6)


@given(total=sizes, ratios=st.lists(st.floats(min_value=1.0001, max_value=1e3), max_size=4))
def test_split_and_join_are_inverse(total, ratios):
    sides = [total * ratio * math.sqrt(max(1, len(ratios))) for ratio in ratios]
    share = gradient_share(total, sides)
    assert share >= total
    assert joint_noise_multiplier([share, *sides]) == pytest.approx(total, rel=1e-12)


def test_split_is_exact_where_the_difference_cancels():
    total, side = 1.0, 1.0 + 1e-9
    exact = 1 / (1 / Fraction(total) ** 2 - 1 / Fraction(side) ** 2)
    assert gradient_share(total, [side]) == pytest.approx(math.sqrt(exact), rel=1e-12)


def test_edges():
    assert gradient_share(0, [2.0]) == 0
    assert gradient_share(1.5, []) == 1.5
    with pytest.raises(BadArgument):
        joint_noise_multiplier([])
    with pytest.raises(BadArgument, match="sides"):
        gradient_share(1.0, [0.0])


@pytest.mark.parametrize("sides", [[1.0], [0.5], [1.4, 1.4], [100, 0.9]])
def test_no_room_names_the_smallest_side_that_works(sides):
    with pytest.raises(BadArgument, match="sides=") as caught:
        gradient_share(1.0, sides)
    least = float(str(caught.value).split("above ")[1].split(",")[0])
    assert least == pytest.approx(math.sqrt(len(sides)), rel=1e-5)
    assert gradient_share(1.0, [least * 1.0001] * len(sides)) > 1.0
