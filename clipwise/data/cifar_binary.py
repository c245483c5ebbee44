"""The binary form in which CIFAR-10 and CIFAR-100 are published: a .tar.gz of files whose rows are label bytes, then 3,072
bytes of one 32x32 image, red, green, blue. (The python form is a pickle, which could run code on being read.)"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from clipwise.data.archive import members
from clipwise.data.source import Array
from clipwise.types import BadArgument

_PIXELS = 3 * 32 * 32  # bytes of an image


def read_binary(path: Path, files: Mapping[str, int], label_bytes: int) -> Array:
    """The rows of the named files of the archive, one after another; `files` gives each one's number of images."""
    row = label_bytes + _PIXELS
    found = members(path, {name: images * row for name, images in files.items()})
    for name, images in files.items():
        if len(found[name]) != images * row:
            raise BadArgument(
                f"{path}: {name} holds {len(found[name])} bytes, not the {images * row} of {images} images; "
                "put a fresh copy there"
            )
    return np.concatenate([np.frombuffer(found[name], np.uint8).reshape(-1, row) for name in files])


def images(rows: Array, label_bytes: int) -> Array:
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32)
