"""The two GLUE tasks: SST-2 (phrases of film reviews, two moods) and QNLI (does the sentence answer the question?).

GLUE keeps the labels of its test parts, so the dev parts stand in for them. Editions: the published .zip, and .tsv.gz
files of the same tables (of QNLI only its dev part, which is then split).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clipwise.data.source import Edition, File, Recipe, Source, Split, tuned
from clipwise.data.split import held_out
from clipwise.data.tables import labels, read_rows
from clipwise.data.text import HashedWords

_SITE = "https://dl.fbaipublicfiles.com/glue/data/"
_SST2_ZIP, _QNLI_ZIP = "sst2/SST-2.zip", "qnli/QNLIv2.zip"
_SST2_PUBLISHED = {
    _SST2_ZIP: File(
        "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa", 7_439_277, (_SITE + "SST-2.zip",)
    )
}
_SST2_TABLES = {
    "sst2/train.tsv.gz": File("1c4843303462f8f93e006ff618a9e61d207468cafd030046d7d7fd6b78af342b"),
    "sst2/dev.tsv.gz": File("19553efc6f7bac0b7fdd37d4e29dc37c15e9e779767249a16f857fbfcedb23fa"),
}
_QNLI_PUBLISHED = {
    _QNLI_ZIP: File(
        "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5", 10_627_589, (_SITE + "QNLIv2.zip",)
    )
}
_QNLI_DEV = {"qnli/dev.tsv.gz": File("ac1ccb28d7aa98e8b7250e52d2a64175264682d80167657af2e78abe30618cea")}


def _sst2(path: Path, member: str | None = None) -> Split:
    rows = read_rows(path, 2, tab=True, header=True, member=member)
    return Split([row[0].strip() for row in rows], np.array(labels(path, [row[1] for row in rows], ("0", "1"))))


def _qnli(path: Path, member: str | None = None) -> Split:
    rows = read_rows(path, 4, tab=True, header=True, member=member)
    numbers = labels(path, [row[3] for row in rows], ("not_entailment", "entailment"))
    return Split([(row[1], row[2]) for row in rows], np.array(numbers))


def _qnli_dev_split(root: Path) -> tuple[Split, Split]:
    """By the sentence: questions about the same sentence stay on one side."""
    (name,) = _QNLI_DEV
    whole = _qnli(root / name)
    aside = held_out([sentence for _, sentence in whole.x])
    train, test = (
        Split([pair for pair, chosen in zip(whole.x, part, strict=True) if chosen], whole.y[part])
        for part in (~aside, aside)
    )
    return train, test


_SST2_ENCODER = HashedWords(size=16_384, length=48)
_QNLI_ENCODER = HashedWords(size=16_384, length=96)

SST2 = Source(
    name="sst2",
    summary="phrases of film reviews by mood; the dev part is the test part",
    kind="text",
    licence="none given by GLUE (Socher et al. 2013)",
    how_to_get="clipwise data get sst2",
    shape=(_SST2_ENCODER.length,),
    class_names=("negative", "positive"),
    recipe=Recipe(
        model="bow-linear",
        expected_batch_size=2048,
        epochs=20,
        lr=8.0,
        average_weights=0.95,
        method="auto-s",
        instead=Recipe(
            model="bert", expected_batch_size=1024, epochs=10, lr=1.0, method="auto-s", packages=("transformers",)
        ),
    ),
    tuning=tuned(4),
    notes=("sst2: records are phrases, and many phrases come from one sentence: one record is not one review",),
    encoder=_SST2_ENCODER,
    editions=(
        Edition(
            _SST2_PUBLISHED,
            lambda root: (_sst2(root / _SST2_ZIP, "SST-2/train.tsv"), _sst2(root / _SST2_ZIP, "SST-2/dev.tsv")),
            67_349,
            872,
        ),
        Edition(
            _SST2_TABLES,
            lambda root: (_sst2(root / "sst2/train.tsv.gz"), _sst2(root / "sst2/dev.tsv.gz")),
            67_349,
            872,
        ),
    ),
)

QNLI = Source(
    name="qnli",
    summary="question and sentence: is the answer in it? The dev part is the test part",
    kind="text",
    licence="CC BY-SA 4.0 (from SQuAD)",
    how_to_get="clipwise data get qnli",
    shape=(_QNLI_ENCODER.length,),
    class_names=("not_entailment", "entailment"),
    recipe=Recipe(
        model="bow-linear",
        expected_batch_size=1024,
        epochs=30,
        lr=4.0,
        average_weights=0.9,
        method="auto-s",
        instead=Recipe(
            model="bert", expected_batch_size=512, epochs=10, lr=1.0, method="auto-s", packages=("transformers",)
        ),
    ),
    tuning=tuned(2),
    encoder=_QNLI_ENCODER,
    editions=(
        Edition(
            _QNLI_PUBLISHED,
            lambda root: (_qnli(root / _QNLI_ZIP, "QNLI/train.tsv"), _qnli(root / _QNLI_ZIP, "QNLI/dev.tsv")),
            104_743,
            5_463,
        ),
        Edition(
            _QNLI_DEV,
            _qnli_dev_split,
            4_344,
            1_119,
            "only the dev part is here; four fifths of it were trained on and a fifth tested on: not a GLUE score",
        ),
    ),
)
