"""`clipwise claims`: the privacy figures that papers publish, recomputed, beside honest ones."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from clipwise.cli import output
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.lab.claims.page import Section

_WIDE = 160  # columns in which the inputs of a row fit beside its figures


def claims(
    paper: Annotated[str | None, typer.Option(help="000, 001, 002 or 003; all without it.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the tables, and how the figures come about, here.")
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Privacy figures that papers publish, recomputed, and what every step counted costs.

    An honest figure is null in JSON where no finite epsilon holds.
    """
    from clipwise.lab.claims import PAPERS, page, rows

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
        chosen = [] if paper is None else ["--paper", paper]
        command = shlex.join(["clipwise", "claims", *chosen, "--markdown", str(markdown)])
        markdown.write_text(page.markdown(found, command), encoding="utf-8")
    if as_json:
        output.print_json([dataclasses.asdict(claim) for claim in found])
        return
    # A pipe has no width of its own: wide enough there for nothing to be folded.
    out = Console() if Console().is_terminal else Console(width=_WIDE)
    last = None
    for section in page.sections(found):
        number = section.title[:3]
        if number != last:
            out.rule(f"{number}: {PAPERS[number].TITLE}")
        last = number
        _print(out, section)


def _print(out: Console, section: Section) -> None:
    """In a narrow terminal without the inputs of single rows, which --json and --markdown have."""
    from clipwise.lab.claims import page

    columns = [name for name in page.COLUMNS if name != "inputs" or out.width >= _WIDE]
    table = Table(title=section.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        number = name not in ("row", "inputs", "why")
        table.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for cells in section.cells:
        shown = zip(page.COLUMNS, cells, strict=True)
        table.add_row(*(Text(cell) for name, cell in shown if name in columns))
    out.print(table)
    out.print(Text(section.shared))
    for place, note in enumerate(section.notes, 1):
        out.print(Text(f"[{place}] {note}"))
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
