"""`clipwise init`: a commented config for an own file, ready for `clipwise train --config`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from clipwise.cli import output
from clipwise.types import BadArgument


def init(
    file: Annotated[
        Path, typer.Argument(help="A table (.csv, .tsv, .parquet, .arrow, .feather) or a folder of your own.")
    ],
    label: Annotated[str | None, typer.Option(help="The column to be predicted.")] = None,
    epsilon: Annotated[float, typer.Option(help="The privacy budget to write down.")] = 3.0,
    out: Annotated[Path, typer.Option(help="The config to write; it must not exist yet.")] = Path("clipwise.toml"),
    as_json: output.JsonOption = False,
) -> None:
    """Write a commented config for a file of your own: what is understood of it, and what to state as public."""
    from clipwise import durable, validate
    from clipwise.cli.data import read_own
    from clipwise.data.describe import config_text, describe

    validate.positive("epsilon", epsilon, "give a budget above 0, such as 3")
    validate.path("out", str(out))
    text = config_text(str(file.resolve()), describe(read_own(file), label, file), epsilon=epsilon)
    if os.path.lexists(out):
        raise BadArgument(f"out={str(out)!r} exists already; name another with --out")
    try:
        durable.write(out, text)
    except OSError as error:
        raise BadArgument(f"out={str(out)!r} cannot be written ({error}); name another with --out") from error
    if as_json:
        output.print_json({"config": str(out), "text": text})
        return
    typer.echo(f"Wrote {out}. Read it, then: clipwise train --config {out} --out RUN")
