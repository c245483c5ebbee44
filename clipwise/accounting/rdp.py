"""Epsilon by Renyi differential privacy: quick, a little loose, and wrong to trust when it is large.

Formal guarantee: an upper bound on epsilon for the composition of the events, for add/remove neighbours, or infinity
where the bound is not to be trusted. The curve of one (rate, noise) pair is computed once by dp-accounting and kept, so
that asking again with other step counts costs microseconds.

References: Mironov, Talwar, Zhang (2019) for the curve; Canonne, Kamath, Steinke (2020), Proposition 12, for the
conversion.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import dp_accounting
import numpy as np
from dp_accounting import rdp

from clipwise.accounting.events import StepEvent, merge

# Fractional orders serve epsilons above 1, the large ones small epsilons.
_ORDERS = (*(1 + k / 10 for k in range(1, 100)), *range(11, 64), *(80, 96, 128, 192, 256, 512, 1024))

# The conversion ignores orders close to 1, which are the ones that matter for a large epsilon: it then reports garbage
# (1e8 where the truth is 3e5). Nothing this large is a guarantee anyway.
_LARGEST_TRUSTED = 100.0

# Above the rounding error of one step's divergence. dp-accounting answers a divergence that came out negative with
# epsilon 0: this margin keeps rounding on the safe side, and is far below anything a user can see.
_ROUNDING = 1e-13


def rdp_epsilon(events: Sequence[StepEvent], delta: float) -> float:
    """Upper bound on epsilon at delta; infinity above 100."""
    merged = merge(events)
    if not merged:
        return 0.0
    if any(event.noise_multiplier == 0 for event in merged):
        return float("inf")
    total = sum(event.count * _curve(event.sample_rate, event.noise_multiplier) for event in merged)
    value = float(rdp.compute_epsilon(_ORDERS, total, delta)[0])
    return value if value <= _LARGEST_TRUSTED else float("inf")


@functools.lru_cache(maxsize=65536)
def _curve(sample_rate: float, noise_multiplier: float) -> np.ndarray:
    """The Renyi divergence of one step at each order."""
    event = dp_accounting.PoissonSampledDpEvent(sample_rate, dp_accounting.GaussianDpEvent(noise_multiplier))
    accountant = rdp.RdpAccountant(_ORDERS)
    with _quiet(), np.errstate(over="ignore"):
        accountant.compose(event)
    return np.maximum(accountant.rdp, 0) + _ROUNDING


@contextmanager
def _quiet() -> Iterator[None]:
    """Hush the note that an order did not converge: the order is left out, which can only raise epsilon."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
