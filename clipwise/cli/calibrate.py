"""`clipwise calibrate`: the noise that a budget asks for."""

from __future__ import annotations

from typing import Annotated

import typer

from clipwise.cli import output


def calibrate(
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    sample_rate: Annotated[float, typer.Option(help="The chance that a record joins a batch.")],
    steps: Annotated[int, typer.Option(help="Optimizer steps.")],
    delta: Annotated[float, typer.Option(help="Below 1 / number of records.")] = 1e-5,
    accountant: Annotated[str, typer.Option(help="rdp, pld, or best (the smaller of the two).")] = "best",
    as_json: output.JsonOption = False,
) -> None:
    """The smallest noise multiplier that keeps a run within the budget."""
    from clipwise.accounting import StepEvent
    from clipwise.accounting import calibrate as smallest
    from clipwise.accounting import epsilon as account

    noise_multiplier = smallest(epsilon, delta, sample_rate, steps, accountant)
    spent = account([StepEvent(sample_rate, noise_multiplier, steps)], delta, accountant)
    if as_json:
        output.print_json(
            {
                "noise_multiplier": noise_multiplier,
                "epsilon": spent.value,
                "target_epsilon": epsilon,
                "delta": spent.delta,
                "accountant": spent.accountant,
                "sample_rate": sample_rate,
                "steps": steps,
            }
        )
    else:
        typer.echo(
            f"noise multiplier = {noise_multiplier:.10g} spends epsilon = {spent.value:.6g} of {epsilon:g} "
            f"at delta = {spent.delta:g} ({spent.accountant} accountant)"
        )
