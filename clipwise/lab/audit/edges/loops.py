"""Loops that reach past the step: other hands on gradients, models and optimizers."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clipwise.dropin import Private, attach
from clipwise.lab.audit.edges.attack import CLASSES, WIDTH, attack, plain_loader, records

_EDGE = "loop and process"


def _backward(model: nn.Module, batch: Any) -> None:
    F.cross_entropy(model(batch[0]), batch[1]).backward()


@attack(_EDGE, "a gradient of the loop's own put on p.grad")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    _backward(model, batch)
    for p in model.parameters():
        p.grad = 100 * torch.ones_like(p) * batch[0].sum()


@attack(_EDGE, "clip_grad_norm_ before step()")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    _backward(model, batch)
    nn.utils.clip_grad_norm_(model.parameters(), 1e6)


@attack(_EDGE, "a hook on a parameter that keeps its gradient")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    seen: list[Tensor] = []
    for p in model.parameters():
        p.register_hook(seen.append)
    _backward(model, batch)
    if any(len(g) for g in seen):
        with torch.no_grad():
            next(model.parameters()).add_(seen[0])


@attack(_EDGE, "backward() twice")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    _backward(model, batch)
    _backward(model, batch)


@attack(_EDGE, "a batch that is not from the loader")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    _backward(model, (batch[0].repeat(2, 1), batch[1].repeat(2)))


@attack(_EDGE, "a penalty on the weights, times the data")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    out = model(batch[0])
    penalty = sum(p.square().sum() for p in model.parameters()) * batch[0].square().mean()
    (F.cross_entropy(out, batch[1]) + penalty).backward()


@attack(_EDGE, "a second optimizer on the same parameters")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    other = torch.optim.SGD(model.parameters(), lr=1.0)
    _backward(model, batch)
    other.step()


@attack(_EDGE, "a second run on the same model")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    attach(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        plain_loader(records(False)),
        noise_multiplier=1.0,
        method="fixed",
    )


@attack(_EDGE, "a run on a wrapper of the model")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    wrapper = nn.Sequential(model, nn.Linear(CLASSES, CLASSES))
    attach(
        wrapper,
        torch.optim.SGD(wrapper.parameters(), lr=0.1),
        plain_loader(records(False)),
        noise_multiplier=1.0,
        method="fixed",
    )


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh())


@attack(_EDGE, "a run on a part of the model", model=_Two)
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    part: nn.Module = model.body  # type: ignore[assignment]
    attach(
        part,
        torch.optim.SGD(part.parameters(), lr=0.1),
        plain_loader(records(False)),
        noise_multiplier=1.0,
        method="fixed",
    )


@attack(_EDGE, "a layer called from outside the model", model=_Two)
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    F.cross_entropy(model.head(model.body(batch[0]).tanh()), batch[1]).backward()  # type: ignore[operator]


class _BatchNorm(nn.Module):
    """Frozen when the run is made; the loop switches it on."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(WIDTH).eval(), nn.Linear(WIDTH, CLASSES)
        self.norm.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


@attack(_EDGE, "BatchNorm switched to training", model=_BatchNorm)
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    model.train()
    _backward(model, batch)


@attack(_EDGE, "a module before the model, trained by its own gradients", steps=2)
def _(private: Private, model: Any, batch: Any) -> None:
    if not private.step:
        torch.manual_seed(1)
        model.__dict__["before"] = nn.Linear(WIDTH, WIDTH)  # none of its modules
    before = model.__dict__["before"]
    _backward(model, (before(batch[0]), batch[1]))
    with torch.no_grad():
        for p in before.parameters():
            p.sub_(10 * p.grad)


@attack(_EDGE, "a module after the model, trained by its own gradients")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    F.cross_entropy(nn.Linear(CLASSES, CLASSES)(model(batch[0])), batch[1]).backward()


@attack(_EDGE, "autograd.grad of the loss, added to the weights")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    loss = F.cross_entropy(model(batch[0]), batch[1])
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    with torch.no_grad():
        for p, g in zip(model.parameters(), found, strict=True):
            p.sub_(0 if g is None else 10 * g)
    _backward(model, batch)


@attack(_EDGE, "torch.func.grad of the loss, added to the weights")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    def loss(weights: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, weights, (batch[0],)), batch[1])

    found = torch.func.grad(loss)({name: p.detach() for name, p in model.named_parameters()})
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.sub_(10 * found[name])
    _backward(model, batch)


@attack(_EDGE, "backward(inputs=parameters)")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    F.cross_entropy(model(batch[0]), batch[1]).backward(inputs=list(model.parameters()))


@attack(_EDGE, "two losses, a backward() each")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    out = model(batch[0])
    F.cross_entropy(out, batch[1]).backward(retain_graph=True)
    F.cross_entropy(-out, batch[1]).backward()


@attack(_EDGE, "backward() in another thread, rows mixed")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    out, raised = model(batch[0]), []

    def run() -> None:
        try:
            F.cross_entropy(out + out.sum(0), batch[1]).backward()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in raised:
        raise error


for _again in (True, False):

    @attack(_EDGE, f"rows mixed under a checkpoint, use_reentrant={_again}")
    def _(private: Private, model: nn.Module, batch: Any, again: bool = _again) -> None:
        def losses(out: Tensor) -> Tensor:
            return F.cross_entropy(out + out.sum(0), batch[1], reduction="none")

        private.backward(checkpoint(losses, model(batch[0]), use_reentrant=again))
