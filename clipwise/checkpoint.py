"""Checkpoints: the state of a run between two logical steps, kept in a folder, the last two of them.

    FOLDER/step-00000120/tensors.safetensors   every tensor of the state
                         state.json            all the rest of it, with the tensors' names in their places
                         manifest.json         size and SHA-256 of these two, the step, and which run it is

Formal guarantee: a checkpoint appears whole or not at all (it is flushed, then renamed); one that was changed in any bit,
or whose files were mixed with another's, is not loaded; nothing in it is executed (no pickle), and nothing outside it is
read (links are refused). It holds released and public values only, like the model that it is a part of.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from clipwise import __version__, durable
from clipwise.types import BadArgument, ClipwiseError

FORMAT = 1  # of the files; a change that older versions cannot read counts it up
KEPT = 2  # checkpoints: the newest may be the one that a crash damaged
_TENSORS, _STATE, _MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
_NAME = re.compile(r"step-(\d{8,})\Z")
_MOST_TEXT = 1 << 26  # bytes of JSON: the longest learning-rate and generator states have some thousand


class CheckpointCorrupt(ClipwiseError, RuntimeError):
    """A checkpoint that is not what was written: the message names the file."""


@dataclass(frozen=True)
class Checkpoint:
    """One that was read and found whole."""

    path: Path
    step: int
    facts: dict[str, Any]  # which run it is of
    state: dict[str, Any]
    digest: str


class Checkpoints:
    """A folder of checkpoints."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        facts: Mapping[str, Any],
        mark: Callable[[str], None] = lambda _: None,
    ) -> Path:
        """Keep the state before `step`. `mark` hears the checkpoint's digest before it gets its name."""
        tensors: dict[str, Tensor] = {}
        text = json.dumps(_encoded(state, tensors, "state"), allow_nan=False).encode()
        files = {_TENSORS: save(tensors), _STATE: text}
        listed = {name: {"bytes": len(content), "sha256": durable.sha256(content)} for name, content in files.items()}
        manifest = {"format": FORMAT, "clipwise": __version__, "step": step, "facts": dict(facts), "files": listed}
        written = _sealed(manifest)
        path = self.folder / f"step-{step:08d}"
        mark(durable.sha256(written))
        if path.exists():
            shutil.rmtree(path)  # damaged: else the run would have gone on from it
        durable.write_folder(path, {**files, _MANIFEST: written})
        paths = self._paths()
        place = paths.index(path)  # what is newer is of a stretch that is being redone
        for old in (*paths[:place], *paths[place + KEPT :]):
            shutil.rmtree(old, ignore_errors=True)
        return path

    def refuse_another_run(self, run_id: str) -> None:
        """Before the first `save` of a run: what another one left here must not be taken for its own later."""
        for path in self._paths():
            try:
                other = json.loads(_content(path / _MANIFEST, _MOST_TEXT))["facts"]["run_id"]
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue  # damaged: nobody can go on from it
            if other != run_id:
                raise BadArgument(
                    f"checkpoints={str(self.folder)!r} holds the state of another run; go on with that one (resume=), or name "
                    "another folder"
                )

    def newest(self, notify: Callable[[str], None] = lambda _: None) -> Checkpoint | None:
        """The last whole checkpoint; damaged ones are skipped with a word. None where there never was one."""
        paths = self._paths()
        for path in paths:
            try:
                return read(path)
            except CheckpointCorrupt as error:
                notify(f"{error}; the one before it is used")
        if paths:
            raise CheckpointCorrupt(f"{self.folder}: every checkpoint is damaged; start a new run, with this ledger")
        return None

    def _paths(self) -> list[Path]:
        """Newest first."""
        try:
            found = [path for path in self.folder.iterdir() if _NAME.match(path.name)]
        except OSError:
            return []
        return sorted(found, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def refuse_unkeepable(state: Mapping[str, Any]) -> None:
    """Raises where `save` would."""
    _encoded(state, {}, "state")


def read(path: Path) -> Checkpoint:
    """A checkpoint, whole, or `CheckpointCorrupt`."""
    try:
        written = _content(path / _MANIFEST, _MOST_TEXT)
        manifest = json.loads(written)
        manifest.pop("sum", None)
        if _sealed(manifest) != written:
            raise CheckpointCorrupt(f"{path / _MANIFEST} is not what was written (its sum differs)")
        if manifest.get("format") != FORMAT:
            raise CheckpointCorrupt(
                f"{path} has format {manifest.get('format')!r}; this version reads {FORMAT}: use the version that wrote it"
            )
        content = {}
        for name in (_TENSORS, _STATE):
            known = manifest["files"][name]
            content[name] = _content(path / name, int(known["bytes"]))
            if len(content[name]) != known["bytes"] or durable.sha256(content[name]) != known["sha256"]:
                raise CheckpointCorrupt(f"{path / name} is not what was written (its SHA-256 differs)")
        state = _decoded(json.loads(content[_STATE]), load(content[_TENSORS]))
        step, facts = manifest["step"], manifest["facts"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise CheckpointCorrupt(f"{path} cannot be read ({type(error).__name__}: {error})") from error
    if (
        type(step) is not int
        or path.name != f"step-{step:08d}"
        or not (isinstance(state, dict) and isinstance(facts, dict))
    ):
        raise CheckpointCorrupt(f"{path} says that it is step {step!r}; it was renamed or mixed with another")
    return Checkpoint(path, step, facts, state, durable.sha256(written))


def _sealed(manifest: Mapping[str, Any]) -> bytes:
    """The manifest as written, to the last bit: with the SHA-256 of its own content."""
    content = json.dumps(manifest, indent=1, allow_nan=False).encode()
    return json.dumps({**manifest, "sum": durable.sha256(content)}, indent=1, allow_nan=False).encode()


def _content(path: Path, most: int) -> bytes:
    """At most so many bytes of an ordinary file, and one more where it is longer; a link is not followed."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        return file.read(most + 1)


def _encoded(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """The value as JSON; tensors go to `tensors`, and tuples, keys that are no text and odd numbers are written so that
    they come back as they were."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        items = [_encoded(item, tensors, f"{name}.{i}") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, Mapping) and all(isinstance(key, str | int) for key in value):
        pairs = [[key, _encoded(item, tensors, f"{name}.{key}")] for key, item in value.items()]
        return {"map": pairs}
    raise BadArgument(
        f"{name} holds a {type(value).__name__}, which a checkpoint cannot keep (no pickle); keep numbers, text, lists and tensors"
    )


def _decoded(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "number":
        return float(content)
    if kind == "tuple":
        return tuple(_decoded(item, tensors) for item in content)
    if kind == "map":
        return {key: _decoded(item, tensors) for key, item in content}
    raise ValueError(f"a value of kind {kind!r}")
