"""Noise for a target (`opacus.accountants.utils`)."""

from __future__ import annotations

from typing import Any

from clipwise.accounting import calibrate
from clipwise.compat.opacus.accountants import bound_of, refuse_rest
from clipwise.types import BadArgument

__all__ = ["get_noise_multiplier"]


def get_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    epochs: int | None = None,
    steps: int | None = None,
    accountant: str = "rdp",
    **tuning: Any,
) -> float:
    """The smallest noise multiplier that stays within the target."""
    refuse_rest(tuning)
    if (steps is None) == (epochs is None):
        raise BadArgument(f"epochs={epochs!r} and steps={steps!r}: give one of the two")
    if steps is None and epochs is not None:
        steps = int(epochs / sample_rate)
    return calibrate(target_epsilon, target_delta, sample_rate, steps, bound_of(accountant))  # type: ignore[arg-type]
