"""Losses that do not treat each record alone, or not with the weight that was declared."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.dropin import Private
from clipwise.lab.audit.edges.attack import CLASSES, WIDTH, attack

_EDGE = "loss"


def _ce(model: nn.Module, batch: Any, **how: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], **how)


@attack(_EDGE, "class weights 1:1000 under a mean")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    _ce(model, batch, weight=torch.tensor([1.0, 1.0, 1000.0])).backward()


@attack(_EDGE, "a mean over tokens that are not padding")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    x, y = batch
    words = torch.where(y == CLASSES - 1, 9, 1)  # the one more has many tokens, the others one
    mask = (torch.arange(9) < words[:, None]).float()
    losses = F.cross_entropy(model(x), y, reduction="none")[:, None] * mask
    (losses.sum() / mask.sum()).backward()


@attack(_EDGE, "sum * 0.5, declared a sum", reduction="sum")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    (_ce(model, batch, reduction="sum") * 0.5).backward()


@attack(_EDGE, "sum / 4, declared a sum", reduction="sum")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    (_ce(model, batch, reduction="sum") / 4).backward()


@attack(_EDGE, "mean + mean")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    x, y = batch
    out = model(x)
    (F.cross_entropy(out, y) + F.cross_entropy(2 * out, y)).backward()


@attack(_EDGE, "mean * 2")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    (_ce(model, batch) * 2).backward()


@attack(_EDGE, "a sum that was declared a mean")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    _ce(model, batch, reduction="sum").backward()


@attack(_EDGE, "label smoothing under a sum", reduction="sum")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    _ce(model, batch, reduction="sum", label_smoothing=0.2).backward()


@attack(_EDGE, "losses.backward(ones), declared a mean")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    losses = _ce(model, batch, reduction="none")
    losses.backward(torch.ones(len(losses)))


@attack(_EDGE, "autograd.backward of two losses")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    x, y = batch
    out = model(x)
    torch.autograd.backward([F.cross_entropy(out, y), F.cross_entropy(-out, y)])


@attack(_EDGE, "a second backward() with another reduction")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    x, y = batch
    out = model(x)
    F.cross_entropy(out, y).backward(retain_graph=True)
    F.cross_entropy(out, y, reduction="sum").backward()


class _WithAuxiliary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(x))
        self.kept = hidden.square().sum()
        return self.head(hidden)


@attack(_EDGE, "an auxiliary loss kept on a module", model=_WithAuxiliary)
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    (_ce(model, batch) + model.kept).backward()  # type: ignore[operator]


@attack(_EDGE, "a contrastive loss")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    out = F.normalize(model(batch[0]), dim=1)
    F.cross_entropy(out @ out.T / 0.1, torch.arange(len(out))).backward()


@attack(_EDGE, "a correlation over the batch")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    out = model(batch[0])
    (out - out.mean(0)).square().mean().backward()


@attack(_EDGE, "the root of a mean")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    _ce(model, batch).sqrt().backward()


class _MixesLarge(nn.Module):
    """Mixes rows where a number is beyond what a first look tries."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


@attack(_EDGE, "rows mixed in the loss where a number is large", model=_MixesLarge)
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    out = model(batch[0])
    gate = (batch[0].abs().amax(1, keepdim=True) > 3).float()
    F.cross_entropy(out + (gate * out).sum(0), batch[1]).backward()


@attack(_EDGE, "private.backward of losses that mix rows")
def _(private: Private, model: nn.Module, batch: Any) -> None:
    losses = _ce(model, batch, reduction="none")
    private.backward(losses * losses.mean())


@attack(_EDGE, "private.backward of losses sorted by their size")
def _(private: Private, model: nn.Module, batch: Any) -> None:
    losses = _ce(model, batch, reduction="none")
    private.backward(losses.sort().values * torch.arange(len(losses)))
