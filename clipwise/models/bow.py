"""A bag of words: the mean of the words' embeddings, then one hidden layer of tanh units.

OSO-DPSGD (paper 003) has a bag of words with a fully connected network for AG News. Words in a record are counted, their
order is not seen.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from clipwise.models.architecture import TOKENS, Architecture, Records, refuse_no_tokens

WIDTH, HIDDEN = 64, 64


def _build(records: Records, _: Any) -> nn.Module:
    size, padding = refuse_no_tokens("bow", records)
    return nn.Sequential(
        nn.EmbeddingBag(size, WIDTH, mode="mean", padding_idx=padding),
        *(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, records.classes)),
    )


BOW = Architecture(
    name="bow",
    summary=f"bag of words: mean embedding of {WIDTH}, {HIDDEN} tanh units",
    records=TOKENS,
    build=_build,
    typical="ag_news",
)
