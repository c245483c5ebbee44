"""`clipwise report`: the page and the pictures of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clipwise.cli import output


def report(
    run: Annotated[Path, typer.Argument(help="The folder that `clipwise train` or `clipwise study` made.")],
    out: Annotated[
        Path | None, typer.Option(help="Where report.html and report/*.png go; the run folder itself by default.")
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Draw a run or a study: one HTML page that opens from disk, and a PNG of each chart."""
    from clipwise.lab.report.run_report import write_run_report
    from clipwise.lab.report.study_report import is_study, write_study_report

    if is_study(run):
        drawn = write_study_report(run, out)
        if as_json:
            pictures = [str(path) for path in drawn.pictures]
            output.print_json({"study": str(run), "page": str(drawn.page), "pictures": pictures})
        else:
            typer.echo("\n".join([f"page      {drawn.page}", *(f"picture   {path}" for path in drawn.pictures)]))
        return
    written = write_run_report(run, out)
    if as_json:
        output.print_json(
            {
                "run": str(run),
                "page": str(written.page),
                "pictures": [str(path) for path in written.pictures],
                "problems": list(written.record.problems),
                "figures": written.record.summary(),
            }
        )
        return
    for problem in written.record.problems:
        output.messages().print(f"note: {problem}", markup=False, highlight=False)
    typer.echo(f"page      {written.page}")
    for path in written.pictures:
        typer.echo(f"picture   {path}")
