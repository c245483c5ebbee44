"""`clipwise train`: one private training run, from data to run folder."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from clipwise.cli import output
from clipwise.types import BadArgument, ClipwiseError

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import TensorDataset

    from clipwise.config import TrainConfig
    from clipwise.data import DataSet, Groups
    from clipwise.data.text import Encoder
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
        "unsafe_diagnostics": unsafe_diagnostics,
        "epochs": epochs,
        "batch": batch,
        "lr": lr,
        "lr_schedule": lr_schedule,
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

    dataset = load_asked(asked)
    settings = asked.resolved(dataset)
    network = make_network(settings, dataset)

    folder = run_folder.create(settings.out, dataset.name, settings.method)
    result, _ = train_into(folder, settings, dataset, network, quiet=as_json)
    if as_json:
        output.print_json(result)
    else:
        _summary(result, folder)


def load_asked(asked: TrainConfig) -> DataSet:
    """The data that the options name; refuses a method that they name wrongly before it reads any."""
    from clipwise.clipping import make_method
    from clipwise.data import load

    encoder = _own_encoder(asked)
    make_method(asked.method, **asked.method_options)
    return load(
        asked.data,
        label=asked.label,
        classes=asked.classes,
        ranges=asked.ranges,
        test_fraction=asked.test_fraction,
        vocabulary=asked.vocabulary if encoder is None else encoder,
    )


def make_network(settings: TrainConfig, dataset: DataSet) -> nn.Module:
    """The untrained model of the (resolved) options; refuses groups that the data does not have."""
    from clipwise.fairness.grouping import find_grouping
    from clipwise.models import build_model

    find_grouping(dataset, settings.group_by)
    return build_model(str(settings.model), dataset, settings.seed, weights=settings.pretrained, freeze=settings.freeze)


def train_into(
    folder: RunFolder, settings: TrainConfig, dataset: DataSet, network: nn.Module, *, quiet: bool
) -> tuple[dict[str, Any], Statement]:
    """Train and leave everything in the folder, also of a run that fails."""
    try:
        folder.write("config.toml", settings.to_toml())
        fit, test_part = _fit(settings, dataset, network, folder, quiet=quiet)
        return _write(settings, dataset, network, fit, test_part, folder)
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


def _own_encoder(asked: TrainConfig) -> Encoder | None:
    """The tokeniser of a model that brings one, for texts."""
    from clipwise.data import get_source, is_file
    from clipwise.models import text_encoder

    if asked.model is None or asked.vocabulary or is_file(asked.data) or get_source(asked.data).kind != "text":
        return None
    default = get_source(asked.data).encoder
    return None if default is None else text_encoder(asked.model, asked.pretrained, default.length)


def _for_training(
    settings: TrainConfig, dataset: DataSet, network: nn.Module, console: Console, *, quiet: bool
) -> tuple[nn.Module, TensorDataset, TensorDataset | None]:
    """What is trained, and on what: a last layer on frozen features, or images that are their own targets."""
    from torch.utils.data import TensorDataset

    from clipwise.data import DATASETS
    from clipwise.models import get_architecture
    from clipwise.models.freezing import FeaturesAndHead, on_features, trains_last_layer_only

    if isinstance(network, FeaturesAndHead) and trains_last_layer_only(network):
        if not quiet:
            console.print("note: only the last layer is trained; the frozen features of each record are computed once")
        last, dataset = on_features(network, dataset, keep=settings.data in DATASETS)
        return last, dataset.train, dataset.test
    if get_architecture(str(settings.model)).reconstructs:
        train, test = (
            None if part is None else TensorDataset(part.tensors[0], part.tensors[0])
            for part in (dataset.train, dataset.test)
        )
        return network, train or dataset.train, test
    return network, dataset.train, dataset.test


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


def _fit(
    settings: TrainConfig, dataset: DataSet, network: nn.Module, folder: RunFolder, *, quiet: bool
) -> tuple[Fit, TensorDataset | None]:
    """The finished run, and the test records in the form that the trained part of the model takes."""
    from clipwise.clipping import METHODS
    from clipwise.fairness.grouping import find_grouping
    from clipwise.train import fit

    options, groups = settings.method_options, None
    console = output.messages()
    trained, train_part, test_part = _for_training(settings, dataset, network, console, quiet=quiet)
    grouping = find_grouping(dataset, settings.group_by)
    if METHODS[settings.method].needs_groups or settings.group_counts is not None:
        train_part, groups = _with_groups(train_part, grouping), _group
    lines: list[dict[str, Any]] = []
    path: list[dict[str, Any]] = []
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
            text = f"epoch {line['epoch']}/{settings.epochs}  {_figures(line)}"
            progress.update(task, description=text)
            if not (quiet or console.is_terminal):
                console.print(text, highlight=False)  # no bar in a log file: a line an epoch instead

        done = fit(
            trained,
            train_part,
            epsilon=settings.epsilon,
            noise_multiplier=settings.noise_multiplier,
            delta=settings.delta,
            epochs=int(settings.epochs or 0),
            expected_batch_size=int(settings.batch or 0),
            method=settings.method,
            method_options=options,
            groups=groups,
            number_of_groups=len(grouping.names),
            group_counts=settings.group_counts,
            schedule=settings.schedule,
            allow_unsound=settings.allow_unsound,
            optimizer=settings.make_optimizer,
            loss=str(settings.loss),
            lr_schedule=settings.lr_schedule,
            test=test_part,
            seed=settings.seed,
            accountant=settings.accountant,
            ledger=folder.ledger,
            max_physical_batch=settings.max_physical_batch,
            on_epoch=on_epoch,
            on_step=on_step,
        )
    return done, test_part


def _with_groups(part: TensorDataset, grouping: Groups) -> TensorDataset:
    """The records with their group as a third value."""
    from torch.utils.data import TensorDataset

    return TensorDataset(*part.tensors, grouping.train)


def _group(batch: Any) -> Any:
    return batch[2]


def _write(
    settings: TrainConfig,
    dataset: DataSet,
    network: nn.Module,
    fit: Fit,
    test_part: TensorDataset | None,
    folder: RunFolder,
) -> tuple[dict[str, Any], Statement]:
    """Weights, statement and result; the result is what `--json` prints."""
    from safetensors.torch import save

    from clipwise.models import parameter_count
    from clipwise.models.pretrained import note

    groups = _by_group(settings, dataset, network, fit, test_part)
    if groups.predicted is not None:
        folder.write("predictions.npz", groups.predicted)
    weights = () if settings.pretrained is None else (note(settings.pretrained),)
    statement = dataclasses.replace(
        fit.statement,
        notes=(*fit.statement.notes, *dataset.notes, *weights),
        tuning=dataset.tuning or fit.statement.tuning,
        figures_by_group=groups.said,
        unsafe_diagnostics=settings.unsafe_diagnostics,
    )
    folder.write("model.safetensors", save({k: v.contiguous() for k, v in network.state_dict().items()}))
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
            **groups.figures,
            **({} if fit.test_loss is None else {"test_loss": fit.test_loss}),
            "run_dir": str(folder.path),
            "test_size": None if dataset.test is None else len(dataset.test),
            "parameters": parameter_count(network),
            "trained_parameters": parameter_count(network, trained=True),
            "loss": settings.loss,
            "lr_schedule": settings.lr_schedule,
            "epochs": settings.epochs,
            "seed": settings.seed,
        }
    )
    folder.write_json("result.json", result)
    return result, statement


class _ByGroup(NamedTuple):
    figures: dict[str, Any]  # for the result
    said: str  # for the statement: where they come from
    predicted: bytes | None  # predictions.npz, of the test part


def _by_group(
    settings: TrainConfig, dataset: DataSet, network: nn.Module, fit: Fit, test_part: TensorDataset | None
) -> _ByGroup:
    """Figures by group: on the test part, which is treated as public; on training records only as released counts, or
    under a name that says it."""
    import io

    import numpy as np

    from clipwise.fairness import evaluate
    from clipwise.fairness.grouping import groupings
    from clipwise.fairness.metrics import roc_auc

    every = groupings(dataset, settings.group_by)
    figures: dict[str, Any] = {}
    said, predicted = [], None
    answers = None if test_part is None or fit.accuracy is None else evaluate.ask(fit.model, test_part)
    if answers is not None:
        figures["auc"] = roc_auc(answers.targets, answers.scores).to_dict()
        figures["by_group"] = evaluate.figures_by_group(answers, evaluate.groups_of_test(every))
        file = io.BytesIO()
        numbers = {f"group {name}": groups for name, (_, groups) in evaluate.groups_of_test(every).items()}
        arrays = {"predicted": answers.predicted, "targets": answers.targets, **numbers}
        np.savez(file, **{name: array.astype(np.int16) for name, array in arrays.items()})  # type: ignore[arg-type]
        predicted = file.getvalue()
        said.append("on the test part, which is treated as public")
    if fit.group_counts is not None:
        names = every[settings.group_by].names
        figures["group_counts"] = {
            "group_by": settings.group_by,
            "noise_multiplier": fit.group_counts.noise_multiplier,
            "groups": fit.group_counts.to_list(names),
        }
        said.append(
            f"on the training records, by {settings.group_by}: one release of {2 * len(names)} counts (right and wrong), l2 "
            f"bound 1, noise multiplier {fit.group_counts.noise_multiplier:g}, sample rate 1, charged as the last of the steps"
        )
    if settings.unsafe_diagnostics and (exact := evaluate.ask(network, dataset.train)) is not None:
        figures["unsafe_by_group"] = evaluate.figures_by_group(exact, evaluate.groups_of_train(every))
        said.append("**exact ones on the training records, at the user's request: not private**")
    return _ByGroup(figures, "; ".join(said) or "none were computed by Clipwise", predicted)


def _summary(result: Mapping[str, Any], folder: RunFolder) -> None:
    guarantee = "none: trained without privacy"
    if result["private"]:
        guarantee = f"epsilon = {_rounded_up(result['epsilon'])} at delta = {result['delta']:g}"
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
    for row in result.get("group_counts", {}).get("groups", []):
        value = row.get("note") or f"{row['accuracy']:.2%}"
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
