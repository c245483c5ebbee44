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

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object and nothing else (an infinite epsilon is null).")
]


def messages() -> Console:
    """Where people read: made anew each time, so that it follows a redirected stderr."""
    return Console(stderr=True)


def finite(value: Any) -> Any:
    """The value with every infinity and NaN as None, ready for strict JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


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
