"""The idx format of MNIST and its kin: four gzipped files, big-endian header, then the bytes."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from clipwise.data.source import Array, Split
from clipwise.types import BadArgument


def read_idx(path: Path) -> Array:
    """The array in one idx file of unsigned bytes."""
    try:
        with gzip.open(path) as handle:
            data = handle.read()
        zero, kind, dimensions = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{dimensions}I", data, 4)
        if (zero, kind) != (0, 8):
            raise ValueError("its header is not that of unsigned bytes")
        return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error) as error:
        raise BadArgument(f"{path} is not a gzipped idx file ({error}); put a fresh copy there") from error


def reader(folder: str) -> Callable[[Path], tuple[Split, Split]]:
    """Reads the usual four files under `folder`; pixels are scaled by 255, a public constant of the format."""

    def read(root: Path) -> tuple[Split, Split]:
        def part(prefix: str) -> Split:
            pixels = read_idx(root / folder / f"{prefix}-images-idx3-ubyte.gz")
            labels = read_idx(root / folder / f"{prefix}-labels-idx1-ubyte.gz")
            return Split((pixels / np.float32(255)).astype(np.float32)[:, None], labels)

        return part("train"), part("t10k")

    return read
