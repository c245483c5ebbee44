"""Arrays that take long to decode, kept in the user's cache as .npy files.

A file's name holds the key of what it was made from and the sha256 of its own bytes, so a damaged or outdated one is
never used: it is made again. It is written under another name and moved into place whole.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from clipwise.data.source import Array, cache_folder, sha256_of
from clipwise.types import BadArgument

_STALE = 3600.0  # seconds; a half-written file that old was left by a process that died


def decoded(name: str, key: str, make: Callable[[], Array]) -> Array:
    """The array that `make` returns, from the cache if it was made before from the same `key`."""
    folder = cache_folder() / "decoded"
    start = f"{name}-{key[:16]}-"
    for path in sorted(folder.glob(f"{start}*.npy")):
        if (array := _sound(path, start)) is not None:
            return array
    array = make()
    try:
        _write(folder, start, array)
    except OSError as error:
        warnings.warn(f"{folder} cannot be written ({error}): {name} will be decoded again next time", stacklevel=2)
    return array


def _sound(path: Path, start: str) -> Array | None:
    """The array in the file, if its bytes are those its name promises; else the file is taken away."""
    try:
        if sha256_of(path) == path.stem.removeprefix(start):
            return np.load(path, mmap_mode="r", allow_pickle=False)
        path.unlink(missing_ok=True)
    except (OSError, ValueError, BadArgument):
        pass
    return None


def _write(folder: Path, start: str, array: Array) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".writing-*"):
        if time.time() - left.stat().st_mtime > _STALE:
            left.unlink(missing_ok=True)
    number, temporary = tempfile.mkstemp(prefix=".writing-", dir=folder)
    try:
        with os.fdopen(number, "wb") as handle:
            np.save(handle, array, allow_pickle=False)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, folder / f"{start}{sha256_of(Path(temporary))}.npy")
    finally:
        Path(temporary).unlink(missing_ok=True)
