"""`clipwise train`: one private training run, from data to run folder."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from clipwise.cli import output
from clipwise.cli.options import takes_run_options
from clipwise.cli.own_words import own_words, pair
from clipwise.cli.together import together
from clipwise.files import Malformed, parse_json
from clipwise.statement import shown_epsilon
from clipwise.training.options import TrainConfig
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from torch.nn import Module

    from clipwise.data import DataSet
    from clipwise.training.folder import RunFolder

CheckpointEvery = Annotated[
    int | None, typer.Option(help="Keep the run's state every so many steps too, beside every 5 minutes.")
]
Rescue = Annotated[
    str | None, typer.Option(help="Where to write what the run folder cannot hold; a temporary folder by default.")
]


@takes_run_options(but=("method_options", "standardize", "tensorboard", "after"))
@together
def train(
    *,
    threshold: Annotated[float | None, typer.Option(help="Short for --method-option threshold=VALUE.")] = None,
    method_option: Annotated[list[str] | None, typer.Option(help="An option of the method, NAME=VALUE.")] = None,
    decay: Annotated[float | None, typer.Option(help="R of the schedule.")] = None,
    every: Annotated[int | None, typer.Option(help="D of the step schedule, in epochs.")] = None,
    standardize: Annotated[str | None, typer.Option(help=TrainConfig.model_fields["standardize"].description)] = None,
    tensorboard: Annotated[
        str | None, typer.Option(metavar="[DIR]", help=TrainConfig.model_fields["tensorboard"].description)
    ] = None,
    after: Annotated[list[str] | None, typer.Option(help=TrainConfig.model_fields["after"].description)] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, if it did not finish.")
    ] = False,
    checkpoint_every: CheckpointEvery = None,
    rescue: Rescue = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Show the run in a browser on this machine while it trains (`clipwise watch`)."),
    ] = False,
    config: Annotated[Path | None, typer.Option(help="A .toml or .yaml file of options; those given here win.")] = None,
    as_json: output.JsonOption = False,
    **given: Any,
) -> None:
    """Train a model privately. Every option has a default: `clipwise train` alone is the demo."""
    from clipwise.schedules import written
    from clipwise.training.config import make_config, read_config

    options = dict(map(parse_option, method_option or []))
    if threshold is not None:
        options["threshold"] = threshold
    given |= {
        "method_options": options or None,
        "schedule": written(given["schedule"], decay, every),
        "standardize": None if standardize is None else _mean_and_deviation(standardize),
        "after": after or None,
        "tensorboard": True if tensorboard == "" else tensorboard,
    }
    given = own_words(given)
    where = "the options" if config is None else str(config)
    asked = make_config(merged({} if config is None else read_config(config), given), where)

    # All that can be refused is refused before the folder is made; what has no need of torch, before it is imported.
    from clipwise.training import folder as run_folder
    from clipwise.training.tensorboard import require, require_tensorboard

    if asked.tensorboard:
        require_tensorboard()
    if asked.log_to:
        require(asked.log_to)
    from clipwise.training.execute import load_asked, make_network
    from clipwise.training.resolve import resolve as resolved
    from clipwise.training.unfinished import begun, forget_if_unspent, refuse_other_settings, unfinished_beside

    dataset = load_asked(asked)
    settings = resolved(asked, dataset)
    goes_on = begun(settings.out) if resume else None
    if goes_on is not None:
        refuse_other_settings(goes_on, settings)
    network = make_network(settings, dataset)
    if resume and goes_on is None:
        forget_if_unspent(str(settings.out))
    folder = goes_on or run_folder.create(settings.out, dataset.name, settings.method)
    if not as_json:
        for sentence in dataset.warnings:
            output.messages().print(f"warning: {sentence}", highlight=False, markup=False)
        for sentence in unfinished_beside(folder, settings):
            output.messages().print(f"note: {sentence}", highlight=False, markup=False)
    run_and_show(
        folder,
        settings,
        dataset,
        network,
        resume=goes_on is not None,
        every=checkpoint_every,
        rescue=rescue,
        serve=serve,
        as_json=as_json,
    )


def run_and_show(
    folder: RunFolder,
    settings: TrainConfig,
    dataset: DataSet,
    network: Module,
    *,
    resume: bool,
    finish: bool = False,
    every: int | None,
    rescue: str | None,
    serve: bool = False,
    as_json: bool,
) -> None:
    """Train with a progress bar, and tell what came out."""
    from clipwise.training.execute import train_into

    with _served(folder, serve), _shown(int(settings.epochs or 0), quiet=as_json) as watch:
        result, _ = train_into(
            folder,
            settings,
            dataset,
            network,
            resume=resume,
            finish=finish,
            every_steps=every,
            rescue=rescue,
            **watch,
        )
    if as_json:
        output.print_json(result)
    else:
        _summary(result, folder)


@contextmanager
def _served(folder: RunFolder, serve: bool) -> Iterator[None]:
    """A page of the run while it trains, where one was asked for."""
    if not serve or not folder.writes:
        yield
        return
    from clipwise.lab.watch import Watch

    with Watch(folder.path) as served:
        output.messages().print(f"watch it at {served.url}", highlight=False, markup=False)
        yield


def merged(file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The file's options with those of the command line over them, and without what these make meaningless."""
    kept = dict(file)
    if "expected_batch_size" in given:
        kept.pop("batch", None)
    if "epsilon" in given or "noise_multiplier" in given:
        kept.pop("epsilon", None), kept.pop("noise_multiplier", None)
    options = kept.pop("method_options", {}) if given.get("method", kept.get("method")) == kept.get("method") else {}
    kept.pop("method_options", None)
    if isinstance(options, Mapping):
        options = {**options, **given.get("method_options", {})}
    return {**kept, **given, **({"method_options": options} if options else {})}


def parse_option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadArgument(f"--method-option {text!r} has no value; write it as NAME=VALUE")
    try:
        return name, parse_json(value)  # numbers, true, false, lists; anything else is text
    except Malformed:
        return name, value


def _mean_and_deviation(text: str) -> list[float]:
    return pair(text, f"--standardize {text!r} is not a pair of numbers; write it as 0.1307:0.3081")


def _summary(result: Mapping[str, Any], folder: RunFolder) -> None:
    guarantee = "none: trained without privacy"
    if result["private"]:
        guarantee = f"epsilon = {shown_epsilon(result['epsilon'])} at delta = {result['delta']:g}"
        guarantee += f" ({result['accountant']} accountant)"
    accuracy = "no test data" if result["accuracy"] is None else f"{result['accuracy']:.2%} on test data"
    if "test_loss" in result:
        accuracy = f"{result['loss']} {result['test_loss']:.6f} on test data"
    if "errors" in result:
        found = result["errors"]
        accuracy = f"off by {found['mae']:.6g} on average on test data (R^2 {found['r2'] if found['r2'] is None else round(found['r2'], 4)})"
    rows = [
        f"{'error     ' if 'errors' in result else 'accuracy  '} {accuracy}",
        *_group_rows(result),
        f"privacy    {guarantee}",
        f"trained    {result['model']} on {result['data']}, {result['steps']} steps, method {result['method']}",
        f"run folder {folder.path}",
        f"statement  {folder.path / 'statement.md'}",
    ]
    Console().print(Panel("\n".join(rows), title="clipwise train", title_align="left", expand=False), markup=False)


def _group_rows(result: Mapping[str, Any]) -> list[str]:
    """The worst group on test data; released counts and exact figures on training records, where they were asked for."""
    rows = []
    for name, figures in result.get("by_group", {}).items():
        if figures["worst_group"] is not None:
            rows.append(
                f"by {name:<7} lowest {figures['worst_group_accuracy']['value']:.2%} (group {figures['worst_group']})"
            )
    for key, share, word in (("group_counts", "accuracy", "right"), ("clipped_counts", "clipped_share", "clipped")):
        for row in result.get(key, {}).get("groups", []):
            value = row.get("note") or f"{row[share]:.2%} {word}"
            rows.append(f"released   group {row['group']}: {value} on training records")
    for name, figures in result.get("unsafe_by_group", {}).items():
        rows += [
            f"NOT PRIVATE  {name} {row['group']}: {row.get('note') or format(row['accuracy'], '.2%')} on training records"
            for row in figures["groups"]
        ]
    return rows


def _figures(line: Mapping[str, Any]) -> str:
    accuracy, epsilon = line["accuracy"], line["epsilon"]
    parts: Sequence[str | None] = (
        f"test loss {line['test_loss']:.6f}" if "test_loss" in line else None,
        None if accuracy is None else f"accuracy {accuracy:.2%}",
        None if epsilon is None or math.isinf(epsilon) else f"epsilon {shown_epsilon(epsilon)}",
    )
    return "  ".join(part for part in parts if part)


@contextmanager
def _shown(epochs: int, *, quiet: bool) -> Iterator[dict[str, Any]]:
    """What `train_into` reports to: a bar on a terminal, a line an epoch in a log file."""
    console = output.messages()
    with _notices_on(console), _progress(console, quiet) as progress:
        task = progress.add_task("calibrating the noise", total=None, unit="steps")

        features = progress.add_task("frozen features", total=None, unit="records", visible=False)

        def on_rows(done: int, total: int) -> None:
            progress.update(features, completed=done, total=total, visible=done < total)

        def on_step(values: dict[str, Any], planned: int) -> None:
            progress.update(task, completed=values["step"], total=planned)

        def on_epoch(line: dict[str, Any]) -> None:
            text = f"epoch {line['epoch']}{f'/{epochs}' if epochs else ''}  {_figures(line)}"
            progress.update(task, description=text)
            if not (quiet or console.is_terminal):
                console.print(text, highlight=False)

        def notice(message: str) -> None:
            if not quiet:
                console.print(f"note: {message}", highlight=False)

        yield {"on_step": on_step, "on_epoch": on_epoch, "on_rows": on_rows, "notice": notice}


def _progress(console: Console, quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeElapsedColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
    )


@contextmanager
def _notices_on(console: Console) -> Iterator[None]:
    """The library's notices as plain sentences, without the source line that Python prints around a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)  # shown whatever the user's filters: some are about privacy
        warnings.showwarning = lambda message, *_, **__: console.print(f"note: {message}", markup=False)
        yield
