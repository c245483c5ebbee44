"""`clipwise faults`: kill, damage and starve runs on purpose, and count what is lost; and what a long run costs."""

from __future__ import annotations

import dataclasses
import platform
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from clipwise import validate
from clipwise.cli import output
from clipwise.cli.bench import shown
from clipwise.types import BadArgument


def faults(
    only: Annotated[
        list[str] | None, typer.Option(help="Only faults whose name contains this; may be given again.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Of each fault; by default 24 for a kill, 34 for a damage, 6 for others.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is struck where.")] = 0,
    load: Annotated[bool, typer.Option("--load", help="A long run, a long ledger and a deep model, instead.")] = False,
    steps: Annotated[
        int | None, typer.Option(help="Of the long run and the long ledger; 1,000,000 by default.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table, and how it was made, here.")] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Strike runs on purpose, and count what is lost. (For the readers of files, see `clipwise fuzz`.)"""
    if trials is not None:
        validate.count("trials", trials)
    if steps is not None:
        validate.count("steps", steps)
    if markdown is not None and not markdown.resolve().parent.is_dir():
        raise BadArgument(f"markdown={str(markdown)!r}: its folder does not exist; make it first")
    if load:
        if only or trials is not None:
            raise BadArgument("--only and --trials are for faults, not for --load; leave them out")
        with shown(as_json) as show:
            _load(steps or 1_000_000, markdown, as_json, show)
        return
    if steps is not None:
        raise BadArgument("--steps is for --load; leave it out")
    from clipwise.lab.faults import table

    with shown(as_json) as show:
        rows = table.run(table.choose(only or []), trials=trials, seed=seed, show=show)
    if markdown is not None:
        markdown.write_text(table.markdown(rows, _command(), _about()), encoding="utf-8")
    if as_json:
        output.print_json([dataclasses.asdict(row) for row in rows])
    else:
        output.print_table("faults", ("fault", "trials", "survived", "lost"), [
            (row.fault, row.trials, row.survived, row.lost) for row in rows
        ])  # fmt: skip
        for row in rows:
            for loss in row.losses:
                output.messages().print(f"lost: {row.fault}, {loss}", markup=False, highlight=False)
    if any(row.lost for row in rows):
        raise typer.Exit(1)


def _load(steps: int, markdown: Path | None, as_json: bool, show: Callable[[str, float], None]) -> None:
    from clipwise.lab.faults import load

    figures = load.measure(steps, show)
    if markdown is not None:
        markdown.write_text(load.markdown(figures, _command(), _about()), encoding="utf-8")
    if as_json:
        output.print_json([dataclasses.asdict(figure) for figure in figures])
    else:
        output.print_table("load", load.COLUMNS, load.cells(figures))
    if any(not figure.reached for figure in figures):
        raise typer.Exit(1)


def _command() -> str:
    return shlex.join(["clipwise", *sys.argv[1:]])


def _about() -> str:
    import torch

    return f"Python {platform.python_version()}, torch {torch.__version__}, {platform.system()} {platform.machine()}"
