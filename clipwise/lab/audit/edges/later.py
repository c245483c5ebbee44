"""Loops that are sound on their first batch, and do something else on the second."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from clipwise.dropin import Private
from clipwise.lab.audit.edges.attack import CLASSES, WIDTH, attack

_EDGE = "after the first batch"


class Net(nn.Module):
    """Two layers, and a switch that no first batch shows."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.act, self.head = nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES)
        self.centred = False

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.body(_shifted(x) if self.centred else x)))


class _Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(_shifted(x))


def _shifted(x: Tensor) -> Tensor:
    return x + 10 * x.abs().amax(0)


def _shifting(_: nn.Module, given: Any) -> Any:
    return (_shifted(given[0]),)


def _largest(batch: Any) -> float:
    return float(batch[0].abs().max())


def _mean(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _rows(out: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(out, batch[1], reduction="none")


# -- the model ---------------------------------------------------------------------------------------------------------


@attack(_EDGE, "a switch of the model turned on", model=Net, steps=2)
def _(private: Private, model: Any, batch: Any) -> None:
    model.centred = private.step > 0
    _mean(model, batch).backward()


@attack(_EDGE, "a layer put around another", model=Net, steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    if private.step:
        model.body = _Around(model.body)  # type: ignore[arg-type]
    _mean(model, batch).backward()


@attack(_EDGE, "an activation replaced by statistics of the batch", model=Net, steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    if private.step:
        model.act = nn.BatchNorm1d(8, affine=False, track_running_stats=False)
    _mean(model, batch).backward()


@attack(_EDGE, "model.forward replaced", model=Net, steps=2)
def _(private: Private, model: Any, batch: Any) -> None:
    if private.step:
        model.forward = lambda x: model.head(model.act(model.body(_shifted(x))))
    _mean(model, batch).backward()


@attack(_EDGE, "a parameter replaced", model=Net, steps=2)
def _(private: Private, model: Any, batch: Any) -> None:
    if private.step:
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    _mean(model, batch).backward()


@attack(_EDGE, "a layer frozen", model=Net, steps=2)
def _(private: Private, model: Any, batch: Any) -> None:
    model.body.requires_grad_(private.step == 0)
    _mean(model, batch).backward()


@attack(_EDGE, "a forward hook for the time of the call", model=Net, steps=2)
def _(private: Private, model: Any, batch: Any) -> None:
    hook = model.body.register_forward_pre_hook(_shifting) if private.step else None
    loss = _mean(model, batch)
    if hook is not None:
        hook.remove()
    loss.backward()


@attack(_EDGE, "a forward hook on all modules of the process", model=Net, steps=2)
def _(private: Private, model: Any, batch: Any) -> None:
    if not private.step:
        return _mean(model, batch).backward()
    everywhere = nn.modules.module.register_module_forward_pre_hook(_shifting)
    try:
        return _mean(model, batch).backward()
    finally:
        everywhere.remove()


@attack(_EDGE, "a backward hook on a layer that adds up rows", model=Net, steps=2)
def _(private: Private, model: Any, batch: Any) -> None:
    if private.step:
        model.head.register_full_backward_hook(lambda _, into, __: (into[0] + 10 * into[0].sum(0),))
    _mean(model, batch).backward()


# -- the graph of the loss ---------------------------------------------------------------------------------------------


def _summed(g: Tensor) -> Tensor:
    return g + 10 * g.sum(0, keepdim=True)


@attack(_EDGE, "a hook on a node of the loss that adds up rows", steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    loss = _mean(model, batch)
    if private.step:
        loss.grad_fn.next_functions[0][0].register_hook(lambda into, _: (_summed(into[0]),))  # type: ignore[union-attr]
    loss.backward()


@attack(_EDGE, "a hook on a node under private.backward", steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    losses = _rows(model(batch[0]), batch)
    if private.step:
        losses.grad_fn.next_functions[0][0].register_hook(lambda into, _: (_summed(into[0]),))  # type: ignore[union-attr]
    private.backward(losses)


@attack(_EDGE, "a hook before the node of the model's output", steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    out = model(batch[0])
    if private.step:
        out.grad_fn.register_prehook(lambda g: (_summed(g[0]),))
    F.cross_entropy(out, batch[1]).backward()


@attack(_EDGE, "a hook before the loss's node that scales by the batch", bound=4.0)
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    loss, factor = _mean(model, batch), _largest(batch)
    loss.grad_fn.register_prehook(lambda g: (g[0] * factor,))  # type: ignore[union-attr]
    loss.backward()


@attack(_EDGE, "a hook that changes a gradient in place", steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    def grow(g: tuple[Tensor, ...]) -> None:
        g[0].mul_(100 * g[0].abs().sum())

    losses = _rows(model(batch[0]), batch)
    if private.step:
        losses.grad_fn.register_prehook(grow)  # type: ignore[union-attr]
    losses.mean().backward()


# -- numbers -----------------------------------------------------------------------------------------------------------


@attack(_EDGE, "a number of the batch on the row losses, under a mean", steps=2, bound=4.0)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    (_rows(model(batch[0]), batch) * (_largest(batch) if private.step else 1.5)).mean().backward()


@attack(_EDGE, "a number of the batch on the row losses, under private.backward", steps=2, bound=4.0)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    private.backward(_rows(model(batch[0]), batch) * (_largest(batch) if private.step else 1.5))


@attack(_EDGE, "a number of the batch on the logits", steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    private.backward(_rows(model(batch[0]) * (_largest(batch) if private.step else 1.5), batch))


@attack(_EDGE, "a number of the batch as exponent", steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    private.backward(_rows(model(batch[0]), batch) ** (_largest(batch) if private.step else 1.5))


@attack(_EDGE, "a number of the batch where a loss bends", steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    beta = _largest(batch) if private.step else 1.0
    target = F.one_hot(batch[1], CLASSES).float()
    F.smooth_l1_loss(model(batch[0]), target, beta=beta, reduction="none").sum(1).mean().backward()


_last: dict[int, float] = {}


@attack(_EDGE, "the last batch's mean loss, kept in a global, as a weight", steps=3, bound=4.0)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    losses = _rows(model(batch[0]), batch)
    private.backward(losses * (_last[id(model)] if private.step else 1.0))
    _last[id(model)] = 10 * float(losses.detach().mean())


@attack(_EDGE, "saved tensors that come back otherwise", steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    if not private.step:
        return _mean(model, batch).backward()
    most = 3 * batch[0].abs().max()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t - most if t.is_floating_point() else t):
        loss = _mean(model, batch)
    return loss.backward()


class _Centring(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = (args[0] - args[0].mean(0), *args[1:]) if func is F.linear else args
        return func(*args, **(kwargs or {}))


class _Mixing(TorchDispatchMode):
    """Gradients of the loss, each with something of all the others."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out + 10 * out.sum(0) if "_log_softmax_backward" in str(func) else out


@attack(_EDGE, "a mode of torch's around the call", steps=2)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    with _Centring() if private.step else nullcontext():
        out = model(batch[0])
    private.backward(F.cross_entropy(out, batch[1], reduction="none"))


@attack(_EDGE, "a mode of torch's around the backward pass", steps=3)
def _(private: Private, model: nn.Module, batch: Any) -> None:
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    with _Mixing() if private.step == 2 else nullcontext():
        private.backward(losses)


@attack(_EDGE, "a parameter's gradient asked for by autograd.grad")
def _(private: Private, model: nn.Module, batch: Any) -> None:  # noqa: ARG001
    for p, g in zip(
        model.parameters(), torch.autograd.grad(_mean(model, batch), list(model.parameters())), strict=True
    ):
        p.grad = g
