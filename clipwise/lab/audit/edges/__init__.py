"""Attacks on the edges, where user code meets the core: each is tried through the public API, and held or not."""

from clipwise.lab.audit.edges import controls, hidden, later, loops, losses, padding, state  # noqa: F401  # each joins ATTACKS
from clipwise.lab.audit.edges.attack import ATTACKS, Attack, Outcome, try_attack

__all__ = ["ATTACKS", "Attack", "Outcome", "try_attack"]
