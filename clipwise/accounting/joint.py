"""How the queries of one step share its noise.

Formal guarantee: Gaussian queries on the same Poisson sample, with noise multipliers s_1..s_k (noise std / l2 bound),
are one Gaussian query with multiplier (sum_k s_k^-2)^(-1/2), sampled once. Divide each answer by its noise std: one
record moves the stacked vector by at most sqrt(sum_k s_k^-2). Later queries of the step may depend on earlier noised
answers. Accounting each query with a sample of its own would report a smaller, wrong epsilon.

Reference: Andrew et al., "Differentially private learning with adaptive clipping" (2021), Theorem 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from clipwise import validate
from clipwise.types import BadArgument


def joint_noise_multiplier(multipliers: Sequence[float]) -> float:
    """The multiplier of all the queries together; 0 if any of them has no noise."""
    if not multipliers:
        raise BadArgument("multipliers=() names no query; give the noise multiplier of at least one")
    checked = [validate.non_negative("multipliers", value) for value in multipliers]
    return 0.0 if 0.0 in checked else 1 / math.hypot(*(1 / value for value in checked))


def gradient_share(total: float, sides: Sequence[float]) -> float:
    """The gradient's multiplier, such that gradient and side queries together have the multiplier `total`."""
    total = validate.non_negative("total", total)
    checked = [validate.positive("sides", value) for value in sides]
    if total == 0 or not checked:  # at 0 no noise is asked for: the step is not private, whatever the sides add
        return total
    # Exact rational arithmetic: the difference cancels when a side takes nearly everything.
    left = 1 - sum(((Fraction(total) / Fraction(side)) ** 2 for side in checked), start=Fraction(0))
    if left <= 0:
        least = total * math.sqrt(len(checked))
        raise BadArgument(
            f"sides={checked!r} leave no noise budget for the gradient at total={total!r}; give each of the "
            f"{len(checked)} side queries a noise multiplier above {least:.6g}, or lower the total"
        )
    return total / math.sqrt(left)
