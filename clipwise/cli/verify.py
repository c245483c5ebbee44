"""`clipwise verify`: whether the files of a run are those that it wrote, and say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clipwise.cli import output


def verify(
    run: Annotated[Path, typer.Argument(help="The folder that `clipwise train` or `clipwise tune` made.")],
    as_json: output.JsonOption = False,
) -> None:
    """Check that statement, result, ledger and weights of a run agree; fails and names the file where they do not."""
    from clipwise.training.verify import verify as check

    found = check(run)
    if as_json:
        output.print_json(
            {
                "run": str(found.path),
                "verified": found.finished,
                "finished": found.finished,
                "private": found.private,
                "epsilon": found.epsilon,
                "delta": found.delta,
                "steps": found.steps,
                "files": list(found.files),
            }
        )
        return
    if not found.finished:
        typer.echo(f"{run}: the run has not ended, or it failed; its ledger is whole and charges {found.steps} steps")
        return
    spent = "trained without privacy"
    if found.private:
        epsilon = "infinite" if found.epsilon is None else output.rounded_up(found.epsilon)
        spent = f"epsilon {epsilon} at delta {found.delta}, {found.steps} steps, as its ledger charges"
    typer.echo(f"{run}: verified, {len(found.files)} files; {spent}")
