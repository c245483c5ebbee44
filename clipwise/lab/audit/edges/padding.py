"""Records that change each other before the model sees them: padding to the longest, and collate functions that mix."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from clipwise.dropin import Private
from clipwise.lab.audit.edges.attack import CLASSES, RECORDS, attack, control, linear, records

_EDGE = "padding and collate"
WORDS = 30


def texts(extra: bool) -> list[tuple[Tensor, Tensor]]:
    """Texts of 2 to 5 words; the one more has 60."""
    generator = torch.Generator().manual_seed(0)
    sizes = [int(torch.randint(2, 6, (), generator=generator)) for _ in range(RECORDS)] + [60]
    texts = [torch.randint(1, WORDS, (size,), generator=generator) for size in sizes]
    return [(text, torch.tensor(i % CLASSES)) for i, text in enumerate(texts)][: RECORDS + extra]


def _padded(batch: list) -> tuple[Tensor, Tensor]:
    return pad_sequence([x for x, _ in batch], batch_first=True), torch.stack([y for _, y in batch])


def text_loader(data: list) -> DataLoader:
    return DataLoader(data, batch_size=RECORDS, collate_fn=_padded)  # type: ignore[arg-type]


class _LastStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(WORDS, 6), nn.LSTM(6, 6, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(x))[0][:, -1])


class _MeanOverTime(nn.Module):
    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 6, padding_idx=padding), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(1))


class _Trims(nn.Module):
    """Cuts its input to the longest text of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        longest = int((x != 0).sum(1).max())
        return self.head(self.words(x[:, :longest]).mean(1))


def _loop(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    F.cross_entropy(model(batch[0]), batch[1]).backward()


def _wide(extra: bool) -> list[tuple[Tensor, Tensor]]:
    return [(F.pad(x, (0, 60 - len(x))), y) for x, y in texts(extra)]


attack(_EDGE, "LSTM, its last step, on padded texts", model=_LastStep, data=texts, loader=text_loader)(_loop)
attack(_EDGE, "a mean over time that counts padding", model=_MeanOverTime, data=texts, loader=text_loader)(_loop)
attack(_EDGE, "the same with Embedding(padding_idx=0)", model=lambda: _MeanOverTime(0), data=texts, loader=text_loader)(
    _loop
)
attack(_EDGE, "trimming to the longest text inside forward", model=_Trims, data=_wide)(_loop)


def _collating(collate: Any) -> Any:
    return lambda data: DataLoader(data, batch_size=RECORDS, collate_fn=collate)


def _mixup(batch: list) -> tuple[Tensor, Tensor]:
    x = torch.stack([x for x, _ in batch])
    return 0.7 * x + 0.3 * x.roll(1, 0), torch.stack([y for _, y in batch])


def _standardised(batch: list) -> tuple[Tensor, Tensor]:
    x = torch.stack([x for x, _ in batch])
    return (x - x.mean(0)) / (x.std(0) + 1e-3), torch.stack([y for _, y in batch])


def _sorted(batch: list) -> tuple[Tensor, Tensor]:
    return _stacked(sorted(batch, key=lambda r: float(r[0].sum())))


def _dropping(batch: list) -> tuple[Tensor, Tensor]:
    return _stacked([r for r in batch if float(r[0].abs().max()) < 4] or batch)


def _doubling(batch: list) -> tuple[Tensor, Tensor]:
    return _stacked([*batch, batch[-1], batch[-1]])


def _stacked(batch: list) -> tuple[Tensor, Tensor]:
    return tuple(torch.stack(part) for part in zip(*batch, strict=True))  # type: ignore[return-value]


for _name, _collate in (
    ("mixup in collate", _mixup),
    ("standardising over the batch in collate", _standardised),
    ("sorting the batch in collate", _sorted),
    ("leaving records out in collate", _dropping),
    ("a record several times in collate", _doubling),
):
    attack(_EDGE, _name, model=linear, data=records, loader=_collating(_collate))(_loop)


class _Tags(nn.Module):
    """One output a word, padding masked where it could matter to other words: the model is sound, the loss is not."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x))


def _of_words(model: nn.Module, batch: Any) -> Tensor:
    """(rows, words): each word's loss, 0 where there is none."""
    out = model(batch[0])
    losses = F.cross_entropy(out.flatten(0, 1), batch[0].flatten() % CLASSES, reduction="none").view(batch[0].shape)
    return losses * (batch[0] != 0)


@attack(_EDGE, "each row's mean over the longest text's length", model=_Tags, data=texts, loader=text_loader)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    private.backward(_of_words(model, batch).mean(1))


@attack(_EDGE, "the same, as a mean over all words and padding", model=_Tags, data=texts, loader=text_loader)
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    _of_words(model, batch).mean().backward()


@control("each row's mean over its own words", model=_Tags, data=texts, loader=text_loader)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    private.backward(_of_words(model, batch).sum(1) / (batch[0] != 0).sum(1))
