"""What was spent (`opacus.accountants`), read from the run's ledger: nothing can be charged or set here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clipwise.accounting import Event
from clipwise.types import BadArgument, Unsupported

__all__ = ["Accountant", "bound_of"]

_TUNING = ("alphas", "epsilon_tolerance", "eps_error", "delta_error")
_BOUNDS = {"rdp": "rdp", "prv": "pld"}  # both numerical bounds on the same privacy loss


def bound_of(mechanism: str) -> str:
    """Clipwise's accountant for one of Opacus', by its name there."""
    if mechanism == "gdp":
        raise Unsupported(
            "accountant='gdp': its figure is a limit for many steps, and lies below the true epsilon for the steps that a run has; use 'prv' or 'rdp'"
        )
    if mechanism not in _BOUNDS:
        raise BadArgument(f"accountant={mechanism!r} is unknown; give 'prv' or 'rdp'")
    return _BOUNDS[mechanism]


def refuse_rest(named: dict[str, Any]) -> None:
    """Arguments that set how exactly Opacus computes epsilon, and those that it does not know either."""
    for name, value in named.items():
        if name in _TUNING:
            raise BadArgument(
                f"{name}={value!r}: orders and grids are chosen so that the bound on epsilon holds, and tightly; leave it out"
            )
        raise BadArgument(f"{name}={value!r} is no argument of Opacus 1.6 that is honoured here; leave it out")


class Accountant:
    """`engine.accountant`: epsilon and history so far."""

    def __init__(self, mechanism: str, events: Callable[[], list[Event]], epsilon: Callable[[float], float]):
        self._mechanism, self._events, self._epsilon = mechanism, events, epsilon

    def mechanism(self) -> str:
        return self._mechanism

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """(noise multiplier, sample rate, steps), as Opacus writes it."""
        return [(event.noise_multiplier, event.sample_rate, event.count) for event in self._events()]

    def __len__(self) -> int:
        return sum(event.count for event in self._events())

    def get_epsilon(self, delta: float, **tuning: Any) -> float:
        refuse_rest(tuning)
        return self._epsilon(delta)
