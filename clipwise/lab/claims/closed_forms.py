"""The closed forms of papers 000 and 001, as published, with their errors. Claims, not bounds.

    rho = 13 q^2 C^2 S / (2 sigma_0^2),  S = sum over epochs of sigma_0^2 / sigma_e^2
    epsilon = rho + 2 sqrt(rho ln(1/delta))

Errors that are kept: S has a term for each epoch, where a run takes 1/q steps an epoch; C^2 multiplies rho although
the noise is already sigma C; for the step decay, 000 (Table 8, eq. 42) and 001's Tables 16 and 17 divide the sum over
stages by their length D, where each stage contributes D epochs (001's Table 2 multiplies). The sound form is in
`clipwise.accounting.tcdp`.
"""

from __future__ import annotations

import math

from clipwise.schedules import Schedule


def claimed_sum(schedule: Schedule, epochs: int, *, stage_length_divides: bool = True) -> float:
    """S of a schedule, as the papers' tables have it."""
    r = schedule.decay or 0.0
    if schedule.kind == "linear":
        return _geometric(r, epochs)
    if schedule.kind == "time":
        return (2 * epochs + r * epochs * (epochs - 1)) / 2
    if schedule.kind == "exponential":
        return math.expm1(r * epochs) / math.expm1(r)
    if schedule.kind == "step":
        length = schedule.every or 1
        stages = _geometric(r, epochs // length)
        return stages / length if stage_length_divides else stages * length
    return float(epochs)


def claimed_rho(total: float, noise: float, rate: float, sensitivity: float = 1.0) -> float:
    """`total` is S."""
    return 13 * rate**2 * sensitivity**2 * total / (2 * noise**2)


def claimed_epsilon(rho: float, delta: float) -> float:
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def claimed_rho_of(epsilon: float, delta: float) -> float:
    """The rho whose claimed epsilon is this one."""
    root = math.sqrt(math.log(1 / delta))
    return (math.sqrt(root**2 + epsilon) - root) ** 2


def claimed_noise(total: float, rho: float, rate: float) -> float:
    """The sigma_0 with this claimed rho, at C = 1."""
    return math.sqrt(13 * rate**2 * total / (2 * rho))


def omega(schedule: Schedule, noise: float, rate: float, epochs: int) -> float:
    """tCDP's omega of the run: that of its least noisy step, ln(1/q) sigma^2 / 2 at C = 1 (000, Table 8)."""
    last = noise * schedule.factor(epochs - 1, sample_rate=1.0, steps=epochs)
    return math.log(1 / rate) * last**2 / 2


def _geometric(r: float, terms: int) -> float:
    """1 + 1/R + ... + 1/R^(terms-1), in the papers' way."""
    return (1 - r**terms) / (r ** (terms - 1) - r**terms)
