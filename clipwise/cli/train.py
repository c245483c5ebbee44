"""`clipwise train`: one private training run, from data to run folder."""

from __future__ import annotations

import json
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
from clipwise.statement import shown_epsilon
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.training.folder import RunFolder


def train(
    data: Annotated[str | None, typer.Option(help="A name from `clipwise data`, or a .npz or .csv file.")] = None,
    label: Annotated[str | None, typer.Option(help="The label column of a .csv file.")] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes of your own file, as a public figure.")] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", help="Public range of the features, LOW:HIGH or COLUMN=LOW:HIGH, mapped to 0..1."),
    ] = None,
    test_fraction: Annotated[float | None, typer.Option(help="Held out of your own file for testing.")] = None,
    standardize: Annotated[
        str | None, typer.Option(help="Of images: MEAN:DEVIATION of the pixels, as public figures.")
    ] = None,
    vocabulary: Annotated[
        str | None,
        typer.Option(
            help="Of texts: hashed, training (not private), or a public text file; perhaps with a size, hashed:8192."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A name from `clipwise models`.")] = None,
    pretrained: Annotated[
        str | None, typer.Option(help="Public weights to start from: a file, a folder or an installed package.")
    ] = None,
    freeze: Annotated[
        str | None, typer.Option(help="What is not trained: none, features, ... or but:NAME,NAME (see docs/models.md).")
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(help="cross-entropy, focal:gamma=2,alpha=0.25 or squared-error; the model's by default."),
    ] = None,
    method: Annotated[str | None, typer.Option(help="A name from `clipwise methods`.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Short for --method-option threshold=VALUE.")] = None,
    method_option: Annotated[list[str] | None, typer.Option(help="An option of the method, NAME=VALUE.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget; inf trains without privacy.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise std / l2 bound, instead of --epsilon.")] = None,
    delta: Annotated[float | None, typer.Option(help="Below 1 / number of records.")] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="Of the noise: constant, linear, time, step, exponential, dynamic or levels:1,0.9,..."),
    ] = None,
    decay: Annotated[float | None, typer.Option(help="R of the schedule.")] = None,
    every: Annotated[int | None, typer.Option(help="D of the step schedule, in epochs.")] = None,
    allow_unsound: Annotated[
        bool | None,
        typer.Option("--allow-unsound", help="Run a method without a valid guarantee; epsilon is infinite."),
    ] = None,
    group_by: Annotated[
        str | None, typer.Option(help="Groups to report on: class, one that the data set has, or a column of numbers.")
    ] = None,
    group_counts: Annotated[
        float | None,
        typer.Option(help="Release accuracy by group on training records with this noise std, from the same budget."),
    ] = None,
    clipped_counts: Annotated[
        float | None,
        typer.Option(help="Release how many training records of each group are clipped, in the same way."),
    ] = None,
    unsafe_diagnostics: Annotated[
        bool | None,
        typer.Option("--unsafe-diagnostics", help="Print exact figures on training records: not private."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Expected passes over the data.")] = None,
    batch: Annotated[int | None, typer.Option(help="Expected batch size.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    lr_schedule: Annotated[
        str | None,
        typer.Option(
            help="none, step, multi-step, constant, linear, exponential, polynomial, cosine, cosine-restarts, cyclic, one-cycle or plateau; with options, one-cycle:max_lr=0.01."
        ),
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, adam, adamw, rmsprop or adam-wosm.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of sgd or rmsprop.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="L2 penalty.")] = None,
    average_weights: Annotated[
        float | None,
        typer.Option(
            help="Release a moving average of the weights with this decay, such as 0.99: it costs no privacy."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="For studies; without one, randomness is the system's own.")] = None,
    accountant: Annotated[str | None, typer.Option(help="rdp, pld, or best (the smaller of the two).")] = None,
    max_physical_batch: Annotated[
        int | None, typer.Option(help="Records in memory at once; results are equal.")
    ] = None,
    tensorboard: Annotated[
        str | None,
        typer.Option(
            metavar="[DIR]",
            help="Also log for TensorBoard, public and released values only: in the run folder, or in DIR.",
        ),
    ] = None,
    out: Annotated[str | None, typer.Option(help="The run folder; it must not exist yet.")] = None,
    config: Annotated[Path | None, typer.Option(help="A .toml or .yaml file of options; those given here win.")] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Train a model privately. Every option has a default: `clipwise train` alone is the demo."""
    from clipwise.schedules import written
    from clipwise.training.config import make_config, read_config

    options = dict(map(parse_option, method_option or []))
    if threshold is not None:
        options["threshold"] = threshold
    given = {
        "data": data,
        "label": label,
        "classes": classes,
        "ranges": dict(map(_range, ranges)) if ranges else None,
        "test_fraction": test_fraction,
        "standardize": None if standardize is None else _mean_and_deviation(standardize),
        "vocabulary": vocabulary,
        "model": model,
        "pretrained": pretrained,
        "freeze": freeze,
        "loss": loss,
        "method": method,
        "method_options": options or None,
        "epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
        "delta": delta,
        "schedule": written(schedule, decay, every),
        "allow_unsound": allow_unsound,
        "group_by": group_by,
        "group_counts": group_counts,
        "clipped_counts": clipped_counts,
        "unsafe_diagnostics": unsafe_diagnostics,
        "epochs": epochs,
        "batch": batch,
        "lr": lr,
        "lr_schedule": lr_schedule,
        "optimizer": optimizer,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "average_weights": average_weights,
        "seed": seed,
        "accountant": accountant,
        "max_physical_batch": max_physical_batch,
        "tensorboard": True if tensorboard == "" else tensorboard,
        "out": out,
    }
    given = {name: value for name, value in given.items() if value is not None}
    where = "the options" if config is None else str(config)
    asked = make_config(merged({} if config is None else read_config(config), given), where)

    # All that can be refused is refused before the folder is made; what has no need of torch, before it is imported.
    from clipwise.training import folder as run_folder
    from clipwise.training.tensorboard import require_tensorboard

    if asked.tensorboard:
        require_tensorboard()
    from clipwise.training.execute import load_asked, make_network, train_into

    dataset = load_asked(asked)
    settings = asked.resolved(dataset)
    network = make_network(settings, dataset)

    folder = run_folder.create(settings.out, dataset.name, settings.method)
    with _shown(int(settings.epochs or 0), quiet=as_json) as watch:
        result, _ = train_into(folder, settings, dataset, network, **watch)
    if as_json:
        output.print_json(result)
    else:
        _summary(result, folder)


def merged(file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The file's options with those of the command line over them, and without what these make meaningless."""
    kept = dict(file)
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
        return name, json.loads(value)  # numbers, true, false, lists; anything else is text
    except json.JSONDecodeError:
        return name, value


def _mean_and_deviation(text: str) -> list[float]:
    return _pair(text, f"--standardize {text!r} is not a pair of numbers; write it as 0.1307:0.3081")


def _range(text: str) -> tuple[str, list[float]]:
    from clipwise.data.own import EVERY_COLUMN

    column, equals, bounds = text.rpartition("=")
    pair = _pair(bounds, f"--range {text!r} is not a range; write it as LOW:HIGH or COLUMN=LOW:HIGH")
    return column if equals else EVERY_COLUMN, pair


def _pair(text: str, otherwise: str) -> list[float]:
    try:
        first, second = map(float, text.split(":"))
    except ValueError as error:
        raise BadArgument(otherwise) from error
    return [first, second]


def _summary(result: Mapping[str, Any], folder: RunFolder) -> None:
    guarantee = "none: trained without privacy"
    if result["private"]:
        guarantee = f"epsilon = {shown_epsilon(result['epsilon'])} at delta = {result['delta']:g}"
        guarantee += f" ({result['accountant']} accountant)"
    accuracy = "no test data" if result["accuracy"] is None else f"{result['accuracy']:.2%} on test data"
    if "test_loss" in result:
        accuracy = f"squared error {result['test_loss']:.6f} on test data"
    rows = [
        f"accuracy   {accuracy}",
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
            text = f"epoch {line['epoch']}/{epochs}  {_figures(line)}"
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
