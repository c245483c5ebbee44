"""`clipwise study`: a grid of runs from a file, side by side."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from clipwise.cli import output
from clipwise.types import BadArgument, ClipwiseError

if TYPE_CHECKING:
    from clipwise.lab.study import Outcome, Study

AsItIs = Annotated[bool, typer.Option("--as-it-is", help="Run nothing: table and page of the results that are there.")]


def study(
    file: Annotated[
        Path | None,
        typer.Argument(help="The study: a name from --list, or a TOML file; with --list, a folder of your own files."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the study files, and run nothing.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="The file's short version, in minutes.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Runs at once; by default, one a core.")] = None,
    executor: Annotated[str, typer.Option(help="Where they run: local (this machine) or ray (a cluster).")] = "local",
    out: Annotated[Path | None, typer.Option(help="Where results go; an earlier study there goes on.")] = None,
    publish: Annotated[
        Path | None, typer.Option(help="Also write NAME.md, NAME.jsonl and pictures to this folder (docs/results).")
    ] = None,
    as_it_is: AsItIs = False,
    as_json: output.JsonOption = False,
) -> None:
    """Run a grid of methods, budgets, data sets and seeds; killed, it goes on where it stopped."""
    from clipwise.lab.report.study_report import write_study_report
    from clipwise.lab.study import read_study, to_markdown

    if listed:
        _list(file, as_json)
        return
    if file is None:
        raise BadArgument("FILE: no study was named; give a name from `clipwise study --list`, or a TOML file")
    made = read_study(file, quick=quick)
    folder = out or Path("runs") / f"study-{made.name}{'-quick' if quick else ''}"
    lines, failures = (found_there(made, folder), []) if as_it_is else run_and_tell(made, folder, jobs, executor)
    about = made.about(f"clipwise study {file}{' --quick' if quick else ''}")
    table = to_markdown(about, lines)
    about.write(folder)
    (folder / "table.md").write_text(table, encoding="utf-8")
    page, pictures = write_study_report(folder)
    if publish is not None:
        _publish(publish, made.name, table, lines, pictures)
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


def _publish(where: Path, name: str, table: str, lines: list[dict[str, Any]], pictures: dict[Path, str]) -> None:
    from clipwise.lab.report.figures import in_markdown

    where.mkdir(parents=True, exist_ok=True)
    shown = [in_markdown(f"{name}-{picture.name}", alt) for picture, alt in pictures.items()]
    (where / f"{name}.md").write_text("\n".join([table, *shown]), encoding="utf-8")
    written = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    (where / f"{name}.jsonl").write_text(written, encoding="utf-8")
    for picture in pictures:
        shutil.copyfile(picture, where / f"{name}-{picture.name}")


def found_there(made: Study, folder: Path) -> list[dict[str, Any]]:
    """The lines of a study that was cut."""
    from clipwise.lab.study import read_results

    found = {line["id"]: line for line in read_results(folder / "results.jsonl")}
    lines = [found[trial.id] for trial in made.trials if trial.id in found]
    if not lines:
        raise BadArgument(f"out={str(folder)!r} has no results of this study; leave out --as-it-is to run it")
    return lines


def run_and_tell(
    made: Study, folder: Path, jobs: int | None, executor: str = "local"
) -> tuple[list[dict[str, Any]], list[Outcome]]:
    """Run what is missing of a study, and show on stderr how it goes."""
    from clipwise.cli.study_progress import Progress
    from clipwise.lab.study import run_study

    jobs = jobs or os.cpu_count() or 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the runs under way, as Ctrl-C does
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    with Progress(made, folder, jobs, output.messages()).shown() as watcher:
        return run_study(made, folder, jobs=jobs, watcher=watcher, executor=executor)


def some_failed(made: Study, failures: list[Outcome]) -> ClipwiseError:
    return ClipwiseError(
        f"{len(failures)} of {len(made.trials)} runs failed, the first with: {failures[0].error}; run the study again to "
        "try these once more"
    )


def _list(own: Path | None, as_json: bool) -> None:
    """One line a file: runs, minutes and what it compares with; of one file alone, all that it says of itself."""
    from clipwise.lab.study import FILES, located, read_study

    folder = FILES if own is None else located(own)
    files = [folder] if folder.is_file() else sorted(folder.glob("*.toml"))
    if not files:
        raise BadArgument(
            f"{str(folder)!r} holds no study files (*.toml); name the folder where yours are, or none for ours"
        )
    found = []
    for path in files:
        whole, short = (read_study(path, quick=quick, check=False) for quick in (False, True))
        facts = {name: getattr(whole, name) for name in _LISTED}
        facts["command"] = f"clipwise study {path.stem if own is None else own}"
        found.append({"file": str(path), **facts, "runs": len(whole.trials), "quick_runs": len(short.trials)})
    if as_json:
        output.print_json(found)
    elif len(found) == 1 and folder.is_file():
        _print_all(found[0])
    else:
        _print_lines(found, own)


_LISTED = ("title", "source", "differs", "tuning_cost", "tuning", "minutes")


def _print_lines(found: list[dict[str, Any]], own: Path | None) -> None:
    rows = [
        (
            Path(row["file"]).stem if own is None else Path(row["file"]).name,
            *(str(row["runs"]), f"{row['minutes']:g}", _in_short(row["source"]) or "nothing published"),
        )
        for row in found
    ]
    output.print_lines(("study", "runs", "min", "compares with"), rows)
    output.messages().print(
        "Minutes are on 2 cores. `clipwise study --list NAME` says what a study is and what differs; `--quick` runs a part of it.",
        highlight=False,
    )


def _in_short(source: str) -> str:
    """Paper and tables, without remarks: one line of a narrow terminal, mostly."""
    return re.sub(r" \([^)]*\)|DP-SGD-(?=Global)|[:;].*", "", source)


def _print_all(row: dict[str, Any]) -> None:
    runs = f"{row['runs']} on 2 cores in about {row['minutes']:g} minutes; {row['quick_runs']} with --quick"
    facts = {
        "study": row["title"],
        "compares with": row["source"] or "nothing published",
        "what differs": row["differs"],
        "tuning": f"{row['tuning_cost']}; {row['tuning']}",
        "runs": runs,
        "command": row["command"],
    }
    output.print_lines(None, list(facts.items()))
