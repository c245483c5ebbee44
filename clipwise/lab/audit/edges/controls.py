"""Loops that are sound, and must not be refused: an audit whose every loop is refused would show nothing."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise import losses
from clipwise.dropin import Private
from clipwise.lab.audit.edges.attack import CLASSES, WIDTH, control
from clipwise.lab.audit.edges.padding import WORDS, text_loader, texts


@control("a mean of cross entropies")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    F.cross_entropy(model(batch[0]), batch[1]).backward()


@control("a sum, declared", reduction="sum")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    F.cross_entropy(model(batch[0]), batch[1], reduction="sum").backward()


@control("private.backward of one loss a row")
def _(private: Private, model: nn.Module, batch: Any) -> None:
    private.backward(F.cross_entropy(model(batch[0]), batch[1], reduction="none"))


@control("squared error on probabilities, by hand")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    (model(batch[0]).softmax(1) - F.one_hot(batch[1], CLASSES)).square().sum(1).mean().backward()


@control("class weights in the sound form")
def _(private: Private, model: nn.Module, batch: Any) -> None:
    private.backward(losses.make_loss("cross-entropy:weights=1/1/1000").each(model(batch[0]), batch[1]))


class _Masks(nn.Module):
    """Counts the words of each text, and no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        mask = (x != 0).unsqueeze(2).float()
        return self.head((self.words(x) * mask).sum(1) / mask.sum(1).clamp(min=1))


@control("texts padded to the longest, masked", model=_Masks, data=texts, loader=text_loader)
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    F.cross_entropy(model(batch[0]), batch[1]).backward()


class _Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(WIDTH).requires_grad_(False), nn.Linear(WIDTH, CLASSES)
        self.dropout = nn.Dropout(0.2)

    def train(self, mode: bool = True) -> _Frozen:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.norm(x)))


@control("frozen BatchNorm and dropout", model=lambda: _Frozen().train())
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    torch.manual_seed(1)
    F.cross_entropy(model(batch[0]), batch[1]).backward()


@control("hooks on nodes of the graph that look on", steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.grad_fn.register_hook(lambda *_: None)  # type: ignore[union-attr]
    loss.grad_fn.register_prehook(lambda _: None)  # type: ignore[union-attr]
    loss.backward()


@control("a teacher by functional_call, other weights", steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    weights = {name: 2 * p.detach() for name, p in model.named_parameters()}
    taught = torch.func.functional_call(model, weights, (batch[0],)).softmax(1).detach()
    F.cross_entropy(model(batch[0]), taught).backward()
