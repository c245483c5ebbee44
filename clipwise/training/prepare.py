"""What is released of an own file before training, charged in the run's own ledger, and the records made with it.

Order: the folder is there, the ledger is begun, each release is charged and then drawn, preprocessing.json is written. A run that
goes on reads that file: nothing is released, or charged, a second time.
"""

from __future__ import annotations

from clipwise.accounting import Event, Ledger
from clipwise.data import DataSet
from clipwise.data.learn import learn, planned, recorded, told
from clipwise.data.preprocessing import Preprocessing
from clipwise.keystream import Key
from clipwise.noise import GaussianNoise
from clipwise.plans import SAMPLING
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
    ledger = None
    if settings.private:
        facts = {"release": "ranges and categories of the records, with noise", "neighbours": pair.neighbours}
        ledger = Ledger.create(folder.ledger, run=facts)
    key = Key.fresh() if settings.seed is None else Key.from_seed(settings.seed)
    try:
        noise = GaussianNoise(key.derive("learned of the records"))
        learned = learn(todo.what, todo.train, events, ledger=ledger, noise=noise)
    finally:
        if ledger is not None:
            ledger.close()
    done = todo.finished(dataset, learned, said, recorded(todo.what, events))
    if done.preprocessing is None:
        raise RuntimeError("an own file has a preprocessing")
    folder.write(PREPROCESSING, done.preprocessing.to_json())
    return done, charged


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
