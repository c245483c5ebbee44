"""From checked options to a finished run folder: data, model, training, result. `clipwise train` and the runs of a search
stand on it; it prints nothing."""

from __future__ import annotations

import dataclasses
import errno
import math
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from clipwise.accounting import Event
from clipwise.automatic.choice import AUTO
from clipwise.checkpoint import Checkpoints
from clipwise.clipping import METHODS, Auto, make_method
from clipwise.data import DATASETS, DataSet, get_source, is_file, load
from clipwise.data.grouping import find_grouping
from clipwise.data.preprocessing import Amount
from clipwise.data.source import cache_folder
from clipwise.data.text import Encoder
from clipwise.fairness.after_training import clipped_counts, group_counts
from clipwise.fairness.of_run import figures_of_run
from clipwise.loop.evaluation import number_errors, outputs_of
from clipwise.loop.fit import AfterTraining, Fit, fit
from clipwise.loop.keeping import Keeping, Stopped
from clipwise.losses import make_loss
from clipwise.models import build_model, get_architecture, parameter_count, text_encoder
from clipwise.models.freezing import FeaturesAndHead, on_features, trains_last_layer_only
from clipwise.models.pretrained import note
from clipwise.statement import Statement
from clipwise.training.folder import PREPROCESSING, RunFolder, finite, ledger_of
from clipwise.training.options import TrainConfig
from clipwise.training.prepare import prepare
from clipwise.training.record import Record
from clipwise.training.resolve import optimizer_of
from clipwise.training.signals import StopRequests, stop_requests
from clipwise.training.tensorboard import LOGS, EventLog, Log
from clipwise.training.unfinished import SameSettings
from clipwise.training.views import OfViews, Views, check_views
from clipwise.training.views import note as note_of_views
from clipwise.types import ClipwiseError


def load_asked(asked: TrainConfig) -> DataSet:
    """The data that the options name; refuses a method that they name wrongly before it reads any."""
    encoder = _own_encoder(asked)
    make_method(asked.method, **asked.method_options)
    return load(
        asked.data,
        records=asked.records,
        standardize=asked.standardize,
        vocabulary=asked.vocabulary if encoder is None else encoder,
        regression=_predicts_numbers(asked),
        **asked.own,
    )


def _predicts_numbers(asked: TrainConfig) -> bool:
    """Whether an own file's label is a number: the loss says so, unless the model gives its input back."""
    if asked.loss is None or make_loss(asked.loss).wants_classes or not is_file(asked.data):
        return False
    return asked.model is None or not get_architecture(asked.model).reconstructs


def make_network(settings: TrainConfig, dataset: DataSet) -> nn.Module:
    """The untrained model of the (resolved) options; refuses groups and views that the data does not have."""
    find_grouping(dataset, settings.group_by)
    network = build_model(
        str(settings.model), dataset, settings.seed, weights=settings.pretrained, freeze=settings.freeze
    )
    check_views(settings, dataset, network)
    return network


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # what only writing ends in


def train_into(
    folder: RunFolder,
    settings: TrainConfig,
    dataset: DataSet,
    network: nn.Module,
    *,
    resume: bool = False,
    finish: bool = False,
    every_steps: int | None = None,
    rescue: str | None = None,
    on_step: Callable[[dict[str, Any], int], None] = lambda *_: None,
    on_epoch: Callable[[dict[str, Any]], None] = lambda *_: None,
    on_rows: Callable[[int, int], None] = lambda *_: None,
    notice: Callable[[str], None] = lambda *_: None,
) -> tuple[dict[str, Any], Statement]:
    """Train and leave everything in the folder, also of a run that fails.

    resume: go on from the folder's last checkpoint.
    finish: and take no more steps.
    every_steps: keep a checkpoint so often, beside one every few minutes.
    rescue: where to write what the folder cannot hold; the system's temporary folder by default.
    on_step, on_epoch: as those of `fit`.
    on_rows: hears how many records have their frozen features, and of how many.
    notice: hears what a user should know.
    """
    with folder.alone(), stop_requests() as stop:
        try:
            if not resume:
                folder.write("config.toml", settings.to_toml())
            placeholders = dataset.unlearned is not None
            dataset, charged = prepare(folder, settings, dataset, resume=resume)
            if placeholders:  # how wide a record is may have been released just now
                network = make_network(settings, dataset)
            with _logs(settings, folder) as logs:
                parts = _for_training(settings, dataset, network, on_rows, notice)
                record = Record(folder, logs, on_step, on_epoch, notice)
                keeping = Keeping(folder.checkpoints, every_steps, rescue=rescue, stop=stop, notify=notice)
                written: list[tuple[dict[str, Any], Statement]] = []

                def on_end(done: Fit) -> dict[str, Any]:
                    """Everything is written before the ledger is closed, so that its last line can vouch for it."""
                    result, bound = _kept(settings, dataset, network, done, parts[2], record, folder, rescue)
                    written.append(result)
                    return bound

                _fit(settings, dataset, parts, folder, record, keeping, on_end, charged, resume=resume, finish=finish)
        except BaseException as error:
            told = _told(error, folder, stop)
            folder.fail(told)
            raise told from error
        folder.forget_checkpoints()
        return written[0]


def _told(error: BaseException, folder: RunFolder, stop: StopRequests) -> BaseException:
    """The error as it is shown, with the exit code of the signal that ended the run."""
    if isinstance(error, Stopped | KeyboardInterrupt):
        charged = "; the steps that were taken stay charged in the ledger" if folder.ledger.exists() else ""
        told = ClipwiseError(f"interrupted{charged}; `clipwise resume {folder.path}` goes on")
        told.exit_code = 128 + (stop.number or signal.SIGINT)
        return told
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        kept = f"`clipwise resume {folder.path}` goes on" if folder.checkpoints.exists() else "no step was taken"
        return ClipwiseError(f"{folder.path} cannot be written ({error.strerror}); make room there, {kept}")
    return error


def _kept(
    settings: TrainConfig,
    dataset: DataSet,
    network: nn.Module,
    done: Fit,
    test_part: TensorDataset | None,
    record: Record,
    folder: RunFolder,
    rescue: str | None,
) -> tuple[tuple[dict[str, Any], Statement], dict[str, Any]]:
    """The results in the folder, and what the ledger's last line says of them; where the folder cannot be written, elsewhere, and the
    first error is the one that is told."""
    try:
        written = _write(settings, dataset, network, done, test_part, record, folder)
        return written, folder.write_manifest()
    except OSError as error:
        other = RunFolder(Path(tempfile.mkdtemp(prefix="clipwise-rescue-", dir=rescue)))
        if dataset.preprocessing is not None:
            other.write(PREPROCESSING, dataset.preprocessing.to_json())
        _write(settings, dataset, network, done, test_part, record, other)
        raise ClipwiseError(
            f"{folder.path} cannot be written ({error}); model, statement and result were kept in {other.path}, the ledger is "
            f"{folder.ledger}"
        ) from error


def _number_figures(dataset: DataSet, done: Fit, test_part: TensorDataset | None) -> dict[str, Any]:
    """Of a number that is predicted: errors on the test part, in the label's own units, and cut off at the ends of its range."""
    target = None if dataset.preprocessing is None else dataset.preprocessing.target
    if test_part is None or not isinstance(target, Amount):
        return {}
    outputs = outputs_of(done.model, test_part.tensors[0]).numpy()
    predicted, right = (target.decode(values[:, 0]) for values in (outputs, test_part.tensors[1].numpy()))
    return {"errors": number_errors(right, predicted)}


@contextmanager
def _logs(settings: TrainConfig, folder: RunFolder) -> Iterator[list[Log]]:
    """What was asked for: TensorBoard's events in the run folder, or under its name in a folder for many runs; a run elsewhere."""
    logs: list[Log] = []
    if settings.tensorboard and folder.writes:
        within_run = settings.tensorboard is True
        logs.append(
            EventLog(folder.path / "tensorboard" if within_run else Path(str(settings.tensorboard)) / folder.path.name)
        )
    if settings.log_to and folder.writes:
        logs.append(LOGS[settings.log_to](folder.path.name))
    with ExitStack() as stack:
        for log in logs:
            stack.callback(log.close)
        yield logs


def _own_encoder(asked: TrainConfig) -> Encoder | None:
    """The tokeniser of a model that brings one, for texts."""
    if asked.model is None or asked.vocabulary or is_file(asked.data) or get_source(asked.data).kind != "text":
        return None
    default = get_source(asked.data).encoder
    return None if default is None else text_encoder(asked.model, asked.pretrained, default.length)


def _fit(
    settings: TrainConfig,
    dataset: DataSet,
    parts: tuple[nn.Module, TensorDataset, TensorDataset | None],
    folder: RunFolder,
    record: Record,
    keeping: Keeping,
    on_end: Callable[[Fit], dict[str, Any]],
    charged: Sequence[Event],
    *,
    resume: bool,
    finish: bool,
) -> Fit:
    trained, train_part, test_part = parts
    grouping, groups = find_grouping(dataset, settings.group_by), None
    counted = settings.group_counts is not None or settings.clipped_counts is not None
    if METHODS[settings.method].needs_groups or counted:
        train_part, groups = TensorDataset(*train_part.tensors, grouping.train), _third
    views = settings.views
    return fit(
        trained if views is None else OfViews(trained),
        train_part if views is None else Views(train_part, views),
        mechanism=settings.mechanism,
        performance=settings.performance,
        optimizer=None if settings.optimizer is None else optimizer_of(settings),
        lr=_rate(settings),
        loss=str(settings.loss),
        lr_schedule=settings.lr_schedule,
        average_weights=settings.average_weights,
        test=test_part,
        groups=groups,
        prepared=charged,
        after=_after(settings, groups, len(grouping.names)),
        ledger=folder.ledger,
        earlier=[ledger_of(run) for run in settings.after],
        checkpoints=keeping,
        # A run that died while it measured has charges and no checkpoint: it measures again, on the same ledger.
        resume=folder.checkpoints if resume and Checkpoints(folder.checkpoints).newest() is not None else None,
        finish=finish,
        parts={"record": record, "settings": SameSettings(settings)},
        on_epoch=record.epoch,
        on_step=record.step,
        on_end=on_end,
    )


def _rate(settings: TrainConfig) -> float | str | None:
    """Of `fit`: an optimizer that is made here has its own, unless it is to be found."""
    return settings.lr if settings.optimizer is None else None if settings.lr else AUTO


def _after(settings: TrainConfig, groups: Callable[[Any], Tensor] | None, number_of_groups: int) -> list[AfterTraining]:
    """Counts by group on the training records, where they were asked for."""
    asked = ((group_counts, settings.group_counts), (clipped_counts, settings.clipped_counts))
    return [
        make(noise, groups=groups, number_of_groups=number_of_groups)  # type: ignore[arg-type]  # refused if None
        for make, noise in asked
        if noise is not None
    ]


def _third(batch: Any) -> Tensor:
    """The group of each record, which follows input and target."""
    return batch[2]


def _for_training(
    settings: TrainConfig,
    dataset: DataSet,
    network: nn.Module,
    on_rows: Callable[[int, int], None],
    notice: Callable[[str], None],
) -> tuple[nn.Module, TensorDataset, TensorDataset | None]:
    """What is trained, and on what, train and test: a last layer on frozen features, or images that are their own targets."""
    if isinstance(network, FeaturesAndHead) and trains_last_layer_only(network):
        keep = settings.data in DATASETS
        kept = f" and kept in {cache_folder()} for the next run" if keep else ""
        notice(f"only the last layer is trained; the frozen features of each record are computed once{kept}")
        last, dataset = on_features(network, dataset, keep=keep, on_rows=on_rows)
        return last, dataset.train, dataset.test
    if get_architecture(str(settings.model)).reconstructs:
        train, test = (
            None if part is None else TensorDataset(part.tensors[0], part.tensors[0])
            for part in (dataset.train, dataset.test)
        )
        return network, train or dataset.train, test
    return network, dataset.train, dataset.test


def _write(
    settings: TrainConfig,
    dataset: DataSet,
    network: nn.Module,
    done: Fit,
    test_part: TensorDataset | None,
    record: Record,
    folder: RunFolder,
) -> tuple[dict[str, Any], Statement]:
    """Weights, statement and result; the result is what `clipwise train --json` prints."""
    record.write(folder)
    folder.write("model.safetensors", save({k: v.contiguous() for k, v in network.state_dict().items()}))
    if not all(p.isfinite().all() for p in network.parameters()):
        folder.write("statement.md", done.statement.to_markdown())
        raise ClipwiseError(
            f"the weights are no longer finite after {done.steps} steps, which stay charged; lower --lr (it was {done.history[-1]['lr']:g}) or the threshold"
        )
    groups = figures_of_run(settings, dataset, network, done, test_part)
    if groups.predicted is not None:
        folder.write("predictions.npz", groups.predicted)
    statement = dataclasses.replace(
        done.statement,
        notes=(*done.statement.notes, *dataset.notes, *_noted(settings)),
        tuning=dataset.tuning or done.statement.tuning,
        figures_by_group=groups.said,
        unsafe_diagnostics=settings.unsafe_diagnostics,
    )
    folder.write("statement.md", statement.to_markdown())
    result = finite(
        {
            "method": settings.method if statement.private else "none",
            "data": settings.data,
            "model": settings.model,
            "epsilon": done.epsilon,
            "private": math.isfinite(done.epsilon),
            "delta": done.delta,
            "accountant": done.accountant,
            "attack": list(statement.attack),
            "noise_multiplier": done.noise_multiplier,
            "noise_schedule": done.statement.noise_schedule,
            **({} if statement.claimed_epsilon is None else {"claimed_epsilon": statement.claimed_epsilon}),
            "sample_rate": done.sample_rate,
            "steps": done.steps,
            "accuracy": done.accuracy,
            **groups.figures,
            **({} if done.test_loss is None else {"test_loss": done.test_loss}),
            **_number_figures(dataset, done, test_part),
            "run_dir": str(folder.path),
            "test_size": None if dataset.test is None else len(dataset.test),
            "parameters": parameter_count(network),
            "trained_parameters": parameter_count(network, trained=True),
            "loss": settings.loss,
            "lr_schedule": settings.lr_schedule,
            **_found(settings, done),
            "seed": settings.seed,
        }
    )
    folder.write_json("result.json", result)
    return result, statement


def _noted(settings: TrainConfig) -> list[str]:
    weights = [] if settings.pretrained is None else [note(settings.pretrained)]
    return weights if settings.views is None else [*weights, note_of_views(settings.views)]


def _found(settings: TrainConfig, done: Fit) -> dict[str, Any]:
    """Length of the run, what of it was automatic, and what was found."""
    found = done.method if isinstance(done.method, Auto) and done.method.rate is not None else None
    return {
        "epochs": settings.epochs or (done.history[-1]["epoch"] if done.history else None),
        "batch": done.statement.expected_batch_size,
        "automatic": list(done.statement.automatic),
        **({} if found is None else {"found": dataclasses.asdict(found)}),
    }
