"""The options that describe a planned run, shared by `account` and `calibrate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.accounting import PlannedRun

SampleRate = Annotated[
    float | None, typer.Option(help="The chance that a record joins a batch; or give --batch and --samples.")
]
Steps = Annotated[int | None, typer.Option(help="Optimizer steps; or give --epochs.")]
Epochs = Annotated[
    float | None,
    typer.Option(
        help="Passes over the data, instead of --steps: round(epochs * samples / batch) steps. "
        "(With --sampling none a pass has ceil(samples / batch), and `clipwise train` counts like that.)"
    ),
]
Batch = Annotated[float | None, typer.Option(help="Expected batch size, with --samples instead of --sample-rate.")]
Samples = Annotated[int | None, typer.Option(help="Number of records.")]
ScheduleText = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        help="How the noise changes: constant, linear, time, auto-time, step, exponential, dynamic, "
        "or a text such as step:decay=0.5,every=10 or levels:1,0.9,0.8.",
    ),
]
Decay = Annotated[float | None, typer.Option(help="The schedule's R.")]
Every = Annotated[int | None, typer.Option(help="The step schedule's D, in epochs.")]
Sampling = Annotated[
    str,
    typer.Option(
        help="How batches are made: poisson; without-replacement (fixed size, drawn anew each step); none (shuffled "
        "data, batch after batch: nothing is amplified)."
    ),
]
Delta = Annotated[float, typer.Option(help="Below 1 / number of records.")]
Accountant = Annotated[str, typer.Option(help="rdp, pld, or best (the smaller of the two).")]


def planned_run(
    *,
    sample_rate: float | None,
    steps: int | None,
    epochs: float | None,
    batch: float | None,
    samples: int | None,
    schedule: str | None,
    decay: float | None,
    every: int | None,
    sampling: str,
) -> PlannedRun:
    """The run that the options describe; refuses those that say a thing twice, or not at all."""
    from clipwise import validate
    from clipwise.accounting import SAMPLING, PlannedRun, planned_steps
    from clipwise.schedules import make_schedule, written

    validate.choice("sampling", sampling, SAMPLING)
    text = written(schedule, decay, every)
    rate = _rate(sample_rate, batch, samples)
    if steps is not None and epochs is not None:
        raise BadArgument(f"--steps {steps} and --epochs {epochs:g} both give the length; leave one out")
    if steps is None:
        if epochs is None:
            raise BadArgument("Missing option --steps (or --epochs): how long the run is")
        steps = planned_steps(epochs, rate, sampling)
    return PlannedRun(rate, validate.count("steps", steps), make_schedule(text), sampling)


def _rate(sample_rate: float | None, batch: float | None, samples: int | None) -> float:
    given = {"--batch": batch, "--samples": samples}
    named = [f"{name} {value:g}" for name, value in given.items() if value is not None]
    if sample_rate is not None:
        if named:
            raise BadArgument(f"--sample-rate {sample_rate:g} and {', '.join(named)} both give the rate; leave one out")
        return sample_rate
    if batch is None or samples is None:
        missing = " and ".join(name for name, value in given.items() if value is None)
        if named:
            raise BadArgument(f"Missing option {missing}: with {', '.join(named)} it gives the sample rate")
        raise BadArgument("Missing option --sample-rate (or --batch and --samples): the chance to join a batch")
    return rate_of(batch, samples)


def rate_of(batch: float, samples: int) -> float:
    from clipwise import validate

    validate.positive("batch", batch, "give the expected batch size")
    validate.count("samples", samples)
    if batch > samples:
        raise BadArgument(f"batch={batch:g} is larger than samples={samples}; a batch has at most all records")
    return batch / samples


def described(run: PlannedRun) -> dict[str, Any]:
    """The run's public facts, for --json."""
    return {
        "sample_rate": run.sample_rate,
        "steps": run.steps,
        "schedule": str(run.schedule),
        "levels": run.levels,
        "sampling": run.sampling,
        "neighbours": run.neighbours,
    }


def sentence(run: PlannedRun) -> str:
    """What the figure is for, in a line."""
    kinds = {
        "poisson": f"Poisson batches at rate {run.sample_rate:.6g}",
        "without-replacement": f"batches of fixed size, {run.sample_rate:.6g} of the data, drawn without replacement",
        "none": "shuffled batches, no amplification",
    }
    levels = f"schedule {run.schedule}, " if run.schedule.kind != "constant" else ""
    return f"for {run.steps} steps, {levels}{kinds[run.sampling]}; neighbours: {run.neighbours}"
