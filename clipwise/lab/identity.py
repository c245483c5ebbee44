"""Whether two runs of a study or a search are on the same data.

A built-in data set is known by its name: its files are checked against the sums on record. A file of one's own can change
under its name, so that its content counts, as a hash keyed by the run's seed: without the seed nobody can test a guess of
the file with it. A run without a seed has no secret to key a hash with, and then there is none.
"""

from __future__ import annotations

import hmac
import os
from functools import lru_cache
from pathlib import Path

from clipwise.data import is_file
from clipwise.keystream import Key
from clipwise.training.options import TrainConfig

_PIECE = 1 << 20  # bytes read at once


def content_of(config: TrainConfig) -> str | None:
    """Of the file that the run trains on; None for a built-in data set, without a seed, and where there is no such file."""
    if config.seed is None or not is_file(config.data):
        return None
    try:
        about = os.stat(config.data)
        return _digest(config.data, config.seed, (about.st_size, about.st_mtime_ns, about.st_ino))
    except OSError:
        return None  # what reads it will say so


@lru_cache(maxsize=1024)
def _digest(path: str, seed: int, version: tuple[int, ...]) -> str:  # noqa: ARG001  # a changed file is read again
    digest = hmac.new(Key.from_seed(seed).derive("file fingerprint").secret, digestmod="sha256")
    with Path(path).open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
