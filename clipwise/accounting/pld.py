"""Epsilon by privacy loss distributions: the tight accountant.

Formal guarantee: an upper bound on epsilon for the composition of the events, for add/remove neighbours. The loss of
each step is put on a grid in the pessimistic way of "connect the dots", so a coarse grid costs tightness and never
validity. What floating-point convolution may lose is taken off delta first.

References: Doroshenko et al., "Connect the dots" (2022); Koskela, Jälkö, Honkela (2020); convolution by dp-accounting.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence

import dp_accounting
import numpy as np
from dp_accounting import pld

from clipwise.accounting.events import StepEvent, merge
from clipwise.accounting.joint import joint_noise_multiplier

# Grid width over the standard deviation of one step's loss. A grid of width h adds about h^2/6 to a step's variance,
# so this adds below 0.1 % to epsilon, whatever the number of steps.
_GRID_PER_DEVIATION = 0.07

# One step's losses on at most so many grid points: keeps an evaluation near a second, at some loss of tightness.
_MOST_POINTS = 100_000

# exp(width) must not overflow, and no width matters that is below the rounding of a loss.
_WIDEST, _NARROWEST = 500.0, 1e-9


def pld_epsilon(events: Sequence[StepEvent], delta: float) -> float:
    """Upper bound on epsilon at delta; infinity where floating point cannot answer."""
    return _evaluate(merge(events), delta)


@functools.lru_cache(maxsize=4096)
def _evaluate(events: tuple[StepEvent, ...], delta: float) -> float:
    if not events:
        return 0.0
    if any(event.noise_multiplier == 0 for event in events):
        return math.inf
    events = _collapse_unsampled(events)
    width = _grid_width(events)
    # The transform of a composition is a power: its rounding grows with the number of factors.
    spendable = delta - 8 * sys.float_info.epsilon * sum(event.count for event in events)
    if width > _WIDEST or spendable <= 0:
        return math.inf
    accountant = pld.PLDAccountant(value_discretization_interval=width)
    with np.errstate(all="ignore"):
        for event in events:
            gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier)
            accountant.compose(dp_accounting.PoissonSampledDpEvent(event.sample_rate, gaussian), event.count)
    return max(0.0, float(accountant.get_epsilon(spendable)))


def _collapse_unsampled(events: tuple[StepEvent, ...]) -> tuple[StepEvent, ...]:
    """Releases that see every record are one Gaussian, exactly: no grid error need be paid for composing them."""
    whole = [event.noise_multiplier / math.sqrt(event.count) for event in events if event.sample_rate == 1]
    sampled = tuple(event for event in events if event.sample_rate < 1)
    return (*sampled, StepEvent(1.0, joint_noise_multiplier(whole))) if whole else sampled


def _grid_width(events: tuple[StepEvent, ...]) -> float:
    steps = sum(event.count for event in events)
    moments = [(_loss_moments(event.sample_rate, event.noise_multiplier), event.count) for event in events]
    variance = sum(count * deviation**2 for (deviation, _), count in moments) / steps
    reach = max(largest for (_, largest), _ in moments)
    return max(_GRID_PER_DEVIATION * math.sqrt(variance), reach / _MOST_POINTS, _NARROWEST)


@functools.lru_cache(maxsize=65536)
def _loss_moments(rate: float, noise: float) -> tuple[float, float]:
    """Standard deviation and largest plausible value of the privacy loss of one step.

    They steer the grid only: an error here costs tightness, not validity.
    """
    answer = np.linspace(-9 * noise, 1 + 9 * noise, 20_001)
    absent = np.exp(-((answer / noise) ** 2) / 2)
    present = np.exp(-(((answer - 1) / noise) ** 2) / 2)
    density = (1 - rate) * absent + rate * present
    density /= density.sum()
    log_ratio = (2 * answer - 1) / (2 * noise**2)
    loss = np.logaddexp(math.log1p(-rate) if rate < 1 else -math.inf, math.log(rate) + log_ratio)
    mean = density @ loss
    return float(np.sqrt(density @ (loss - mean) ** 2)), float(loss[-1])
