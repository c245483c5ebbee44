"""`clipwise claims`: the privacy figures that papers publish, recomputed, beside honest ones."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from clipwise.cli import output
from clipwise.types import BadArgument


def claims(
    paper: Annotated[str | None, typer.Option(help="000, 001, 002 or 003; all without it.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the tables, and how the figures come about, here.")
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Privacy figures that papers publish, recomputed, and what every step counted costs."""
    from clipwise.accounting.claims import PAPERS, page, rows

    todo = rows(paper)
    if markdown is not None and not markdown.resolve().parent.is_dir():
        raise BadArgument(f"markdown={str(markdown)!r}: its folder does not exist; make it first")
    console = output.messages()
    found = []
    with _progress(console) as progress:
        task = progress.add_task("claims", total=len(todo))
        for row in todo:
            found.append(row())
            progress.update(task, advance=1, description=f"{found[-1].paper}, {found[-1].table}")
    if markdown is not None:
        markdown.write_text(page.markdown(found, shlex.join(["clipwise", *sys.argv[1:]])), encoding="utf-8")
    if as_json:
        output.print_json([dataclasses.asdict(claim) for claim in found])
        return
    out, last = Console(), None
    for section in page.sections(found):
        number = section.title[:3]
        if number != last:
            out.print(f"\n[bold]{number}[/]: {escape(PAPERS[number].TITLE)}\n")
            last = number
        out.print(section.shared, markup=False, highlight=False)
        output.print_table(section.title, page.COLUMNS, section.cells)
        for place, note in enumerate(section.notes, 1):
            out.print(f"[{place}] {note}", markup=False, highlight=False)
        out.print()


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
