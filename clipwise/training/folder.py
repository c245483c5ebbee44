"""The folder that a run leaves behind.

    config.toml        what ran; `clipwise train --config` on it repeats the run
    metrics.jsonl      one line an epoch: public or released values only
    path.jsonl         threshold, noise and learning rate by step (at most 1,000 of them), public as well
    ledger.jsonl       what was spent, written ahead by the training loop
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

import hashlib
import json
import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from clipwise.files import sha256_of, write_whole
from clipwise.types import BadArgument

LEDGER, MANIFEST = "ledger.jsonl", "manifest.json"
FILES = (  # that a run writes, beside the ledger and the manifest
    "config.toml",
    "metrics.jsonl",
    "path.jsonl",
    "model.safetensors",
    "predictions.npz",
    "statement.md",
    "result.json",
)
VOUCHED = {"weights": "model.safetensors", "statement": "statement.md", "result": "result.json"}  # by the ledger itself


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def ledger(self) -> Path:
        return self.path / LEDGER

    def write(self, name: str, content: str | bytes) -> None:
        write_whole(self.path / name, content.encode() if isinstance(content, str) else content)

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
                files[name] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            elif (self.path / name).is_file():
                files[name] = dict(zip(("sha256", "size"), sha256_of(self.path / name), strict=True))
        manifest = as_json({"schema": 1, "files": files})
        self.write(MANIFEST, manifest)
        bound = {what: files[name]["sha256"] for what, name in VOUCHED.items() if name in files}
        return {"manifest": hashlib.sha256(manifest.encode()).hexdigest(), **bound}

    def fail(self, error: BaseException) -> None:
        """After a run that failed: what was spent stays on record; with nothing spent, the name is given back."""
        (self.path / MANIFEST).unlink(missing_ok=True)
        if self.ledger.exists():
            failed = {"error": str(error), "kind": type(error).__name__}
            last = self.ledger.read_bytes().removesuffix(b"\n").rpartition(b"\n")[2]
            self.write_json("result.json", {**failed, "ledger_head": hashlib.sha256(last).hexdigest()})
            return
        shutil.rmtree(self.path)


def as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def create(out: str | None, data: str, method: str) -> RunFolder:
    """A new folder: `out`, or runs/<time>-<data>-<method>. One that exists already is refused."""
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
    except OSError as error:
        if path.exists():
            raise BadArgument(
                f"out={str(path)!r} exists already, and a run is never overwritten; name another folder"
            ) from error
        raise BadArgument(f"out={str(path)!r} cannot be made ({error}); name a folder that you may write to") from error
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
