"""LSTM classifiers of token numbers.

`lstm`: two layers, and the state at the record's last token: DC-SGD (paper 002) on surnames. `bilstm`: one layer in both
directions, averaged over the tokens: Auto DP-SGD (paper 000) on AG News, which gives no sizes; ours are 64 and 2 x 64.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from clipwise.models.architecture import TOKENS, Architecture, Records, refuse_no_tokens
from clipwise.models.tokens import is_token, last_token, mean_of_tokens


class Recurrent(nn.Module):
    def __init__(
        self, size: int, padding: int | None, classes: int, *, width: int, hidden: int, layers: int, both: bool
    ):
        super().__init__()
        self.padding, self.both = padding, both
        self.words = nn.Embedding(size, width, padding_idx=padding)
        self.lstm = nn.LSTM(width, hidden, num_layers=layers, bidirectional=both, batch_first=True)
        self.classifier = nn.Linear(2 * hidden if both else hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        there = is_token(tokens, self.padding)
        states, _ = self.lstm(self.words(tokens))
        return self.classifier((mean_of_tokens if self.both else last_token)(states, there))


def _lstm(records: Records, _: Any) -> nn.Module:
    size, padding = refuse_no_tokens("lstm", records)
    return Recurrent(size, padding, records.classes, width=64, hidden=128, layers=2, both=False)


def _bilstm(records: Records, _: Any) -> nn.Module:
    size, padding = refuse_no_tokens("bilstm", records)
    return Recurrent(size, padding, records.classes, width=64, hidden=64, layers=1, both=True)


LSTM = Architecture(
    name="lstm",
    summary="two LSTM layers of 128, the state at the last token",
    records=TOKENS,
    build=_lstm,
    typical="names",
)
BILSTM = Architecture(
    name="bilstm",
    summary="one LSTM layer of 64 in both directions, averaged over the tokens",
    records=TOKENS,
    build=_bilstm,
    typical="ag_news",
)
