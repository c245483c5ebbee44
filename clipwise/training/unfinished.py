"""Runs that did not finish: whether one can go on, and whether one beside a new run has spent on the same data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clipwise.accounting import Ledger, LedgerError
from clipwise.checkpoint import Checkpoints
from clipwise.statement import shown_epsilon
from clipwise.training.config import make_config, read_config
from clipwise.training.folder import MANIFEST, RunFolder
from clipwise.training.options import TrainConfig
from clipwise.types import BadArgument

_MOST_BESIDE = 200  # folders that are looked at, so that a new run among thousands starts at once


def begun(out: str | None) -> RunFolder | None:
    """The folder of a run that can go on; None where there is none yet. One that has ended is refused."""
    if out is None:
        raise BadArgument("out=None: --resume goes on with the run in a folder; name it with --out")
    folder = RunFolder(Path(out))
    if not folder.path.exists():
        return None
    ended = (folder.path / MANIFEST).exists() and (not folder.ledger.exists() or Ledger.read(folder.ledger).closed)
    if ended:  # and not only killed while it wrote its files
        raise BadArgument(f"out={out!r}: that run has ended; name another folder for a new one")
    return folder if Checkpoints(folder.checkpoints).newest() is not None else None


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
        if path == folder.path.resolve() or path in counted or (path / "model.safetensors").exists():
            continue
        try:
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
