"""One run of a search, in a process of its own: `python -m clipwise.lab.tuning.trial SPEC.json`.

It trains as `clipwise train` does, on all records or on a part of them, and leaves a run folder; one that is there with a
checkpoint goes on (the search removes those that must not, see `runner.py`). `statement.json` is its
last file, so that a folder that has it is a finished run. What it prints is the number of errors on the part that was kept
back. That number is private: it goes to the search over a pipe, and into no file; `count_errors` finds it again.

While it lives it holds the lock on SPEC.json.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clipwise.data import DataSet
from clipwise.data.split import by_content
from clipwise.locks import Held, holding
from clipwise.training.config import make_config
from clipwise.training.options import TrainConfig
from clipwise.types import ClipwiseError

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

STATEMENT = "statement.json"


@dataclass(frozen=True)
class Part:
    """Which records train: each by a hash of its own content, keyed by the seed. One record more is one record more in one
    piece, and moves no other; a piece's own size is as private as the records."""

    seed: int
    pieces: tuple[int, ...]  # how many records each is expected to have; the last piece is the one kept back
    trains: int  # which of them trains

    def of(self, dataset: DataSet) -> tuple[DataSet, Any]:
        """The data set with this part alone to train on, and the records kept back."""
        from torch.utils.data import TensorDataset

        piece = by_content(_contents(dataset.train), self.pieces, self.seed.to_bytes(8, "big"))
        kept = [np.flatnonzero(piece == i) for i in (self.trains, len(self.pieces) - 1)]
        own, back = (TensorDataset(*(tensor[rows] for tensor in dataset.train.tensors)) for rows in kept)
        groups = {name: each._replace(train=each.train[kept[0]]) for name, each in dataset.groups.items()}
        return dataclasses.replace(dataset, train=own, groups=groups), back


def _contents(data: TensorDataset) -> Iterator[bytes]:
    """Of each record, all of it."""
    arrays = [tensor.numpy() for tensor in data.tensors]
    return (b"".join(array[i].tobytes() for array in arrays) for i in range(len(data)))


@dataclass(frozen=True)
class Spec:
    config: TrainConfig
    out: str
    part: Part | None

    def to_json(self) -> str:
        part = None if self.part is None else asdict(self.part)
        return json.dumps({"config": self.config.model_dump(exclude_none=True), "out": self.out, "part": part})

    @staticmethod
    def read(path: Path) -> Spec:
        values = json.loads(path.read_text(encoding="utf-8"))
        part = values["part"]
        return Spec(
            make_config(values["config"], str(path)),
            values["out"],
            None if part is None else Part(part["seed"], tuple(part["pieces"]), part["trains"]),
        )


def run_trial(spec: Spec) -> dict[str, Any]:
    from clipwise.loop.evaluation import accuracy
    from clipwise.training import folder as run_folder
    from clipwise.training.execute import load_asked, make_network, train_into
    from clipwise.training.resolve import resolve
    from clipwise.training.unfinished import begun

    dataset, back = load_asked(spec.config), None
    if spec.part is not None:
        dataset, back = spec.part.of(dataset)
    settings = resolve(spec.config, dataset)
    network = make_network(settings, dataset)
    before = begun(spec.out)
    folder = before or run_folder.create(spec.out, dataset.name, settings.method)
    _, statement = train_into(folder, settings, dataset, network, resume=before is not None)
    if statement.planned_steps is not None and statement.steps > statement.planned_steps:
        raise ClipwiseError("the run was charged for more steps than the search has planned and paid for")
    folder.write_json(STATEMENT, statement.to_dict())
    return {"errors": None if back is None else len(back) - round(len(back) * accuracy(network, back))}


def count_errors(spec: Spec) -> int:
    """Of a finished run, on the part that was kept back: the number that it printed."""
    from safetensors.torch import load_file

    from clipwise.loop.evaluation import accuracy
    from clipwise.training.execute import load_asked, make_network
    from clipwise.training.resolve import resolve

    if spec.part is None:
        raise ValueError("no part was kept back")
    dataset, back = spec.part.of(load_asked(spec.config))
    network = make_network(resolve(spec.config, dataset), dataset)
    network.load_state_dict(load_file(Path(spec.out) / "model.safetensors"))
    return len(back) - round(len(back) * accuracy(network, back))


def main() -> None:
    from clipwise.training.folder import finite

    path = Path(sys.argv[1])
    try:
        with holding(path):
            print(json.dumps(finite(run_trial(Spec.read(path))), allow_nan=False))
    except (ClipwiseError, Held) as error:
        print(json.dumps({"error": str(error) or type(error).__name__}))
        sys.exit(1)


def pieces(records: int, *, parts: int | None, held_out: float) -> tuple[int, ...]:
    """Equal pieces for `parts` candidates and one kept back; or one piece to train on and a fraction kept back."""
    if parts is not None:
        return (records // (parts + 1),) * (parts + 1)
    back = math.ceil(records * held_out)
    return (records - back, back)


if __name__ == "__main__":
    main()
