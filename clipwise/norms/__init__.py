"""Norms: the engine that measures and sums per-example gradients (stage 2 and 4 of the step)."""

from clipwise.norms.bookkeeping import OTHER_PARAMETERS, Bookkeeping
from clipwise.norms.look.refuse import mixing_layers
from clipwise.norms.loss import ROW_WISE, say_of_loss
from clipwise.norms.record.deferred import Deferred
from clipwise.norms.record.plain import PlainEngine, PlainTape
from clipwise.norms.record.tape import Tape

__all__ = [
    "OTHER_PARAMETERS",
    "ROW_WISE",
    "Bookkeeping",
    "Deferred",
    "PlainEngine",
    "PlainTape",
    "Tape",
    "mixing_layers",
    "say_of_loss",
]
