"""Models whose forward pass keeps something of the records: it would be saved with the weights, without noise."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.dropin import Private
from clipwise.lab.audit.edges.attack import CLASSES, WIDTH, attack

_EDGE = "what a forward pass leaves"


class _Keeps(nn.Module):
    """A linear layer on centred inputs; the centre follows the batches."""

    def __init__(self, kind: str, *, used: bool = True) -> None:
        super().__init__()
        self.head, self.kind, self.used = nn.Linear(WIDTH, CLASSES), kind, used
        if kind == "buffer":
            self.register_buffer("centre", torch.zeros(WIDTH))
        elif kind == "parameter":
            self.centre = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)
        else:
            self.plain = [torch.zeros(WIDTH)]

    @property
    def kept(self) -> Tensor:
        return self.plain[0] if self.kind == "attribute" else self.centre

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.kept.lerp_(x.detach().mean(0), 0.1)
        return self.head(x - self.kept.clone() if self.used else x)


class _Codebook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("codes", torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x.detach(), self.codes).argmin(1)  # type: ignore[arg-type]
        out = self.head(self.codes[nearest] + x)  # type: ignore[index]
        if self.training:
            with torch.no_grad():
                self.codes.index_add_(0, nearest, x.detach(), alpha=0.01)  # type: ignore[operator]
        return out


class _Random(_Keeps):
    """The same, behind Python's generator, which no seed of torch reaches."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + 1e-3 * random.random())


def _loop(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    F.cross_entropy(model(batch[0]), batch[1]).backward()


def _kept(model: nn.Module) -> Tensor:
    return model.kept  # type: ignore[return-value]


for _kind in ("buffer", "parameter", "attribute"):
    attack(_EDGE, f"a running mean in a {_kind}, used", model=lambda k=_kind: _Keeps(k), leaves=_kept)(_loop)
    attack(_EDGE, f"a running mean in a {_kind}, not used", model=lambda k=_kind: _Keeps(k, used=False), leaves=_kept)(
        _loop
    )
attack(_EDGE, "a codebook that follows the records", model=_Codebook, leaves=lambda m: m.codes)(_loop)
attack(_EDGE, "a running mean behind Python's random", model=lambda: _Random("buffer"), leaves=_kept)(_loop)


@attack(_EDGE, "a buffer written by the loop", model=lambda: _Keeps("buffer"), leaves=_kept, steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    model.eval()
    _loop(private, model, batch)
    with torch.no_grad():
        model.kept.lerp_(batch[0].mean(0), 0.1)  # type: ignore[operator]
