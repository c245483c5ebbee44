"""Runs that did not finish: whether one can go on, and whether one beside a new run has spent on the same data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clipwise.accounting import Ledger, LedgerError
from clipwise.automatic.choice import is_automatic
from clipwise.checkpoint import Checkpoints
from clipwise.ranks import World
from clipwise.statement import shown_epsilon
from clipwise.training.config import make_config, read_config
from clipwise.training.folder import MANIFEST, RunFolder, folder_at
from clipwise.training.options import TrainConfig
from clipwise.types import BadArgument

# What a run can leave before its first checkpoint is whole; anything else in a folder is not ours to remove.
_AT_FIRST = {
    "config.toml",
    ".config.toml.part",
    "preprocessing.json",
    ".preprocessing.json.part",
    "ledger.jsonl",
    ".ledger.jsonl.head",
    "checkpoints",
    "result.json",
    ".lock",
}
_MOST_BESIDE = 200  # folders that are looked at, so that a new run among thousands starts at once


def begun(out: str | None) -> RunFolder | None:
    """The folder of a run that can go on; None where there is none yet. One that has ended is refused."""
    if out is None:
        raise BadArgument("out=None: --resume goes on with the run in a folder; name it with --out")
    folder = folder_at(out)
    if not folder.path.exists():
        return None
    if ended(folder):
        raise BadArgument(f"out={out!r}: that run has ended; name another folder for a new one")
    return folder if Checkpoints(folder.checkpoints).newest() is not None or died_measuring(folder) else None


def died_measuring(folder: RunFolder) -> bool:
    """Whether a run has charges and no checkpoint because it had not begun to train: it can measure again, and pays again."""
    config = folder.path / "config.toml"
    if not (config.exists() and folder.ledger.exists()):
        return False
    return is_automatic(make_config(read_config(config), str(config)).method) and bool(
        Ledger.read(folder.ledger).events()
    )


def ended(folder: RunFolder) -> bool:
    """Whether a run ended well here, and was not killed while it wrote its files: the ledger is closed after the last one."""
    return (folder.path / MANIFEST).exists() and (not folder.ledger.exists() or Ledger.read(folder.ledger).closed)


def forget_if_unspent(out: str) -> None:
    """Give the name back of a run that died before its first checkpoint: it had charged nothing, and begins anew."""
    folder = RunFolder(Path(out))
    if not World.here().leads or not folder.path.is_dir() or {path.name for path in folder.path.iterdir()} - _AT_FIRST:
        return  # not what a run leaves at its start
    with folder.alone():
        if folder.ledger.exists() and b"\n" in folder.ledger.read_bytes() and Ledger.read(folder.ledger).events():
            raise BadArgument(
                f"out={out!r}: the run there has charges and no checkpoint to go on from; start a new one in another folder, "
                f"with --after {out}"
            )
        shutil.rmtree(folder.path)


class SameSettings:
    """The options, as a part of a run's state: it goes on with those that it was kept with, whatever config.toml says by
    then. Where things lie may change; whether the data is the same is known by its fingerprint."""

    def __init__(self, settings: TrainConfig):
        self._options = json.loads(settings.model_dump_json(exclude={"out", "data", "tensorboard", "log_to", "after"}))

    def state_dict(self) -> dict[str, Any]:
        return {"options": self._options}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        kept = state["options"]
        for name in dict.fromkeys((*kept, *self._options)):
            if kept.get(name) != self._options.get(name):
                raise ValueError(f"{name} was {kept.get(name)!r}, and is {self._options.get(name)!r}")


def refuse_other_settings(folder: RunFolder, settings: TrainConfig) -> None:
    """The same command again, or an error that names the option that differs."""
    before = make_config(read_config(folder.path / "config.toml"), str(folder.path / "config.toml"))
    for name in TrainConfig.model_fields:
        if name != "out" and getattr(before, name) != getattr(settings, name):
            raise BadArgument(
                f"{name}={getattr(settings, name)!r}: the run in {folder.path} has {getattr(before, name)!r}; resume it with its own "
                f"options (clipwise resume {folder.path}), or name another folder"
            )


def unfinished_beside(folder: RunFolder, settings: TrainConfig) -> Iterator[str]:
    """What a user should know of runs on the same data, in the folders beside this one, that died with charges."""
    counted = {Path(run).resolve() for run in settings.after}
    beside = sorted(folder.path.resolve().parent.glob("*/ledger.jsonl"))[:_MOST_BESIDE]
    for path in (ledger.parent for ledger in beside):
        if path == folder.path.resolve() or path in counted:
            continue
        try:
            if ended(RunFolder(path)):
                continue
            other = make_config(read_config(path / "config.toml"), str(path))
            if other.data != settings.data:
                continue
            spent = Ledger.read(path / "ledger.jsonl").epsilon(settings.delta or 1e-5, "rdp")
        except (BadArgument, LedgerError):
            continue  # no run folder of ours, or a damaged one: nothing to say of it
        yield (
            f"{path} on the same data did not finish, and has spent epsilon {shown_epsilon(spent.value)}: go on with "
            f"`clipwise resume {path}`, or count it in this budget with --after {path}"
        )
