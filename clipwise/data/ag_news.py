"""AG News: title and first lines of news articles, four topics.

Two editions: the published files, and a subset of the train part (47,182 of its 120,000 records) with the whole test part.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from clipwise.data.source import Edition, File, Recipe, Source, Split, tuned
from clipwise.data.tables import labels, read_rows
from clipwise.data.text import HashedWords

_SITE = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
_PUBLISHED = {
    "ag_news/train.csv": File(
        "76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e", 29_470_338, (_SITE + "train.csv",)
    ),
    "ag_news/test.csv": File(
        "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699", 1_857_427, (_SITE + "test.csv",)
    ),
}
_SUBSET = {
    "ag_news/train_subset.csv.gz": File("f7b1c2e7f83268dff24ccb38ef4f6c577468c37557621f16d75bf83a7185d884"),
    "ag_news/test.csv.gz": File("a0687337e1d12c4c6e06e96e5ffaf0cdbfc59a2a20614bd7598a4f4b167b6eec"),
}


_CONTRACTION = re.compile(r" ?#39;(?=(?:s|t|d|m|re|ve|ll)\b)")
_CODE = re.compile(r"#(\d{2,4});")
_MARKUP = re.compile(r"&?\b(?:lt|gt|quot|amp|nbsp);|\\")


def _clean(text: str) -> str:
    """Without the remains of mark-up in these texts: `#39;` for an apostrophe, `quot;`, a backslash for a line end."""
    text = _CONTRACTION.sub("'", text)
    text = _CODE.sub(lambda match: chr(int(match[1])), text)
    return _MARKUP.sub(" ", text)


def _read_file(path: Path) -> Split:
    rows = read_rows(path, 2)
    numbers = labels(path, [row[0] for row in rows], ("1", "2", "3", "4"))
    return Split([_clean(" ".join(row[1:])) for row in rows], np.array(numbers))


def _edition(files: dict[str, File], train_count: int, note: str | None) -> Edition:
    def read(root: Path) -> tuple[Split, Split]:
        train, test = (_read_file(root / name) for name in files)
        return train, test

    return Edition(files, read, train_count, 7_600, note)


_ENCODER = HashedWords(size=16_384, length=64)

AG_NEWS = Source(
    name="ag_news",
    summary="news articles by topic",
    kind="text",
    licence="non-commercial use (AG's corpus, Gulli; Zhang et al. 2015)",
    how_to_get="clipwise data get ag_news",
    shape=(_ENCODER.length,),
    class_names=("World", "Sports", "Business", "Sci/Tech"),
    recipe=Recipe(
        model="bow-linear",
        expected_batch_size=2048,
        epochs=20,
        lr=8.0,
        average_weights=0.95,
        method="auto-s",
        instead=Recipe(
            model="bow",
            expected_batch_size=1024,
            epochs=10,
            lr=8.0,
            method="auto-s",
            instead=Recipe(model="bilstm", expected_batch_size=1024, epochs=8, lr=2.0, method="auto-s"),
        ),
    ),
    tuning=tuned(19),
    encoder=_ENCODER,
    editions=(
        _edition(_PUBLISHED, 120_000, None),
        _edition(
            _SUBSET,
            47_182,
            "the train part is a subset of 47,182 of the 120,000 published records; figures are not comparable with "
            "those on the whole",
        ),
    ),
)
