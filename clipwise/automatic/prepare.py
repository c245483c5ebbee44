"""All that an automatic run measures before its first step, in a run of its own on the same ledger.

Formal guarantee: what is released here is two histograms (inputs.py, measure.py) and the rounds of a race (race.py). Their events follow from
`phases`, a function of public facts; the noise of the training is calibrated with them inside the same target, and each is charged
before its noise exists. Everything else that this file returns is post-processing. Weights, buffers, modes and
generators are put back, so that the training begins where the user's model was.

A run that dies in here begins again: what was charged stays charged, other noise is drawn, and the training gets as much more
noise as that makes necessary. What was found is kept with every checkpoint (as options of the method), and is not measured twice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from clipwise import guards, modes, plans
from clipwise.automatic import rule
from clipwise.automatic.choice import Choice
from clipwise.automatic.inputs import Seen, can_be_centred, first_layer, found_centre, found_scale, seen_inputs
from clipwise.automatic.measure import Look, first_look
from clipwise.automatic.pilot import Pilot, adam, check_optimizer
from clipwise.automatic.race import race
from clipwise.automatic.task import Task
from clipwise.checkpoint import Checkpoints
from clipwise.clipping import Auto
from clipwise.mechanism import Mechanism
from clipwise.optim import WeightAverage
from clipwise.plans import Facts, Phase
from clipwise.ranks import unwrapped
from clipwise.run import Run
from clipwise.state import Generators
from clipwise.types import BadArgument, ClipwiseError


class Prepared(NamedTuple):
    """What the training begins with."""

    mechanism: Mechanism  # whose method holds what was found
    measured: Run  # closed; the training follows it
    said: tuple[str, ...]
    input_mean: Tensor | None  # what the first layer's inputs are seen less of; kept with checkpoints


def phases(mechanism: Mechanism, facts: Facts) -> tuple[Phase, ...]:
    """What the measuring costs, before anything is read."""
    plan = _measuring(mechanism, facts)
    found = [
        Phase("histogram of input sizes", plan.input_noise),
        Phase("sum of inputs", plan.centre_noise),
        Phase("histogram of centred sizes", plan.input_noise),
        Phase("histogram of gradient norms", plan.histogram_noise),
    ]
    for number, each in enumerate(plan.rounds, 1):
        found.append(Phase(f"race, round {number}: steps", each.noise, each.rates * each.steps, each.part))
        found.append(Phase(f"race, round {number}: scores", each.score_noise))
    return tuple(found)


def _measuring(mechanism: Mechanism, facts: Facts) -> rule.Measuring:
    sample_rate, steps = plans.length(mechanism, facts)
    if steps is None:
        raise BadArgument(
            "epochs=None: the rate that a run finds depends on its length; give the epochs that are planned"
        )
    if mechanism.noise_multiplier is not None:
        return rule.measuring(rule.mu_of_steps(sample_rate, mechanism.noise_multiplier, steps), steps, facts.records)
    if mechanism.epsilon is None or mechanism.delta is None:
        raise BadArgument(
            "epsilon=None and noise_multiplier=None: give exactly one of the two, such as epsilon=3.0"
            if mechanism.epsilon is None
            else "delta=None: a target epsilon holds at some delta; give one well below 1 / size of the data set, such as 1e-5"
        )
    return rule.measuring(rule.gaussian_mu(mechanism.epsilon, mechanism.delta), steps, facts.records)


def prepare(model: nn.Module, loader: DataLoader[Any], choice: Choice, task: Task, **of_run: Any) -> Prepared:
    """Measure, and find the rate. `of_run` are arguments of `Run` that the training will have too."""
    optimizer, layer = adam(model.parameters()), first_layer(unwrapped(model), task, loader)
    centred = layer if can_be_centred(unwrapped(model), task, loader, layer) else None
    run = Run(model, optimizer, loader, choice.mechanism, choice.performance, before=phases, **of_run)
    try:
        measuring = _measuring(run.mechanism, run.facts)
        events = run.plan.before
        with _as_it_was(model):
            modes.to_training(model)
            run.engine.install()
            scale = 1.0 if layer is None else found_scale(run, task, layer, events[0])
            mean = None
            if centred is not None:
                scale, mean = found_centre(run, task, centred, scale, events[1:3])
            with seen_inputs(run.model, layer, scale, mean):
                look = first_look(run, task, events[3])
                if layer is None:  # nothing to look at, but planned for; charged once all records have gone through
                    found_scale(run, task, None, events[0])
                if centred is None:
                    found_centre(run, task, None, scale, events[1:3])
                worth, asked = run.facts.records * measuring.mu, run.plan.method
                method = _clipping(asked, task, look.median_norm, worth)
                run.stepper.plan = dataclasses.replace(run.plan, method=method)
                results = race(run, optimizer, task, measuring, look, events[4:])
    finally:
        run.close()
    rate = rule.chosen_rate(results, run.facts.records, task.kind)
    best = max(results[-1].scores) / run.facts.records
    left = rule.left_over(look.losses, look.noise_std, look.typical_loss, best) if look.losses else 1.0
    method = _clipping(asked, task, look.median_norm, worth, left)
    found = dataclasses.replace(method, rate=rate, median_norm=look.median_norm)
    if scale != 1 or mean is not None:
        found = dataclasses.replace(found, input_scale=scale, input_layer=layer)
    mechanism = choice.mechanism.model_copy(update={"method": found, "method_options": {}})
    return Prepared(mechanism, run, _said(run, found, mean, task, look, measuring, results), mean)


def found_before(folder: str | Path, mechanism: Mechanism) -> Mechanism:
    """The mechanism with what an earlier part of the run found, as its last checkpoint keeps it."""
    saved = Checkpoints(folder).newest(lambda _: None)
    method = plans.method_of(mechanism)
    if saved is None or not isinstance(method, Auto):
        return mechanism
    kept = saved.facts["run"].get("method_options", {})
    found = {
        name: kept.get(name)
        for name in ("rate", "median_norm", "input_scale", "input_layer", "threshold", "gamma")
        if getattr(method, name) is None
    }
    return mechanism.model_copy(update={"method": dataclasses.replace(method, **found), "method_options": {}})


def said_again(run: Run) -> tuple[str, ...]:
    """What a run that goes on says of what was found before."""
    method = run.plan.method
    if not isinstance(method, Auto) or method.rate is None:
        return ()
    return (
        f"learning rate {method.rate:.4g} and median norm {_shown(method.median_norm)}: found before the run was interrupted, and not "
        "measured again",
    )


def _clipping(method: Any, task: Task, median: float | None, worth: float, left: float = 0.0) -> Auto:
    """The method of the race, or, where it is known what that has left of the losses, of the training."""
    if not isinstance(method, Auto):
        raise ClipwiseError(f"method {method.name!r} finds no rate")
    stated = method.threshold is not None or method.gamma is not None
    return method if stated else dataclasses.replace(method, gamma=rule.gamma_for(task.kind, median, worth, left))


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Weights, buffers, modes and the generators of torch, numpy and Python are put back at the end."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    generators = Generators().state_dict()
    try:
        with modes.kept(model):
            yield
    finally:
        with torch.no_grad():
            model.load_state_dict(state)
        for p in model.parameters():
            p.grad = None
        Generators().load_state_dict(generators)


def _said(
    run: Run,
    found: Auto,
    mean: Tensor | None,
    task: Task,
    look: Look,
    measuring: rule.Measuring,
    results: list[rule.Result],
) -> tuple[str, ...]:
    records, plan = run.facts.records, run.plan
    said = [
        f"learning rate {found.rate:.4g} (Adam's) at the start: found by a race of "
        f"{', '.join(f'{rate:.3g}' for result in results for rate in result.rates)}, whose noised scores were "
        f"{', '.join(f'{score / records:.1%}' for result in results for score in result.scores)} of the records; it may rise, late in the run, "
        f"by up to {math.exp(rule.REACH):.2g} times, and does not fall",
        f"median norm of the gradients at the first weights: {_shown(look.median_norm)}"
        + (f"; a typical loss there: {_shown(look.typical_loss)}" if task.kind == "values" else ""),
        "clipping: " + _clips(found),
        task.said,
        *(_scaled(found) if mean is None else _centred(found, mean)),
        _cost(run),
    ]
    few = rule.too_few(measuring, records)
    notes = (
        None if not plan.private else few,
        rule.far_off(look.typical_loss),
        rule.small_inputs(look.median_norm, task.blank_norm) if found.input_scale is None else None,
    )
    if found.median_norm is None:
        said.append(
            "no bin of the histogram stood out of its noise: the first guess of the rate takes the median for 1"
        )
    return (*said, *(note for note in notes if note is not None))


def _cost(run: Run) -> str:
    """What the measuring takes of the budget, as more noise on every step of the training."""
    parts = f"{sum(1 for p in run.facts.before if not p.steps)} releases on all records and {sum(p.steps for p in run.facts.before)} steps"
    if run.plan.target_epsilon is None:
        return f"measuring took {parts}, charged beside the stated noise"
    without = plans.make(run.mechanism, run.facts._replace(before=())).noise_multiplier
    more = run.plan.noise_multiplier / without - 1
    return (
        f"measuring took {parts}, inside epsilon: noise multiplier {run.plan.noise_multiplier:.4g}, and {without:.4g} without it "
        f"({more:+.1%})"
    )


def _scaled(found: Auto) -> list[str]:
    if found.input_scale is None:
        return []
    return [
        f"inputs are badly scaled: those of the first layer ({found.input_layer or 'the model itself'!r}) are multiplied by {found.input_scale:g} in training, and at "
        "its end its weights instead: the model that is released takes inputs as they are"
    ]


def _centred(found: Auto, mean: Tensor) -> list[str]:
    times = "" if found.input_scale == 1 else f"{found.input_scale:g} times "
    return [
        f"inputs have a mean: the first layer ({found.input_layer or 'the model itself'!r}) sees {times}its inputs less a noised vector of length {float(mean.norm()):.3g} in "
        "training; at its end this goes into its weights and bias: the model that is released takes inputs as they are"
    ]


def _clips(found: Auto) -> str:
    if found.threshold is not None:
        return f"at norm {found.threshold:.4g}"
    return (
        "gradients scaled to length 1"
        if found.gamma is None
        else f"gradients divided by their norm + {found.gamma:.4g}"
    )


def _shown(median: float | None) -> str:
    return "not seen" if median is None else f"{median:.3g}"


def begin(
    model: nn.Module,
    optimizer: Optimizer,
    loader: DataLoader[Any],
    choice: Choice,
    task: Callable[[], Task],
    *,
    ledger: str | Path | None,
    earlier: Sequence[str | Path],
    resume: str | Path | None,
    **of_run: Any,
) -> Run:
    """The run that trains, after what had to be measured for it. `task` is asked for only where something is."""
    guards.trainable_parameters(unwrapped(model), optimizer)  # what the training would refuse, before anything is spent
    mechanism, said, mean = choice.mechanism, choice.said, None
    more: dict[str, Any] = {"earlier": earlier, "resume": resume}
    if choice.finds_rate:
        check_optimizer(optimizer)
        more["before"] = phases
        if resume is None:
            prepared = prepare(model, loader, choice, task(), ledger=ledger, earlier=earlier, **of_run)
            mechanism, said, mean = prepared.mechanism, (*said, *prepared.said), prepared.input_mean
            more = {"follows": prepared.measured}  # whose ledger holds the earlier ones
        else:
            mechanism = found_before(resume, mechanism)
    run = Run(model, optimizer, loader, mechanism, choice.performance, ledger=ledger, **more, **of_run)
    run.input_mean = mean
    run.automatic += [*said, *(said_again(run) if choice.finds_rate and resume is not None else ())]
    return run


def accompany(
    run: Run, optimizer: Optimizer, choice: Choice, decay: float | None = None
) -> tuple[WeightAverage, Pilot | None]:
    """What goes with each step: the average of the weights (with a decay, where one is stated), and whoever sets the rate
    (nobody, where that is stated)."""
    weight = rule.average_weight if choice.averages and decay is None else None
    average = WeightAverage(run.model.parameters(), decay or 0.0, weight=weight)
    method = run.plan.method
    found = method.rate if choice.finds_rate and isinstance(method, Auto) else None
    if found is None or not isinstance(method, Auto):
        return average, None
    return average, Pilot(
        run, optimizer, average, found, Seen(run.model, method.input_layer, method.input_scale, run.input_mean)
    )
