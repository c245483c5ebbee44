"""The idx format of MNIST and its kin: four gzipped files, big-endian header, then the bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from clipwise.data.source import Array, Split
from clipwise.types import BadArgument

_MOST_BYTES = 1 << 30  # far above MNIST's 47 MB: a file that unpacks to more is not one of these


def read_idx(path: Path) -> Array:
    """The array in one idx file of unsigned bytes."""
    try:
        with gzip.open(path) as handle:
            zero, kind, dimensions = struct.unpack(">HBB", handle.read(4))
            if (zero, kind) != (0, 8):
                raise ValueError("its header is not that of unsigned bytes")
            shape = struct.unpack(f">{dimensions}I", handle.read(4 * dimensions))
            if math.prod(shape) > _MOST_BYTES:
                raise ValueError(f"its header promises more than {_MOST_BYTES} bytes")
            data = handle.read(math.prod(shape) + 1)
        return np.frombuffer(data, np.uint8).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise BadArgument(f"{path} is not a gzipped idx file ({error}); put a fresh copy there") from error


def reader(folder: str) -> Callable[[Path], tuple[Split, Split]]:
    """Reads the usual four files under `folder`; pixels are scaled by 255, a public constant of the format."""

    def read(root: Path) -> tuple[Split, Split]:
        def part(prefix: str) -> Split:
            pixels = read_idx(root / folder / f"{prefix}-images-idx3-ubyte.gz")
            labels = read_idx(root / folder / f"{prefix}-labels-idx1-ubyte.gz")
            return Split(pixels[:, None] / np.float32(255), labels)

        return part("train"), part("t10k")

    return read
