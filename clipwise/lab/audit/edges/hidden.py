"""Loops that mix records where the graph of the loss does not show it: edits in place, views, transforms, hooks inside the model."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.dropin import Private
from clipwise.lab.audit.edges.attack import CLASSES, WIDTH, attack, control

_EDGE = "behind the graph"


def _mean(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _rows(out: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(out, targets, reduction="none")


def _one(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(out[None], target[None])


# -- transforms --------------------------------------------------------------------------------------------------------


@attack(_EDGE, "vmap of one row's loss, with the batch's mean inside")
def _(private: Private, model: nn.Module, batch: Any) -> None:
    out = model(batch[0])
    centre = out.mean(0)
    private.backward(torch.func.vmap(lambda o, y: _one(o - centre, y))(out, batch[1]))


@control("vmap of one row's loss")
def _(private: Private, model: nn.Module, batch: Any) -> None:
    private.backward(torch.func.vmap(_one)(model(batch[0]), batch[1]))


@attack(_EDGE, "a penalty on the gradient by the inputs, in the loss")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    x = batch[0].clone().requires_grad_()
    loss = F.cross_entropy(model(x), batch[1])
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + slope.square().sum()).backward()


# -- edits in place and views --------------------------------------------------------------------------------------------


def _easy(out: Tensor) -> Tensor:
    size = out.detach().mean(1)
    return size < size.mean()


for _first in (0, 1):

    @attack(_EDGE, f"targets edited in place by the batch, from batch {_first + 1}", steps=_first + 1)
    def _(private: Private, model: nn.Module, batch: Any, first: int = _first) -> None:
        out = model(batch[0])
        if private.step >= first:
            batch[1][_easy(out)] = 0
        F.cross_entropy(out, batch[1]).backward()


@attack(_EDGE, "inputs centred in place, from batch 2", steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    if private.step:
        batch[0].sub_(3 * batch[0].mean(0))
    _mean(model, batch).backward()


@attack(_EDGE, "inputs centred in place between loss and backward")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    loss = _mean(model, batch)
    batch[0].data.sub_(3 * batch[0].data.mean(0))
    loss.backward()


@attack(_EDGE, "logits centred through a detached view, from batch 2", steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    out = model(batch[0])
    if private.step:
        view = out.detach()
        view.sub_(3 * view.mean(0))
    F.cross_entropy(out, batch[1]).backward()


@attack(_EDGE, "the hardest rows alone, from batch 2", steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    losses = _rows(model(batch[0]), batch[1])
    weights = torch.ones(len(losses))
    if private.step:
        weights = torch.zeros(len(losses))
        weights[losses.detach().topk(4).indices] = 1.0
    private.backward(losses * weights)


@attack(_EDGE, "mixup in the loop, in half of the batches after the first", steps=8)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    x, y = batch
    if private.step and random.Random(private.step).random() < 0.5:
        x = 0.5 * x + 0.5 * x.roll(1, 0)
    F.cross_entropy(model(x), y).backward()


# -- inside the model --------------------------------------------------------------------------------------------------


class _Hooked(nn.Module):
    """A hook on a hidden value, for every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        if hidden.requires_grad:
            hidden.register_hook(self.hook)
        return self.head(hidden.tanh())

    def hook(self, gradient: Tensor) -> Tensor:
        return gradient - gradient.mean(0)


class _Scaled(_Hooked):
    def hook(self, gradient: Tensor) -> Tensor:
        return gradient / gradient.norm()


@attack(_EDGE, "a hook inside the model that centres the gradients", model=_Hooked)
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    _mean(model, batch).backward()


@attack(_EDGE, "a hook inside the model that divides by the batch's norm", model=_Scaled, reduction="sum")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    F.cross_entropy(model(batch[0]), batch[1], reduction="sum").backward()


class _Nested(nn.Module):
    """Rows of a nested tensor, each less the mean of all."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x).tanh()
        rows = torch.nested.as_nested_tensor([row[None] - hidden.mean(0) for row in hidden])
        return self.head(torch.nested.to_padded_tensor(rows, 0.0)[:, 0])


@attack(_EDGE, "nested tensors of rows less their mean", model=_Nested)
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    _mean(model, batch).backward()


class _Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, CLASSES, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.table((3 * x[:, 0]).long().clamp(-4, 5) + 4)


@control("an embedding with sparse=True", model=_Sparse)
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    _mean(model, batch).backward()
