"""The first release of an automatic run: how long gradients are at the first weights and, where the model learns values, how large
its losses are there.

Formal guarantee: each record adds one 1 to one bin of each histogram (none, if its number is not finite), so that adding or removing
it moves the counts by at most the root of their number in l2. One Gaussian release over all records; norms and losses themselves
do not leave this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clipwise import modes
from clipwise.accounting import Event
from clipwise.automatic import rule
from clipwise.automatic.task import Task
from clipwise.run import Run
from clipwise.step import backward_pass
from clipwise.types import BadArgument, ClipwiseError


class Look(NamedTuple):
    """At the first weights, released; None where no bin stands out of the noise."""

    median_norm: float | None  # J
    typical_loss: float | None = None  # where the model learns values
    losses: tuple[float, ...] = ()  # the noised histogram of them, there
    noise_std: float = 0.0  # of each of its counts


def first_look(run: Run, task: Task, event: Event) -> Look:
    histograms = [_of_norms(run, task)]
    what = "histogram of gradient norms at the first weights"
    if task.kind == "values":
        histograms.append(sum_of_rows(run, task.row_losses, lambda losses: histogram(losses, rule.LOSSES)))
        what = "histograms of gradient norms and losses at the first weights"
    bound = math.sqrt(len(histograms))  # of one record's row, which is one-hot in each
    noised = run.release(torch.cat(histograms), event, l2_bound=bound, what=what)
    std = event.noise_multiplier * bound
    norms, *losses = (counts.tolist() for counts in noised.split(rule.BINS))
    look = Look(rule.quantile(norms, std, rule.NORMS))
    return (
        look._replace(typical_loss=rule.typical_loss(losses[0], std), losses=tuple(losses[0]), noise_std=std)
        if losses
        else look
    )


def _of_norms(run: Run, task: Task) -> Tensor:
    counts = torch.zeros(rule.BINS, dtype=torch.float64)
    run.engine.begin_epoch()
    for batch, records in run.all_records():
        run.engine.open(batch.rows, batch.padding, records, batch.lengths)
        backward_pass(run.engine, task.losses(records))
        tape = run.engine.close()
        if not hasattr(tape, "norms"):
            raise BadArgument("epsilon=inf: nothing is measured in a run without privacy")
        if not batch.masked:  # the row that stands for no record at all
            counts += histogram(tape.norms.cpu(), rule.NORMS)
    run.engine.end_epoch()
    return counts


def sum_of_rows(run: Run, rows: Callable[[Any], Tensor], of: Callable[[Tensor], Tensor]) -> Tensor:
    """The sum over all records of what `of` makes of a batch's rows, one number a record. Private: for `run.release` alone."""
    total = of(torch.zeros(0))
    with modes.evaluating(run.model):
        for batch, records in run.all_records():
            if not batch.masked:
                total = total + of(one_a_row(rows(records), batch.rows))
    return total


def one_a_row(found: Tensor, rows: int) -> Tensor:
    if found.shape != (rows,):
        raise ClipwiseError(
            "what was found of a batch is not one number a row; loss= gives losses, or (losses, right), of shape (rows,)"
        )
    return found.double().cpu()


def histogram(numbers: Tensor, bins: rule.Bins) -> Tensor:
    """How many are in each bin; one that is not finite is in none."""
    usable = numbers[numbers.isfinite()]
    return torch.bincount(rule.histogram_place(usable, bins), minlength=rule.BINS).double()
