"""Bags of words: words in a record are counted, their order is not seen.

`bow`: the mean of the words' embeddings, then one hidden layer of tanh units. OSO-DPSGD (paper 003) has a bag of words with a
fully connected network for AG News.

`bow-linear`: logistic regression, one weight a word and class. Private training favours it: all of a record's gradient goes
to its own words, where in `bow` most of it goes to the hidden layer and little of it reaches the embeddings. A record's
counts are divided by the root of its number of words, so that long and short texts have gradients of like length. There is
no bias, which would take a good part of every gradient: common words stand in for it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from clipwise.models.architecture import TOKENS, Architecture, Records, refuse_no_tokens
from clipwise.models.tokens import is_token

WIDTH, HIDDEN = 64, 64  # numbers of an embedding, and of the hidden layer: chosen for a small model


class LinearBag(nn.Module):
    def __init__(self, size: int, padding: int | None, classes: int):
        super().__init__()
        self.padding = padding
        self.words = nn.EmbeddingBag(size, classes, mode="sum", padding_idx=padding)
        nn.init.zeros_(self.words.weight)  # convex: no need to begin anywhere else

    def forward(self, tokens: Tensor) -> Tensor:
        count = is_token(tokens, self.padding).sum(1, keepdim=True).to(self.words.weight.dtype)
        return self.words(tokens) / count.sqrt()


def _build(records: Records, _: Any) -> nn.Module:
    size, padding = refuse_no_tokens("bow", records)
    return nn.Sequential(
        nn.EmbeddingBag(size, WIDTH, mode="mean", padding_idx=padding),
        *(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, records.classes)),
    )


def _build_linear(records: Records, _: Any) -> nn.Module:
    size, padding = refuse_no_tokens("bow-linear", records)
    return LinearBag(size, padding, records.classes)


BOW = Architecture(
    name="bow",
    summary=f"bag of words: mean embedding of {WIDTH}, {HIDDEN} tanh units",
    records=TOKENS,
    build=_build,
    typical="ag_news",
)
BOW_LINEAR = Architecture(
    name="bow-linear",
    summary="bag of words: logistic regression, one weight a word and class",
    records=TOKENS,
    build=_build_linear,
    typical="ag_news",
)
