"""`clipwise bench`: what a private step costs, beside a plain one and beside Opacus; and what accounting costs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from clipwise.cli import output
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.lab.bench.compare import Comparison, Effort


_AGAINST = "plain,opacus"
# Of the options that not all benches have, those of each; with --methods the steps are another bench.
_TAKES: dict[str, tuple[str, ...]] = {
    "steps": ("--against", "--models", "--rounds", "--release", "--keep", "--device", "--cpu-time"),
    "--methods": ("--methods", "--models", "--rounds"),
    "checks": ("--models",),
    "growth": (),
    "accounting": (),
    "ranks": (),
    "scale": (),
}


def bench(
    what: Annotated[
        str,
        typer.Argument(
            help="steps: private steps; growth: how their cost grows with batch, parameters, layers, words, sequence and split (--quick, "
            "--markdown and --json); checks: the part of a run that its checks take (of the options, --models, --quick, --markdown and "
            "--json); accounting: how long epsilon takes; ranks: several processes beside plain DistributedDataParallel; scale: sampling, "
            "noise and accounting from 10^5 to 10^10 (--quick, --markdown and --json)."
        ),
    ] = "steps",
    methods: Annotated[
        bool, typer.Option("--methods", help="What each clipping method adds to the step of `fixed`, instead.")
    ] = False,
    against: Annotated[str, typer.Option(help="What to compare with: plain, opacus, or both.")] = _AGAINST,
    models: Annotated[str | None, typer.Option(help="Names, separated by commas; all without it.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Measured rounds; by default as many as are stable.")] = None,
    seconds: Annotated[float, typer.Option(help="To time each model for; 60 gives what docs/bench.md has.")] = 60.0,
    release: Annotated[
        Path | None, typer.Option(help="A checkout of an earlier release, to be timed in the same rounds.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="A file for the rows of each model; a run that was broken off goes on from it.")
    ] = None,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="Time of the processor, one attempt: on a busy machine, one thread.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where the steps run: cpu, cuda, cuda:1, ... (docs/gpu.md).")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Four small models, fewer rounds: two minutes.")] = False,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables, and how they were made, here.")] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Time and memory of a private step, as ratios to the plain one; or the time of accounting."""
    from clipwise import validate

    validate.choice("what", what, tuple(name for name in _TAKES if name != "--methods"))
    if markdown is not None and not markdown.resolve().parent.is_dir():
        raise BadArgument(f"markdown={str(markdown)!r}: its folder does not exist; make it first")
    stated = {
        "--methods": methods,
        "--against": against != _AGAINST,
        "--models": models is not None,
        "--rounds": rounds is not None,
        "--release": release is not None,
        "--keep": keep is not None,
        "--device": device != "cpu",
        "--cpu-time": cpu_time,
    }
    _refuse_others("--methods" if methods and what == "steps" else what, stated)
    if what == "accounting":
        _bench_accounting(quick, markdown, as_json)
    elif what == "checks":
        _bench_checks(models, quick, markdown, as_json)
    elif what != "steps":
        _bench_sections(what, quick, markdown, as_json)
    elif methods:
        _bench_methods(models, _rounds(rounds), quick, markdown, as_json)
    else:
        effort = _effort(_rounds(rounds), seconds, release, quick, cpu_time)
        _bench_steps(against, models, effort, device, quick, markdown, keep, as_json)


def _refuse_others(what: str, stated: Mapping[str, bool]) -> None:
    """What was stated of the options that this bench does not have."""
    others = [option for option, is_stated in stated.items() if is_stated and option not in _TAKES[what]]
    if others:
        raise BadArgument(f"{', '.join(others)}: `clipwise bench {what}` has no such option; leave it out")


def _rounds(rounds: int | None) -> int | None:
    from clipwise import validate

    return None if rounds is None else validate.count("rounds", rounds)


def _effort(rounds: int | None, seconds: float, release: Path | None, quick: bool, cpu_time: bool) -> Effort:
    import dataclasses

    import torch

    from clipwise import validate
    from clipwise.lab.bench.compare import QUICK, Effort

    effort = QUICK if quick else Effort(seconds=validate.positive("seconds", seconds))
    if cpu_time:
        if torch.get_num_threads() > 1:
            raise BadArgument("cpu_time=True adds up the time of all threads; run it with OMP_NUM_THREADS=1")
        effort = dataclasses.replace(effort, cpu_time=True, attempts=1)
    return dataclasses.replace(effort, rounds=rounds, release=None if release is None else _checkout(release))


def _checkout(folder: Path) -> str:
    if not (folder / "clipwise" / "__init__.py").is_file():
        raise BadArgument(
            f"release={str(folder)!r} holds no package clipwise; make one by git worktree add FOLDER COMMIT"
        )
    return str(folder)


def _bench_steps(
    against: str,
    models: str | None,
    effort: Effort,
    device: str,
    quick: bool,
    markdown: Path | None,
    keep: Path | None,
    as_json: bool,
) -> None:
    import dataclasses
    import json

    from clipwise import durable
    from clipwise.devices import usable
    from clipwise.lab.bench import report, workloads
    from clipwise.lab.bench.compare import RELEASE, Comparison, compare, methods_against

    peers, notices = methods_against(_names("against", against))
    chosen = workloads.choose(None if models is None else _names("models", models), quick=quick)
    chosen = [dataclasses.replace(workload, device=usable(device)) for workload in chosen]
    peers += [RELEASE] if effort.release else []
    begun = Comparison(**json.loads(keep.read_text())) if keep is not None and keep.exists() else None
    console = output.messages()
    for notice in notices:
        console.print(f"note: {notice}", markup=False, highlight=False)
    with shown(as_json) as show:

        def write(comparison: Comparison) -> None:
            if keep is not None:
                durable.write(keep, json.dumps(dataclasses.asdict(comparison)))
            if markdown is not None:
                markdown.write_text(report.markdown(comparison, _command()), encoding="utf-8")

        comparison = compare(chosen, peers, effort, show, write, begun)
    comparison.notices += notices
    write(comparison)
    if as_json:
        output.print_json(dataclasses.asdict(comparison))
    else:
        _print(comparison, console)
    failed = [row for row in comparison.rows if row["method"] in (row["base"], "clipwise") and row.get("failed")]
    if failed:
        raise typer.Exit(1)


def _bench_sections(what: str, quick: bool, markdown: Path | None, as_json: bool) -> None:
    """What is measured without a choice, and shown as tables."""
    import dataclasses
    from importlib import import_module

    bench = import_module(f"clipwise.lab.bench.{what}")
    with shown(as_json) as show:
        timings = bench.measure(show, quick=quick)
    if markdown is not None:
        markdown.write_text(bench.markdown(timings, _command()), encoding="utf-8")
    if as_json:
        output.print_json(dataclasses.asdict(timings))
        return
    for section in bench.sections(timings):
        output.print_table(section.title, section.columns, section.cells)


def _bench_accounting(quick: bool, markdown: Path | None, as_json: bool) -> None:
    import dataclasses

    from clipwise.lab.bench import accounting

    with shown(as_json) as show:
        timings = accounting.measure(accounting.QUICK if quick else accounting.CASES, show)
    if markdown is not None:
        markdown.write_text(accounting.markdown(timings, _command()), encoding="utf-8")
    if as_json:
        output.print_json(dataclasses.asdict(timings))
    else:
        output.print_table("epsilon by the tight accountants", accounting.COLUMNS, accounting.cells(timings))


def _bench_checks(models: str | None, quick: bool, markdown: Path | None, as_json: bool) -> None:
    import dataclasses

    from clipwise import validate
    from clipwise.lab.bench import checks
    from clipwise.lab.bench.workloads import WORKLOADS

    chosen = checks.MODELS[: 2 if quick else None] if models is None else _names("models", models)
    for name in chosen:
        validate.choice("models", name, WORKLOADS)
    with shown(as_json) as show:
        timings = checks.measure(chosen, show)
    if markdown is not None:
        markdown.write_text(checks.markdown(timings, _command()), encoding="utf-8")
    if as_json:
        output.print_json(dataclasses.asdict(timings))
    else:
        output.print_table("checks of a run", checks.COLUMNS, checks.cells(timings))


@contextmanager
def shown(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Progress as a bar on a terminal, and as a line for each new thing elsewhere."""
    console = output.messages()
    with _progress(console, quiet) as progress:
        task = progress.add_task("starting", total=1.0)
        last = ""

        def show(what: str, share: float) -> None:
            nonlocal last
            progress.update(task, description=what, completed=share)
            if what != last and not (quiet or console.is_terminal):
                console.print(f"{share:4.0%} {what}", markup=False, highlight=False)
            last = what

        yield show


def _bench_methods(models: str | None, rounds: int | None, quick: bool, markdown: Path | None, as_json: bool) -> None:
    from clipwise import validate
    from clipwise.clipping import METHODS
    from clipwise.lab.bench import clipping, report
    from clipwise.lab.bench.compare import compare_clipping
    from clipwise.lab.bench.workloads import WORKLOADS

    chosen = clipping.MODELS[1 if quick else 0 :] if models is None else _names("models", models)
    for name in chosen:
        validate.choice("models", name, WORKLOADS)
    with shown(as_json) as show:
        comparison = compare_clipping(chosen, list(METHODS), rounds or (7 if quick else 25), show)
    if markdown is not None:
        markdown.write_text(report.clipping_markdown(comparison, _command()), encoding="utf-8")
    if as_json:
        output.print_json(comparison.rows)
    else:
        for section in report.clipping_sections(comparison):
            output.print_table(section.title, section.columns, section.cells)
    if any(row.get("failed") for row in comparison.rows):
        raise typer.Exit(1)


def _print(comparison: Comparison, console: Console) -> None:
    from clipwise.lab.bench import report

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
