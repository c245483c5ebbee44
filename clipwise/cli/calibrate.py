"""`clipwise calibrate`: the noise that a budget asks for."""

from __future__ import annotations

from typing import Annotated

import typer

from clipwise.cli import output, run_options


def calibrate(
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    sample_rate: run_options.SampleRate = None,
    steps: run_options.Steps = None,
    epochs: run_options.Epochs = None,
    batch: run_options.Batch = None,
    samples: run_options.Samples = None,
    schedule: run_options.ScheduleText = None,
    decay: run_options.Decay = None,
    every: run_options.Every = None,
    sampling: run_options.Sampling = "poisson",
    delta: run_options.Delta = 1e-5,
    accountant: run_options.Accountant = "best",
    as_json: output.JsonOption = False,
) -> None:
    """The smallest noise multiplier, at the first step, that keeps a whole run within the budget."""
    from clipwise.accounting import epsilon as account

    run = run_options.planned_run(
        sample_rate=sample_rate,
        steps=steps,
        epochs=epochs,
        batch=batch,
        samples=samples,
        schedule=schedule,
        decay=decay,
        every=every,
        sampling=sampling,
    )
    noise_multiplier = run.calibrate(epsilon, delta, accountant)
    spent = account(run.events(noise_multiplier), delta, accountant)
    if as_json:
        output.print_json(
            {
                "noise_multiplier": noise_multiplier,
                "epsilon": spent.value,
                "target_epsilon": epsilon,
                "delta": spent.delta,
                "accountant": spent.accountant,
                **run_options.described(run),
            }
        )
    else:
        typer.echo(
            f"noise multiplier = {output.rounded_up(noise_multiplier, 10)} spends epsilon = {output.rounded_up(spent.value)} of "
            f"{epsilon:g} at delta = {spent.delta:g} ({spent.accountant} accountant)"
        )
        typer.echo(run_options.sentence(run))
