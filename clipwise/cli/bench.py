"""`clipwise bench`: what a private step costs, beside a plain one and beside Opacus."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from clipwise.cli import output
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.bench.compare import Comparison


def bench(
    against: Annotated[str, typer.Option(help="What to compare with: plain, opacus, or both.")] = "plain,opacus",
    models: Annotated[str | None, typer.Option(help="Names, separated by commas; all without it.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Measured rounds; by default as many as are stable.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Four small models, fewer rounds: two minutes.")] = False,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables, and how they were made, here.")] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Time and memory of a private step, as ratios to the plain one."""
    import dataclasses

    from clipwise import validate
    from clipwise.bench import report, workloads
    from clipwise.bench.compare import QUICK, Effort, compare, methods_against

    if rounds is not None:
        validate.count("rounds", rounds)
    if markdown is not None and not markdown.resolve().parent.is_dir():
        raise BadArgument(f"markdown={str(markdown)!r}: its folder does not exist; make it first")
    methods, notices = methods_against(_names("against", against))
    chosen = workloads.choose(None if models is None else _names("models", models), quick=quick)
    effort = dataclasses.replace(QUICK if quick else Effort(), rounds=rounds)
    console = output.messages()
    for notice in notices:
        console.print(f"note: {notice}", markup=False, highlight=False)
    with _progress(console, as_json) as progress:
        task = progress.add_task("starting", total=1.0)
        last = ""

        def show(what: str, share: float) -> None:
            nonlocal last
            progress.update(task, description=what, completed=share)
            if what != last and not (as_json or console.is_terminal):
                console.print(f"{share:4.0%} {what}", markup=False, highlight=False)
            last = what

        def write(comparison: Comparison) -> None:
            if markdown is not None:
                markdown.write_text(report.markdown(comparison, _command()), encoding="utf-8")

        comparison = compare(chosen, methods, effort, show, write)
    comparison.notices += notices
    write(comparison)
    if as_json:
        output.print_json(dataclasses.asdict(comparison))
    else:
        _print(comparison, console)
    failed = [row for row in comparison.rows if row["method"] in ("plain", "clipwise") and row.get("failed")]
    if failed:
        raise typer.Exit(1)


def _print(comparison: Comparison, console: Console) -> None:
    from clipwise.bench import report

    for section in report.sections(comparison):
        output.print_table(section.title, section.columns, section.cells)
    for note in report.notes(comparison):
        console.print(f"note: {note}", markup=False, highlight=False)


def _names(option: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise BadArgument(f"{option}={text!r} names nothing; give names separated by commas")
    return names


def _command() -> str:
    return shlex.join(["clipwise", *sys.argv[1:]])


def _progress(console: Console, quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
    )
