"""Street View House Numbers: digits cut out of photographs, 32x32 colour.

`svhn` is the published set ("Format 2", Matlab files). `svhn-subset` is a small random sample that was cut out of the
full-number pictures anew: it is not a part of the published files, and published accuracies do not apply to it.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from clipwise.data.planes import read_labels, read_planes, scaled
from clipwise.data.source import UNTUNED, Edition, File, Recipe, Source, Split, tuned
from clipwise.types import BadArgument

_LICENCE = "non-commercial use (Netzer et al. 2011)"
_DIGITS = tuple("0123456789")
_SITE = "http://ufldl.stanford.edu/housenumbers/"
_FILES = {
    "svhn/train_32x32.mat": File(
        "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8", 182_040_794, (_SITE + "train_32x32.mat",)
    ),
    "svhn/test_32x32.mat": File(
        "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b", 64_275_384, (_SITE + "test_32x32.mat",)
    ),
}
_SUBSET = {
    "svhn/train.xz": File("b69549eb03fbd4876c30b4a47b788ccd012b3e997da51f447c5c139b988837ee"),
    "svhn/test.xz": File("e14c220f9b3d81068195b9e0c6094fe7f60362dd2ff570fcafad3c39b4a46d8b"),
    "svhn/labels.npz": File("0aa203abf4274fe5f110ccc22661345eb3154ab4e59a04ddc53688e04abfb0cc"),
}


def read_mat(path: Path) -> Split:
    """One Matlab file: X is (32, 32, 3, images), y is 1..10, where 10 stands for the digit 0."""
    from scipy.io import loadmat  # slow to import, and needed here alone
    from scipy.io.matlab import MatReadError

    try:
        file = loadmat(path, variable_names=["X", "y"])
        pixels, labels = file["X"], file["y"]
    except (OSError, KeyError, ValueError, TypeError, EOFError, zlib.error, MatReadError, NotImplementedError) as error:
        raise BadArgument(f"{path} is not a Matlab file with X and y ({error}); put a fresh copy there") from error
    if pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3) or labels.size != pixels.shape[3]:
        raise BadArgument(
            f"{path}: X has shape {pixels.shape} and y {labels.shape}, not (32, 32, 3, n) and (n, 1); put a fresh copy there"
        )
    if labels.dtype.kind not in "iu" or labels.min() < 1 or labels.max() > 10:
        raise BadArgument(f"{path}: y holds labels outside 1..10; put a fresh copy there")
    return Split(scaled(pixels.transpose(3, 2, 0, 1)), labels.ravel().astype(np.int64) % 10)


def _read(root: Path) -> tuple[Split, Split]:
    first, second = (read_mat(root / name) for name in _FILES)
    return first, second


def _read_subset(root: Path) -> tuple[Split, Split]:
    train, test = read_labels(root / "svhn/labels.npz")
    return (
        Split(scaled(read_planes(root / "svhn/train.xz", 3000)), train),
        Split(scaled(read_planes(root / "svhn/test.xz", 800)), test),
    )


SVHN = Source(
    name="svhn",
    summary="house numbers, 32x32 colour",
    kind="image",
    licence=_LICENCE,
    how_to_get="clipwise data get svhn",
    shape=(3, 32, 32),
    class_names=_DIGITS,
    recipe=Recipe(model="cnn", expected_batch_size=1024, epochs=30, lr=0.1),
    tuning=UNTUNED,
    editions=(Edition(_FILES, _read, 73_257, 26_032),),
)

SVHN_SUBSET = Source(
    name="svhn-subset",
    summary="house numbers, a random sample that was cut out anew, 32x32 colour",
    kind="image",
    licence=_LICENCE,
    how_to_get="comes with the project's own data folder only; `clipwise data get svhn` fetches the published set",
    shape=(3, 32, 32),
    class_names=_DIGITS,
    recipe=Recipe(model="cnn", expected_batch_size=256, epochs=30, lr=0.1),
    tuning=tuned(3),
    notes=("svhn-subset is a random sample, cut out anew: published accuracies on SVHN do not apply",),
    editions=(Edition(_SUBSET, _read_subset, 3000, 800),),
)
