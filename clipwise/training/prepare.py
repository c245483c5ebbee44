"""What is released of an own file before training, charged in the run's own ledger, and the records made with it.

Order: the folder is there, the ledger is begun, each release is charged and then drawn, preprocessing.json is written. A run that
goes on reads that file: nothing is released, or charged, a second time.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from clipwise.accounting import Event, Ledger
from clipwise.data import DataSet
from clipwise.data.learn import learn, planned, recorded, told
from clipwise.data.own import Unlearned
from clipwise.data.preprocessing import Preprocessing
from clipwise.keystream import Key
from clipwise.noise import GaussianNoise
from clipwise.plans import SAMPLING
from clipwise.ranks import World
from clipwise.training.folder import PREPROCESSING, RunFolder
from clipwise.training.options import TrainConfig
from clipwise.types import BadArgument


def prepare(folder: RunFolder, settings: TrainConfig, dataset: DataSet, *, resume: bool) -> tuple[DataSet, list[Event]]:
    """The data set as it is trained on, and what was charged for it. Leaves preprocessing.json."""
    todo, pair = dataset.unlearned, SAMPLING[settings.sampling]
    if todo is None:
        if dataset.preprocessing is not None:
            folder.write(PREPROCESSING, dataset.preprocessing.to_json())
        return dataset, []
    events = planned(todo.what, settings.mechanism, pair.event)
    charged = events if settings.private else []
    said = told(todo.what, events, settings.delta if settings.private else None)
    if resume:
        return todo.finished(dataset, _kept(folder, recorded(todo.what, events)), said), charged
    world = World.here()
    made = _released(folder, settings, todo, events, pair.neighbours).to_json() if world.leads else ""
    made = world.told(made.encode()).decode()  # of processes that train together the first releases, once for all
    folder.write(PREPROCESSING, made)
    return todo.finished(dataset, Preprocessing.from_json(made), said), charged


def _released(
    folder: RunFolder, settings: TrainConfig, todo: Unlearned, events: list[Event], neighbours: str
) -> Preprocessing:
    key = Key.fresh() if settings.seed is None else Key.from_seed(settings.seed)
    noise = GaussianNoise(key.derive("learned of the records"))
    facts = {"release": "ranges and categories of the records, with noise", "neighbours": neighbours}
    with Ledger.create(folder.ledger, run=facts) if settings.private else nullcontext() as ledger:
        learned = learn(todo.what, todo.train, events, ledger=ledger, noise=noise)
    return replace(todo.understood.with_learned(learned), learned=recorded(todo.what, events))


def _kept(folder: RunFolder, released: tuple[dict[str, object], ...]) -> Preprocessing:
    """What the run released when it began."""
    path = folder.path / PREPROCESSING
    try:
        kept = Preprocessing.from_json(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise BadArgument(f"{path} cannot be read ({error}), and holds what this run released; restore it") from error
    if list(kept.learned) != list(released):
        raise BadArgument(f"{path} is not of this run: it records other releases than its options ask for; restore it")
    return kept
