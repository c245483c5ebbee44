"""`clipwise figures`: figures of the papers that are computed and not trained for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clipwise.cli import output

_PAGE = "paper_figures"


def figures(
    publish: Annotated[Path, typer.Option(help=f"The folder for {_PAGE}.md and its pictures (docs/results).")],
    made_only: Annotated[bool, typer.Option("--made-only", help="Made data alone: no run on MNIST.")] = False,
    as_json: output.JsonOption = False,
) -> None:
    """Draw what needs no study: DC-SGD's Figures 2, 3, 4 and 8, DP-SGD-Global-Adapt-V2's Figure 2, and OSO-DPSGD's Figure 1."""
    from clipwise.lab.figures import along_figures, made_figures, seen_figures
    from clipwise.lab.figures.page import write_page

    drawn = made_figures() + ([] if made_only else seen_figures() + along_figures())
    command = f"clipwise figures --publish {publish}{' --made-only' if made_only else ''}"
    page = write_page(drawn, publish, _PAGE, command)
    if as_json:
        output.print_json({"page": str(page), "figures": [figure.name for figure in drawn]})
    else:
        typer.echo(f"page: {page}")
