"""The first release of an automatic run: how long gradients are at the first weights.

Formal guarantee: each record adds one 1 to one bin of a histogram (none, if its norm is not finite), so that adding or removing
it moves the counts by at most 1 in l2. One Gaussian release over all records; the norms themselves do not leave this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clipwise.accounting import Event
from clipwise.automatic import rule
from clipwise.run import Run
from clipwise.step import backward_pass
from clipwise.types import BadArgument

L2_BOUND = 1.0  # of one record's row, which is one-hot


def median_norm(run: Run, losses: Callable[[Any], Tensor], event: Event) -> float | None:
    """J as it is released; None where no bin stands out of the noise."""
    counts = torch.zeros(rule.BINS, dtype=torch.float64)
    for batch, records in run.all_records():
        run.engine.open(batch.rows, batch.padding, records, batch.lengths)
        backward_pass(run.engine, losses(records))
        tape = run.engine.close()
        if not hasattr(tape, "norms"):
            raise BadArgument("epsilon=inf: nothing is measured in a run without privacy")
        if not batch.masked:  # the row that stands for no record at all
            counts += histogram(tape.norms.cpu())
    what = "histogram of gradient norms at the first weights"
    noised = run.release(counts, event, l2_bound=L2_BOUND, what=what)
    return rule.median_norm(noised.tolist(), event.noise_multiplier * L2_BOUND)


def histogram(norms: Tensor) -> Tensor:
    """How many norms are in each bin; one that is not finite is in none."""
    usable = norms[norms.isfinite()]
    return torch.bincount(rule.histogram_place(usable), minlength=rule.BINS).double()
