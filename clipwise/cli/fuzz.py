"""`clipwise fuzz`: damaged files against everything that reads files."""

from __future__ import annotations

from typing import Annotated

import typer

from clipwise.cli import output
from clipwise.types import BadArgument


def fuzz(
    seconds: Annotated[float, typer.Option(help="In all, shared by the readers.")] = 600.0,
    reader: Annotated[list[str] | None, typer.Option(help="One of them; may be repeated. Default: all.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed makes the same damaged files.")] = 0,
    as_json: output.JsonOption = False,
) -> None:
    """Damage valid files in many ways, and see that each is refused by name or read, at once, and nothing is executed."""
    from clipwise import validate
    from clipwise.lab.audit.fuzz import READERS
    from clipwise.lab.audit.fuzz import fuzz as run
    from clipwise.types import ClipwiseError

    validate.positive("seconds", seconds)
    names = reader or list(READERS)
    if unknown := [name for name in names if name not in READERS]:
        raise BadArgument(f"reader={unknown[0]!r} is not known; choose one of {', '.join(READERS)}")
    outcomes = [run(READERS[name](), seconds / len(names), seed) for name in names]
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    if as_json:
        rows = [{"reader": o.reader, "trials": o.trials, "refused": o.refused, "read": o.read} for o in outcomes]
        output.print_json({"seed": seed, "readers": rows, "failures": failures})
    else:
        table = [[o.reader, o.trials, o.refused, o.read, len(o.failures)] for o in outcomes]
        output.print_table("damaged files", ["reader", "trials", "refused by name", "read", "failures"], table)
        for failure in failures:
            typer.echo(failure)
    if failures:
        raise ClipwiseError(f"{len(failures)} damaged files were not met as they should be; the first: {failures[0]}")
