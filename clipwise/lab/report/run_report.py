"""Writes a run's page and pictures: read first, drawn next, written last, so that a bad folder leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from clipwise.lab.report.figures import run_figures
from clipwise.lab.report.page import pictured, run_page
from clipwise.lab.report.plots import png
from clipwise.lab.report.run_record import RunRecord, read_run
from clipwise.training.folder import RunFolder
from clipwise.types import BadArgument


class Written(NamedTuple):
    page: Path
    pictures: tuple[Path, ...]
    record: RunRecord


def write_run_report(run: str | Path, out: str | Path | None = None) -> Written:
    """`report.html` and `report/*.png` in the run folder, or in `out`. A report that is there already is replaced."""
    record = read_run(run)
    folder = record.path if out is None else Path(out)
    figures = run_figures(record.lines, record.steps, target_epsilon=record.target_epsilon, test_size=record.test_size)
    page = run_page(record, figures, beside=folder)
    drawn = {f"{figure.name}.png": png(figure) for figure in pictured(record, figures)}
    pictures = folder / "report"
    try:
        pictures.mkdir(parents=True, exist_ok=True)
        for name, content in drawn.items():
            RunFolder(pictures).write(name, content)
        RunFolder(folder).write("report.html", page)
    except OSError as error:
        raise BadArgument(f"out={str(folder)!r} cannot be written ({error}); name a folder with --out") from error
    return Written(folder / "report.html", tuple(pictures / name for name in drawn), record)
