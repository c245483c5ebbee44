"""`clipwise study`: a grid of runs from a file, side by side."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from clipwise.cli import output
from clipwise.types import ClipwiseError

if TYPE_CHECKING:
    from clipwise.study import Outcome, Study


def study(
    file: Annotated[Path, typer.Argument(help="The study, a TOML file; see studies/.")],
    quick: Annotated[bool, typer.Option("--quick", help="The file's short version, in minutes.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Runs at once; by default, one a core.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where results go; an earlier study there goes on.")] = None,
    publish: Annotated[
        Path | None, typer.Option(help="Also write NAME.md and NAME.jsonl to this folder (docs/results).")
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Run a grid of methods, budgets, data sets and seeds; killed, it goes on where it stopped."""
    from clipwise.report.study_report import write_study_report
    from clipwise.study import read_study, to_markdown

    made = read_study(file, quick=quick)
    folder = out or Path("runs") / f"study-{made.name}{'-quick' if quick else ''}"
    lines, failures = run_and_tell(made, folder, jobs)
    about = made.about(f"clipwise study {file}{' --quick' if quick else ''}")
    table = to_markdown(about, lines)
    about.write(folder)
    (folder / "table.md").write_text(table, encoding="utf-8")
    page = write_study_report(folder).page
    if publish is not None:
        publish.mkdir(parents=True, exist_ok=True)
        (publish / f"{made.name}.md").write_text(table, encoding="utf-8")
        shutil.copyfile(folder / "results.jsonl", publish / f"{made.name}.jsonl")
    if as_json:
        output.print_json(
            {"study": made.name, "out": str(folder), "finished": len(lines), "failed": len(failures), "page": str(page)}
        )
    else:
        from rich.markdown import Markdown

        Console().print(Markdown(table))
        typer.echo(f"results: {folder / 'results.jsonl'}\ntable:   {folder / 'table.md'}\npage:    {page}")
    if failures and as_json:
        raise typer.Exit(1)  # the object above says how many
    if failures:
        raise some_failed(made, failures)


def run_and_tell(made: Study, folder: Path, jobs: int | None) -> tuple[list[dict[str, Any]], list[Outcome]]:
    """Run what is missing of a study, with a line on stderr for each run that ends."""
    from clipwise.study import run_study

    jobs = jobs or os.cpu_count() or 1
    console = output.messages()
    clock = _Clock()

    def on_start(done: int, total: int) -> None:
        clock.begin(done, total)
        console.print(f"{made.title or made.name}: {total} runs, {done} done before, {jobs} at once", highlight=False)

    def on_outcome(outcome: Outcome) -> None:
        clock.tick()
        trial, line = outcome.trial, outcome.line
        what = f"{trial.variant}, epsilon {trial.config.epsilon:g}" if trial.config.epsilon else trial.variant
        how = f"failed: {outcome.error}" if line is None else _figure(line)
        console.print(
            f"[{clock.done}/{clock.total}] {what}, seed {trial.config.seed}: {how} ({outcome.seconds:.0f} s; {clock.left()})",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the runs under way, as Ctrl-C does
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    return run_study(made, folder, jobs=jobs, on_start=on_start, on_outcome=on_outcome)


def some_failed(made: Study, failures: list[Outcome]) -> ClipwiseError:
    return ClipwiseError(
        f"{len(failures)} of {len(made.trials)} runs failed, the first with: {failures[0].error}; run the study again to "
        "try these once more"
    )


def _figure(line: Any) -> str:
    return "no test data" if line["accuracy"] is None else f"{line['accuracy']:.2%}"


class _Clock:
    """How long it may still take, from the runs of this call."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self.done = self.total = self._before = 0

    def begin(self, done: int, total: int) -> None:
        self.done, self._before, self.total = done, done, total

    def tick(self) -> None:
        self.done += 1

    def left(self) -> str:
        elapsed, finished = time.monotonic() - self._start, self.done - self._before
        seconds = elapsed / max(1, finished) * (self.total - self.done)
        return "all done" if self.done == self.total else f"about {seconds / 60:.0f} min left"
