"""Layers that cannot be trained privately as they are, refused by name when a model is attached, and again in the first
batch after a module was switched between train and eval mode; and calls of a model that no batch can be recorded of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin

from clipwise.types import Unsupported


def refuse_mixing_layers(model: nn.Module) -> None:
    """Raise for layers whose output for one example depends on the others, or that keep raw statistics of the data."""
    for refusal in mixing_layers(model):
        raise refusal


def mixing_layers(model: nn.Module) -> Iterator[Unsupported]:
    """A refusal for each of them."""
    for name, module in model.named_modules():
        if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():  # type: ignore[misc]
            yield Unsupported(
                f"layer {name!r} ({type(module).__name__}) has no shape yet; run the model once before attaching"
            )
        is_instance_norm = isinstance(module, _InstanceNorm)
        if isinstance(module, _BatchNorm) and not is_instance_norm and (module.training or module.running_mean is None):
            yield Unsupported(
                f"layer {name!r} ({type(module).__name__}) mixes the examples of a batch, so no example's influence can be bounded; "
                "replace it with clipwise.fix(model), which puts GroupNorm in its place, before making the optimizer. One with running "
                "statistics of public data can stay in eval mode: call its .eval() before attaching, and again after each model.train()"
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            yield Unsupported(
                f"layer {name!r} ({type(module).__name__}) rescales its rows in the forward pass, by which tokens were seen and without "
                "noise; make it with max_norm=None"
            )
        if is_instance_norm and module.track_running_stats:
            yield Unsupported(
                f"layer {name!r} ({type(module).__name__}) keeps running statistics of private data outside the guarantee; "
                "make it with track_running_stats=False, or use clipwise.fix(model)"
            )


def refuse_transforms() -> None:
    """Raise where the model is called by torch.func.grad, vmap or another transform: what was recorded would outlive it."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise Unsupported(
            "the model was called inside a transform of torch.func (grad, vmap, jvp) while a private batch is open; nothing was changed. Such "
            "gradients are not clipped, and have no noise: call the model itself and loss.backward(), or detach() first"
        )


def refuse_trained_inputs(given: Iterable[Tensor]) -> None:
    """Raise where parameters of another module have a part in what the model is given: they would get gradients without noise."""
    waiting: list[Any] = [x.grad_fn for x in given if x.grad_fn is not None]
    leaves: list[Any] = [x for x in given if x.grad_fn is None]
    known = set(waiting)
    while waiting:
        node = waiting.pop()
        leaves.append(getattr(node, "variable", None))  # of a node that gathers a leaf's gradient
        new = {n for n, _ in node.next_functions if n is not None} - known
        known |= new
        waiting += new
    if any(isinstance(x, nn.Parameter) and x.requires_grad for x in leaves):
        raise Unsupported(
            "what the model is given was made by parameters that are not its own, and require a gradient: they would get one without clipping and "
            "noise; nothing was changed. Put every module that is trained into one model, and call others under torch.no_grad()"
        )
