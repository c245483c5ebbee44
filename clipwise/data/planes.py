"""Colour images as .xz files of differenced planes, the lossless coding of the CIFAR-10 and SVHN files in the project's data
folder: planes (G, R-G, B-G) modulo 256, each differenced along rows, then columns, as (3, images, 32, 32), then LZMA."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from clipwise.data.archive import unzipped
from clipwise.data.source import Array
from clipwise.types import BadArgument

SIDE = 32  # pixels of an image, as CIFAR and SVHN have
_IMAGE = 3 * SIDE * SIDE


def read_planes(path: Path, images: int) -> Array:
    """(images, 3, 32, 32) uint8, red, green, blue."""
    data = unzipped(path, images * _IMAGE)
    if len(data) != images * _IMAGE:
        raise BadArgument(
            f"{path} holds {len(data)} bytes, not the {images * _IMAGE} of {images} images; put a fresh copy there"
        )
    planes = np.frombuffer(data, np.uint8).reshape(3, images, SIDE, SIDE)
    green, red, blue = planes.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    return np.stack([red + green, green, blue + green], axis=1)


def read_labels(path: Path) -> tuple[Array, Array]:
    """The arrays `train` and `test` of a .npz file."""
    try:
        with np.load(path, allow_pickle=False) as file:  # a pickle could run code
            return file["train"], file["test"]
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise BadArgument(
            f"{path} does not hold the labels, arrays train and test ({error}); put a fresh copy there"
        ) from error


def scaled(pixels: Array) -> Array:
    """Pixels from 0..255, the range of their type, to 0..1."""
    return pixels / np.float32(255)
