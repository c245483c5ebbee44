"""Thinwall: thermal images of melt pools in laser additive manufacturing, healthy or porous (Zamiela et al., Data in Brief 51,
2023, 109722). The set cannot be fetched by a program; this reads a folder of that form:

    thinwall/labels.csv     a header with the columns `file` and `label`; label 0 is healthy, 1 is porous
    thinwall/...csv         one image a file, as named in labels.csv: a temperature a pixel (480 rows of 752 as published)

Each image is cut to 200x200 pixels around its melt pool, by itself: no figure is taken over the records.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from clipwise.data.lines import bounded_lines
from clipwise.data.source import UNTUNED, Array, Edition, File, Recipe, Source, Split
from clipwise.types import BadArgument

SIDE = 200  # pixels, cut around the melt pool
MELTING = 1600.0  # degrees, near the solidus of Ti-6Al-4V: pixels as hot as this are the melt pool
HOTTEST = 3000.0  # degrees that become 1; a public constant above what the pyrometer reads
_LABELS = "thinwall/labels.csv"
_LONGEST_LINE = 256 * 1024  # characters, for 752 temperatures
_MOST_ROWS = 4096  # of an image: 480 as published
_TEST_SHARE = 0.25  # of the records


def read_thinwall(root: Path) -> tuple[Split, Split]:
    """Train and test part, three quarters and a quarter, drawn once and for all without looking at the records."""
    names, y = _read_labels(root / _LABELS)
    x = np.stack([melt_pool(read_image(_inside(root / "thinwall", name))) for name in names])[:, None]
    order = np.random.RandomState(0).permutation(len(y))  # numpy froze this stream
    test, train = np.split(order, [round(len(y) * _TEST_SHARE)])
    if not len(test):
        raise BadArgument(f"{root / _LABELS} names {len(y)} images, too few for a test part; name at least 4")
    return Split(x[train], y[train]), Split(x[test], y[test])


def _read_labels(path: Path) -> tuple[list[str], Array]:
    try:
        rows = csv.DictReader(bounded_lines(path, _LONGEST_LINE), strict=True)
        if missing := [name for name in ("file", "label") if name not in (rows.fieldnames or ())]:
            raise BadArgument(f"{path} has no column {missing[0]!r}; give a header with the columns file and label")
        pairs = [(row["file"], row["label"]) for row in rows]
    except csv.Error as error:
        raise BadArgument(f"{path} cannot be read as a .csv file ({error}); save it comma-separated") from error
    if not pairs:
        raise BadArgument(f"{path} names no images; give one a line, as file,label")
    names, texts = zip(*pairs, strict=True)
    if None in names or any(text is None or text.strip() not in ("0", "1") for text in texts):
        raise BadArgument(
            f"{path} has labels that are not 0 (healthy) or 1 (porous), or rows without one; correct the file"
        )
    return list(names), np.array([int(text) for text in texts])


def _inside(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BadArgument(f"{folder / 'labels.csv'} names a file outside {folder}; name files inside it")
    return path


def read_image(path: Path) -> Array:
    """The matrix of temperatures in one file."""
    rows: list[Array] = []
    for line in bounded_lines(path, _LONGEST_LINE):
        if not line.strip():
            continue
        try:
            rows.append(np.array(line.strip().rstrip(",").split(","), np.float32))
        except ValueError as error:
            raise BadArgument(f"{path} holds what is no number; give temperatures with commas between them") from error
        if len(rows) > _MOST_ROWS or len(rows[-1]) != len(rows[0]):
            raise BadArgument(f"{path} has rows of different lengths, or above {_MOST_ROWS} of them; give a matrix")
    shape = (len(rows), len(rows[0]) if rows else 0)
    if min(shape) < SIDE:
        raise BadArgument(f"{path} is an image of {shape[0]} rows and {shape[1]} columns; give at least {SIDE} of each")
    return np.stack(rows)


def melt_pool(image: Array) -> Array:
    """200x200 pixels around the middle of the melt pool (of the hottest pixel, where none is molten), scaled to 0..1."""
    image = np.nan_to_num(image, nan=0.0, posinf=HOTTEST, neginf=0.0)
    pool = np.argwhere(image >= min(MELTING, image.max()))
    corner = [
        int(np.clip(round(middle) - SIDE // 2, 0, size - SIDE))
        for middle, size in zip(pool.mean(axis=0), image.shape, strict=True)
    ]
    window = image[corner[0] : corner[0] + SIDE, corner[1] : corner[1] + SIDE]
    return np.clip(window / np.float32(HOTTEST), 0, 1)


THINWALL = Source(
    name="thinwall",
    summary="thermal images of melt pools, healthy or porous, 200x200",
    kind="image",
    licence="see Zamiela et al., Data in Brief 51 (2023) 109722",
    how_to_get=(
        "ask for it as said in Zamiela et al., Data in Brief 51 (2023) 109722; put the images and a labels.csv (columns file, "
        "label: 0 healthy, 1 porous) in a folder thinwall/"
    ),
    shape=(1, SIDE, SIDE),
    class_names=("healthy", "porous"),
    recipe=Recipe(model="cnn", expected_batch_size=64, epochs=30, lr=0.05),
    tuning=UNTUNED,
    notes=(
        "thinwall: each image is cut to 200x200 around its melt pool and divided by 3000 degrees, a public constant; the test "
        "part is a quarter, drawn at random without looking at the records",
    ),
    editions=(Edition({_LABELS: File(None)}, read_thinwall, 1173, 391),),
)
