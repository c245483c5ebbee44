"""What the commands print, and where.

With `--json`, stdout gets one JSON object and nothing else; otherwise results go to stdout, for people. Progress
and messages always go to stderr. JSON has no infinity: an infinite epsilon is null, with "private": false beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from clipwise.training.folder import finite

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object and nothing else (an infinite epsilon is null).")
]


def messages() -> Console:
    """Where people read: made anew each time, so that it follows a redirected stderr."""
    return Console(stderr=True)


def rounded_up(value: float, digits: int = 6) -> str:
    """So many significant digits, and never below the value: for an epsilon or a noise multiplier that people copy."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    places = digits - 1 - math.floor(math.log10(value))
    return f"{math.ceil(value * 10.0**places * (1 - 1e-14)) / 10.0**places:.{digits}g}"


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    typer.echo(json.dumps(finite(value), allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on stdout; folded rather than cut, so that nothing is lost in a narrow terminal or a pipe."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=place == 0)  # the first names the row: never broken
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console().print(table, markup=False)


def print_lines(columns: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> None:
    """Rows without a frame on stdout: all columns but the last as wide as they need, the last folded within its own."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=columns is not None)
    for place, column in enumerate(columns or rows[0]):
        table.add_column(column if columns else "", no_wrap=place < len(rows[0]) - 1, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table, markup=False)
