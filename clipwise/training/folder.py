"""The folder that a run leaves behind.

    config.toml        what ran; `clipwise train --config` on it repeats the run
    metrics.jsonl      one line an epoch: public or released values only
    path.jsonl         threshold, noise and learning rate by step (at most 1,000 of them), public as well
    preprocessing.json how a record becomes the tensor that the model sees, and the classes' names: what prediction needs
    ledger.jsonl       what was spent, written ahead by the training loop
    checkpoints/       the run's state, the last two times that it was kept; gone when the run has ended well
    model.safetensors  the trained weights
    predictions.npz    the model's class, the right one and the group of each public test record, row by row
    statement.md       the privacy statement, one page
    tensorboard/       event files with the same values, where `--tensorboard` asked for them
    result.json        what `clipwise train --json` printed, or how the run failed
    manifest.json      SHA-256 and size of each file above but the ledger, whose closing line holds that of the manifest
    report.html        what `clipwise report` drew of all that, with report/*.png; it can be drawn anew at any time

A folder is never written twice, and each file appears whole or not at all. At the end of a run the manifest is written
after all other files, and the ledger is closed after the manifest: so the chain ledger -> manifest -> file covers them,
and a folder without a manifest is one whose run did not end. `verify.py` follows the chain.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from clipwise import durable
from clipwise.files import sha256_of
from clipwise.locks import Held, holding
from clipwise.types import BadArgument

LEDGER, MANIFEST, PREPROCESSING = "ledger.jsonl", "manifest.json", "preprocessing.json"
FILES = (  # that a run writes, beside the ledger and the manifest
    "config.toml",
    PREPROCESSING,
    "metrics.jsonl",
    "path.jsonl",
    "model.safetensors",
    "predictions.npz",
    "statement.md",
    "result.json",
)
VOUCHED = {  # by the ledger itself
    "weights": "model.safetensors",
    "preprocessing": PREPROCESSING,
    "statement": "statement.md",
    "result": "result.json",
}


@dataclass(frozen=True)
class RunFolder:
    path: Path

    writes = True  # this process; of several that train together, the others only follow

    @property
    def ledger(self) -> Path:
        return self.path / LEDGER

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One process writes to the folder at a time."""
        lock = self.path / ".lock"
        with ExitStack() as held:
            try:
                held.enter_context(holding(lock))
            except Held as error:
                raise BadArgument(
                    f"out={str(self.path)!r}: a run is under way there; wait for it, or name another"
                ) from error
            except OSError as error:
                raise BadArgument(
                    f"out={str(self.path)!r} cannot be written ({error}); give yourself the right to, and run it again"
                ) from error
            held.callback(lock.unlink, missing_ok=True)
            yield

    def write(self, name: str, content: str | bytes) -> None:
        durable.write(self.path / name, content)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self.write(name, as_json(value))

    def write_lines(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self.write(name, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))

    def write_manifest(
        self, names: Iterable[str] = FILES, *, to_come: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """SHA-256 and size of the files that are there, and of contents that will be written right after. What is returned
        goes into the ledger's closing line."""
        to_come = to_come or {}
        files = {}
        for name in sorted(names):
            if name in to_come:
                content = to_come[name].encode()
                files[name] = {"sha256": durable.sha256(content), "size": len(content)}
            elif (self.path / name).is_file():
                files[name] = dict(zip(("sha256", "size"), sha256_of(self.path / name), strict=True))
        manifest = as_json({"schema": 1, "files": files})
        self.write(MANIFEST, manifest)
        bound = {what: files[name]["sha256"] for what, name in VOUCHED.items() if name in files}
        return {"manifest": durable.sha256(manifest.encode()), **bound}

    def fail(self, error: BaseException) -> None:
        """After a run that failed: what was spent stays on record; with nothing spent, the name is given back."""
        (self.path / MANIFEST).unlink(missing_ok=True)
        if self.ledger.exists() or self.checkpoints.exists():
            failed = {"error": str(error), "kind": type(error).__name__}
            written = self.ledger.read_bytes() if self.ledger.exists() else b""
            last = written.removesuffix(b"\n").rpartition(b"\n")[2]
            with suppress(OSError):  # a full disk: the first error is the one to show
                self.write_json("result.json", {**failed, "ledger_head": durable.sha256(last)})
            return
        shutil.rmtree(self.path)

    def forget_checkpoints(self) -> None:
        """After a run that ended well: the weights are elsewhere."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)


class FollowedFolder(RunFolder):
    """The folder as a process sees it that trains along: it reads what the first one wrote, and writes nothing."""

    writes = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        yield

    def write(self, name: str, content: str | bytes) -> None: ...

    def write_manifest(
        self,
        names: Iterable[str] = FILES,  # noqa: ARG002
        *,
        to_come: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> dict[str, Any]:
        return {}

    def fail(self, error: BaseException) -> None: ...

    def forget_checkpoints(self) -> None: ...


def folder_at(path: str | Path) -> RunFolder:
    """To write to, or only to follow."""
    from clipwise.ranks import World  # it needs torch, and this module does not

    return RunFolder(Path(path)) if World.here().leads else FollowedFolder(Path(path))


def as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def ledger_of(run: str | Path) -> Path:
    """The ledger of a run folder, or the file itself."""
    path = Path(run)
    return path / LEDGER if path.is_dir() else path


def create(out: str | None, data: str, method: str) -> RunFolder:
    """A new folder: `out`, or runs/<time>-<data>-<method>. One that exists already is refused. Of several processes that train
    together the first makes it, and tells the others."""
    from clipwise.ranks import World

    world = World.here()
    made = str(_create(out, data, method).path) if world.leads else ""
    return folder_at(world.told(made.encode()).decode())


def _create(out: str | None, data: str, method: str) -> RunFolder:
    if out is not None:
        return RunFolder(_make(Path(out)))
    stem = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{data}-{method}"
    for path in (stem, *(stem.with_name(f"{stem.name}-{n}") for n in range(2, 100))):
        try:
            return RunFolder(_make(path))
        except BadArgument:
            continue  # another run began in the same second
    raise BadArgument(f"out={str(stem)!r} and 98 names like it exist already; name the run folder with --out")


def _make(path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()  # atomic: of two runs that ask for one name, one fails
    except (OSError, ValueError) as error:
        if os.path.lexists(path):  # which does not fail itself on an impossible name
            raise BadArgument(
                f"out={str(path)!r} exists already, and a run is never overwritten; name another folder"
            ) from error
        name = str(path)[-200:]
        raise BadArgument(f"out={name!r} cannot be made ({error}); name a folder that you may write to") from error
    return path


def finite(value: Any) -> Any:
    """The value with every infinity and NaN as None, ready for strict JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
