"""The race: short private runs with a few rates each, scored, and thrown away.

Formal guarantee: every step of it is a step of the run's own stepper, at more noise than the training's, charged as such before that
noise exists. The scores of a round are sums over all records of one number in 0..1 a record and rate: one record moves the
vector of K scores by at most sqrt(K) in l2, and they are one Gaussian release. Which rates come next, and which one wins, depends on
the data through these alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from clipwise.accounting import Event
from clipwise.automatic import rule
from clipwise.automatic.measure import Look, sum_of_rows
from clipwise.automatic.task import Task
from clipwise.optim import WeightAverage
from clipwise.plans import Plan
from clipwise.run import Run
from clipwise.schedules import Schedule
from clipwise.types import ClipwiseError


def race(
    run: Run, optimizer: Optimizer, task: Task, measuring: rule.Measuring, look: Look, events: Sequence[Event]
) -> list[rule.Result]:
    """All rounds; `events` has two for each, its steps and its scores, as the plan has them."""
    plan, batches, results = run.plan, run.batches, list[rule.Result]()
    middle = rule.first_guess(
        look.median_norm, look.typical_loss, plan.steps or 0, kind=task.kind, linear=task.linear, made=task.made_norm
    )
    first = {name: value.clone() for name, value in run.model.state_dict().items()}
    for each, steps, scores in zip(measuring.rounds, events[::2], events[1::2], strict=True):
        rates = rule.race_rates(measuring, middle, results)
        run.stepper.plan = own = _of_its_own(plan, each, steps)
        run.batches = batches.drawing(own.sampler)
        sums = [_score_of(run, optimizer, task, look, rate, each.steps, first) for rate in rates]
        bound = math.sqrt(len(rates))
        what = f"scores of {len(rates)} learning rates after {each.steps} steps each"
        noised = run.release(torch.tensor(sums, dtype=torch.float64), scores, l2_bound=bound, what=what)
        results.append(rule.Result(rates, tuple(noised.tolist()), scores.noise_multiplier * bound))
    run.stepper.plan, run.batches = plan, batches
    return results


def _of_its_own(plan: Plan, each: rule.Round, planned: Event) -> Plan:
    """The plan of a round's steps: smaller batches, and noise that is constant whatever the training's schedule; what they cost
    is what was planned for, or nothing runs."""
    sampler = plan.sampler.smaller(each.part)
    own = dataclasses.replace(
        plan,
        sampler=sampler,
        expected_batch_size=plan.expected_batch_size * sampler.sample_rate / plan.sample_rate,
        noise_multiplier=plan.noise_multiplier * each.noise,
        schedule=Schedule(),
    )
    if own.event(0) != dataclasses.replace(planned, count=1) or planned.count != each.rates * each.steps:
        raise ClipwiseError(f"a round of the race would cost {own.event(0)} a step, and {planned} is planned")
    return own


def _score_of(
    run: Run, optimizer: Optimizer, task: Task, look: Look, rate: float, steps: int, first: dict[str, Any]
) -> float:
    """The sum of all records' scores after a few steps from the first weights. Private: it is released by `race` alone."""
    run.model.load_state_dict(first)
    optimizer.state.clear()
    for group in optimizer.param_groups:
        group["lr"] = rate
    run.stepper.state = run.state._replace(method=run.plan.method.init(run.plan.context))
    average = WeightAverage(run.model.parameters(), weight=rule.average_weight)
    run.engine.begin_epoch()
    for _ in run.take_steps(steps, task.losses):
        average.update()
    run.engine.end_epoch()
    with average.in_place():
        return total_score(run, task, look)


def total_score(run: Run, task: Task, look: Look) -> float:
    """Of all records, each in 0..1 whatever the task says."""
    if task.right is not None:
        return float(sum_of_rows(run, task.right, lambda right: bounded(right).sum()))
    first = look.typical_loss or 1.0
    return float(sum_of_rows(run, task.row_losses, lambda losses: bounded(rule.score_of_losses(losses, first)).sum()))


def bounded(scores: Tensor) -> Tensor:
    """Each in 0..1; 0 for one that is no number."""
    return scores.nan_to_num(0.0, 1.0, 0.0).clamp(0.0, 1.0)
