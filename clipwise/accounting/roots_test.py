"""The same points as scipy's, and so the same root to the bit."""

import math

import pytest
from scipy.optimize import brentq

from clipwise.accounting.roots import crossing

FUNCTIONS = {
    "line": lambda x: x - 0.3,
    "cubic": lambda x: x**3 - 2 * x - 5,
    "flat": lambda x: (x - 1) ** 5,
    "exp": lambda x: math.exp(-x) - 1e-3 * x,
    "kink": lambda x: math.copysign(20.0, x - 0.7) if abs(x - 0.7) > 0.1 else x - 0.7,
    "jump": lambda x: -1.0 if x < 0.123 else 2.0,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("tolerance", [1e-1, 1e-5, 1e-12])
@pytest.mark.parametrize("ends", [(-3.0, 17.0), (9.0, -2.0)])
def test_takes_the_points_of_brentq(name, tolerance, ends):
    taken, theirs = [], []
    found = crossing(lambda x: (taken.append(x), FUNCTIONS[name](x))[1], *ends, tolerance=tolerance)
    want = brentq(lambda x: (theirs.append(x), FUNCTIONS[name](x))[1], *ends, xtol=tolerance, maxiter=200)
    assert found == want
    assert taken == theirs


def test_an_end_that_is_a_root_and_no_root_at_all():
    assert crossing(lambda x: x, 0.0, 1.0, tolerance=1e-6) == 0
    assert crossing(lambda x: x - 1, 0.0, 1.0, tolerance=1e-6) == 1
    for wrong in (lambda x: x + 1, lambda _: math.nan):
        with pytest.raises(ValueError, match="no sign change"):
            crossing(wrong, 0.0, 1.0, tolerance=1e-6)
