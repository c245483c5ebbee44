"""`clipwise train`: one private training run, from data to run folder."""

from __future__ import annotations

import dataclasses
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
from clipwise.types import BadArgument, ClipwiseError

if TYPE_CHECKING:
    from torch import nn

    from clipwise.config import TrainConfig
    from clipwise.data import DataSet
    from clipwise.report import Statement
    from clipwise.run_folder import RunFolder
    from clipwise.train import Fit

PATH_POINTS = 1000  # of path.jsonl, at most


def train(
    data: Annotated[str | None, typer.Option(help="A name from `clipwise data`, or a .npz or .csv file.")] = None,
    label: Annotated[str | None, typer.Option(help="The label column of a .csv file.")] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes of your own file, as a public figure.")] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", help="Public range of the features, LOW:HIGH or COLUMN=LOW:HIGH, mapped to 0..1."),
    ] = None,
    test_fraction: Annotated[float | None, typer.Option(help="Held out of your own file for testing.")] = None,
    vocabulary: Annotated[
        str | None,
        typer.Option(
            help="Of texts: hashed, training (not private), or a public text file; perhaps with a size, hashed:8192."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A name from `clipwise models`.")] = None,
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
    epochs: Annotated[int | None, typer.Option(help="Expected passes over the data.")] = None,
    batch: Annotated[int | None, typer.Option(help="Expected batch size.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, adam, adamw, rmsprop or adam-wosm.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of sgd or rmsprop.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="L2 penalty.")] = None,
    seed: Annotated[int | None, typer.Option(help="For studies; without one, randomness is the system's own.")] = None,
    accountant: Annotated[str | None, typer.Option(help="rdp, pld, or best (the smaller of the two).")] = None,
    max_physical_batch: Annotated[
        int | None, typer.Option(help="Records in memory at once; results are equal.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="The run folder; it must not exist yet.")] = None,
    config: Annotated[Path | None, typer.Option(help="A .toml or .yaml file of options; those given here win.")] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Train a model privately. Every option has a default: `clipwise train` alone is the demo."""
    from clipwise.config import make_config, read_config
    from clipwise.schedules import written

    options = dict(map(parse_option, method_option or []))
    if threshold is not None:
        options["threshold"] = threshold
    given = {
        "data": data,
        "label": label,
        "classes": classes,
        "ranges": dict(map(_range, ranges)) if ranges else None,
        "test_fraction": test_fraction,
        "vocabulary": vocabulary,
        "model": model,
        "method": method,
        "method_options": options or None,
        "epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
        "delta": delta,
        "schedule": written(schedule, decay, every),
        "allow_unsound": allow_unsound,
        "epochs": epochs,
        "batch": batch,
        "lr": lr,
        "optimizer": optimizer,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "seed": seed,
        "accountant": accountant,
        "max_physical_batch": max_physical_batch,
        "out": out,
    }
    given = {name: value for name, value in given.items() if value is not None}
    where = "the options" if config is None else str(config)
    asked = make_config(merged({} if config is None else read_config(config), given), where)

    # All that can be refused is refused before the folder is made; what has no need of torch, before it is imported.
    from clipwise import run_folder
    from clipwise.clipping import make_method
    from clipwise.data import load
    from clipwise.models import build_model

    make_method(asked.method, **asked.method_options)
    dataset = load(
        asked.data,
        label=asked.label,
        classes=asked.classes,
        ranges=asked.ranges,
        test_fraction=asked.test_fraction,
        vocabulary=asked.vocabulary,
    )
    settings = asked.resolved(dataset)
    network = build_model(str(settings.model), dataset, settings.seed)

    folder = run_folder.create(settings.out, dataset.name, settings.method)
    result, _ = train_into(folder, settings, dataset, network, quiet=as_json)
    if as_json:
        output.print_json(result)
    else:
        _summary(result, folder)


def train_into(
    folder: RunFolder, settings: TrainConfig, dataset: DataSet, network: nn.Module, *, quiet: bool
) -> tuple[dict[str, Any], Statement]:
    """Train and leave everything in the folder, also of a run that fails."""
    try:
        folder.write("config.toml", settings.to_toml())
        fit = _fit(settings, dataset, network, folder, quiet=quiet)
        return _write(settings, dataset, fit, folder)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            error = ClipwiseError("interrupted; the steps that were taken stay charged in the ledger")
        folder.fail(error)
        raise error


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


def _range(text: str) -> tuple[str, list[float]]:
    from clipwise.data.own import EVERY_COLUMN

    column, equals, bounds = text.rpartition("=")
    try:
        low, high = map(float, bounds.split(":"))
    except ValueError as error:
        raise BadArgument(f"--range {text!r} is not a range; write it as LOW:HIGH or COLUMN=LOW:HIGH") from error
    return column if equals else EVERY_COLUMN, [low, high]


def _fit(settings: TrainConfig, dataset: DataSet, network: nn.Module, folder: RunFolder, *, quiet: bool) -> Fit:
    from clipwise.clipping import METHODS
    from clipwise.train import fit

    options, groups = settings.method_options, None
    if METHODS[settings.method].needs_groups:  # the groups of a classification data set are its classes
        options, groups = {"number_of_groups": dataset.classes, **options}, _target
    lines: list[dict[str, Any]] = []
    path: list[dict[str, Any]] = []
    console = output.messages()
    with _notices_on(console), _progress(console, quiet) as progress:
        task = progress.add_task("calibrating the noise", total=None)

        def on_step(values: dict[str, Any], planned: int) -> None:
            progress.update(task, completed=values["step"], total=planned)
            if values["step"] % math.ceil(planned / PATH_POINTS) == 0:
                path.append(output.finite(values))

        def on_epoch(line: dict[str, Any]) -> None:
            lines.append(output.finite(line))
            folder.write_lines("metrics.jsonl", lines)
            folder.write_lines("path.jsonl", path)
            text = f"epoch {line['epoch']}/{settings.epochs}  {_figures(line['accuracy'], line['epsilon'])}"
            progress.update(task, description=text)
            if not (quiet or console.is_terminal):
                console.print(text, highlight=False)  # no bar in a log file: a line an epoch instead

        return fit(
            network,
            dataset.train,
            epsilon=settings.epsilon,
            noise_multiplier=settings.noise_multiplier,
            delta=settings.delta,
            epochs=int(settings.epochs or 0),
            expected_batch_size=int(settings.batch or 0),
            method=settings.method,
            method_options=options,
            groups=groups,
            schedule=settings.schedule,
            allow_unsound=settings.allow_unsound,
            optimizer=settings.make_optimizer,
            test=dataset.test,
            seed=settings.seed,
            accountant=settings.accountant,
            ledger=folder.ledger,
            max_physical_batch=settings.max_physical_batch,
            on_epoch=on_epoch,
            on_step=on_step,
        )


def _target(batch: Any) -> Any:
    return batch[1]


def _write(settings: TrainConfig, dataset: DataSet, fit: Fit, folder: RunFolder) -> tuple[dict[str, Any], Statement]:
    """Weights, statement and result; the result is what `--json` prints."""
    from safetensors.torch import save

    from clipwise.models import parameter_count

    statement = dataclasses.replace(
        fit.statement,
        notes=(*fit.statement.notes, *dataset.notes),
        tuning=dataset.tuning or fit.statement.tuning,
    )
    folder.write("model.safetensors", save({k: v.contiguous() for k, v in fit.model.state_dict().items()}))
    folder.write("statement.md", statement.to_markdown())
    result = output.finite(
        {
            "method": settings.method if statement.private else "none",
            "data": settings.data,
            "model": settings.model,
            "epsilon": fit.epsilon,
            "private": math.isfinite(fit.epsilon),
            "delta": fit.delta,
            "accountant": fit.accountant,
            "noise_multiplier": fit.noise_multiplier,
            "noise_schedule": fit.statement.noise_schedule,
            **({} if statement.claimed_epsilon is None else {"claimed_epsilon": statement.claimed_epsilon}),
            "sample_rate": fit.sample_rate,
            "steps": fit.steps,
            "accuracy": fit.accuracy,
            "run_dir": str(folder.path),
            "test_size": None if dataset.test is None else len(dataset.test),
            "parameters": parameter_count(fit.model),
            "epochs": settings.epochs,
            "seed": settings.seed,
        }
    )
    folder.write_json("result.json", result)
    return result, statement


def _summary(result: Mapping[str, Any], folder: RunFolder) -> None:
    guarantee = "none: trained without privacy"
    if result["private"]:
        guarantee = f"epsilon = {_rounded_up(result['epsilon'])} at delta = {result['delta']:g}"
        guarantee += f" ({result['accountant']} accountant)"
    accuracy = "no test data" if result["accuracy"] is None else f"{result['accuracy']:.2%} on test data"
    rows = [
        f"accuracy   {accuracy}",
        f"privacy    {guarantee}",
        f"trained    {result['model']} on {result['data']}, {result['steps']} steps, method {result['method']}",
        f"run folder {folder.path}",
        f"statement  {folder.path / 'statement.md'}",
    ]
    Console().print(Panel("\n".join(rows), title="clipwise train", title_align="left", expand=False), markup=False)


def _figures(accuracy: float | None, epsilon: float | None) -> str:
    parts: Sequence[str | None] = (
        None if accuracy is None else f"accuracy {accuracy:.2%}",
        None if epsilon is None or math.isinf(epsilon) else f"epsilon {_rounded_up(epsilon)}",
    )
    return "  ".join(part for part in parts if part)


def _rounded_up(epsilon: float) -> str:
    """Never below what was computed."""
    return f"{math.ceil(epsilon * 1e4) / 1e4:.4f}"


def _progress(console: Console, quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
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
