"""`clipwise account`: the epsilon that a run spends."""

from __future__ import annotations

from typing import Annotated

import typer

from clipwise.cli import output


def account(
    sample_rate: Annotated[float, typer.Option(help="The chance that a record joins a batch.")],
    steps: Annotated[int, typer.Option(help="Optimizer steps.")],
    noise_multiplier: Annotated[float, typer.Option(help="Noise std / l2 bound.")],
    delta: Annotated[float, typer.Option(help="Below 1 / number of records.")] = 1e-5,
    accountant: Annotated[str, typer.Option(help="rdp, pld, or best (the smaller of the two).")] = "best",
    as_json: output.JsonOption = False,
) -> None:
    """The epsilon that a run with these settings spends."""
    from clipwise.accounting import StepEvent, epsilon

    spent = epsilon([StepEvent(sample_rate, noise_multiplier, steps)], delta, accountant)
    private = spent.value != float("inf")
    if as_json:
        output.print_json(
            {
                "epsilon": spent.value,
                "private": private,
                "delta": spent.delta,
                "accountant": spent.accountant,
                "sample_rate": sample_rate,
                "steps": steps,
                "noise_multiplier": noise_multiplier,
            }
        )
    else:
        typer.echo(f"epsilon = {spent.value:.6g} at delta = {spent.delta:g} ({spent.accountant} accountant)")
