"""`clipwise account`: the epsilon that a run spends."""

from __future__ import annotations

from typing import Annotated

import typer

from clipwise.cli import output, run_options


def account(
    noise_multiplier: Annotated[float, typer.Option(help="Noise std / l2 bound, at the first step.")],
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
    attack: Annotated[
        bool, typer.Option(help="Also print the highest true-positive rate that any attack can reach.")
    ] = False,
    as_json: output.JsonOption = False,
) -> None:
    """The epsilon that a run with these settings spends."""
    from clipwise.accounting import epsilon, trade_off
    from clipwise.statement import ATTACK_SOURCES, shown_percent

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
    events = run.events(noise_multiplier)
    spent = epsilon(events, delta, accountant)
    found = trade_off(events, spent.value, spent.delta, whole_curve=accountant != "rdp")
    if as_json:
        output.print_json(
            {
                "epsilon": spent.value,
                "private": spent.value != float("inf"),
                "delta": spent.delta,
                "accountant": spent.accountant,
                "noise_multiplier": noise_multiplier,
                "attack": list(found.pairs()),
                "attack_source": found.source,
                **run_options.described(run),
            }
        )
    else:
        typer.echo(
            f"epsilon = {output.rounded_up(spent.value)} at delta = {spent.delta:g} ({spent.accountant} accountant)"
        )
        typer.echo(run_options.sentence(run))
        if attack:
            for false, true in zip(found.false_positive_rates, found.true_positive_rates, strict=True):
                typer.echo(
                    f"any attack: at most {shown_percent(true)} true positives at {100 * false:g} % false positives"
                )
            typer.echo(ATTACK_SOURCES[found.source])
