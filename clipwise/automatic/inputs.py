"""Badly scaled inputs: the first layer that is trained sees them times a public power of 4, found by one noised histogram.

Under clipping, inputs of 0.01 leave the whole gradient to the biases, and inputs of 100 saturate the first layer: no learning rate
repairs either. So what comes into that layer is multiplied by s while the run lasts, as if the user had scaled the inputs, and s goes
into its weights at the end: W (s x) = (s W) x, exactly, because s is a power of 2.

Formal guarantee: each record adds one 1 to one bin of the histogram (none, if its size is not finite), so that adding or removing it
moves the counts by at most 1 in l2; s is a function of the released counts. Sizes themselves do not leave this file. While s is in
place the model is another model with a public constant in it, and its steps are those of any run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from clipwise import modes
from clipwise.accounting import Event
from clipwise.automatic import rule
from clipwise.automatic.task import Task
from clipwise.run import Run

_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # whose outputs are linear in their inputs, but for the bias


def first_layer(model: nn.Module, task: Task, loader: DataLoader[Any]) -> str | None:
    """The name of the first module with trained parameters that a record comes through, where that is a linear layer or a convolution with weights of its
    own and rows of numbers first; None otherwise. Tried on one and on three copies of the first record, whose shape is public."""
    one, three = (_called_first(model, task, loader.collate_fn([loader.dataset[0]] * copies)) for copies in (1, 3))
    if one is None or three is None or not one[1].is_floating_point():
        return None
    (layer, *shapes) = (one[0], one[1].shape, three[1].shape)
    weights = [p for _, p in model.named_parameters(remove_duplicate=False) if p is layer._parameters.get("weight")]
    alone = len(weights) == 1 and weights[0].requires_grad
    rows_first = shapes == [(1, *shapes[0][1:]), (3, *shapes[0][1:])]
    return next(name for name, m in model.named_modules() if m is layer) if alone and rows_first else None


def _called_first(model: nn.Module, task: Task, batch: Any) -> tuple[nn.Module, Tensor] | None:
    """Of the modules with trained parameters, and its input; None where it is none of the kinds that can be scaled."""
    trained = [m for m in model.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]
    with modes.evaluating(model), _heard(trained) as calls:
        task.row_losses(batch)
    if not calls or type(calls[0][0]) not in _LINEAR or calls[0][1] is None:
        return None
    return calls[0][:2]


@contextmanager
def _heard(modules: Sequence[nn.Module]) -> Iterator[list[tuple[nn.Module, Any, Any]]]:
    """Each call of one of them in this block, with the first tensor that it was given, and what came out."""
    calls = list[tuple[nn.Module, Any, Any]]()

    def hear(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        calls.append((module, args[0] if args and isinstance(args[0], Tensor) else None, out))

    hooks = [m.register_forward_hook(hear) for m in modules]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def found_scale(run: Run, task: Task, layer: str | None, event: Event) -> float:
    """s, from a release on all records; 1 where nothing is badly scaled or nothing stands out of the noise."""
    counts = torch.zeros(rule.SCALES, dtype=torch.float64)
    if layer is not None:
        with modes.evaluating(run.model), _heard([run.model.get_submodule(layer)]) as calls:
            for batch, records in run.all_records():
                calls.clear()
                if not batch.masked:
                    task.row_losses(records)
                    counts += _histogram(calls, batch.rows)
    counts = run.release(counts, event, l2_bound=1.0, what="histogram of sizes of the first layer's inputs")
    return rule.input_scale(counts.tolist(), event.noise_multiplier)


def _histogram(calls: Sequence[tuple[nn.Module, Any, Any]], rows: int) -> Tensor:
    """Of the first call. A record whose layer was not called, or with other rows, or with a size that is not finite, is in no bin."""
    if not calls or len(calls[0][1]) != rows:
        return torch.zeros(rule.SCALES, dtype=torch.float64)
    layer, inputs, out = calls[0]
    width = math.prod(layer.get_parameter("weight").shape[1:])  # numbers that one place of the output sees
    places = rule.scale_place(math.sqrt(width) * _rms(inputs), _rms(out))
    return torch.bincount(places[places >= 0], minlength=rule.SCALES).double().cpu()


def _rms(numbers: Tensor) -> Tensor:
    """Of each row."""
    return numbers.detach().double().flatten(1).square().mean(1).sqrt()


@contextmanager
def scaled_inputs(model: nn.Module, layer: str | None, scale: float) -> Iterator[None]:
    """A layer's inputs times s in this block; its weights are as they are."""
    hook = None if layer is None or scale == 1 else _scale_inputs(model.get_submodule(layer), scale)
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()


def _scale_inputs(layer: nn.Module, scale: float) -> Any:
    return layer.register_forward_pre_hook(lambda _, args: (scale * args[0], *args[1:]))


class Scaled:
    """A layer's inputs times s, until `fold` puts s into its weights. Meanwhile `state_dict` has s W and `load_state_dict` takes it, so that what
    is saved and loaded always is of inputs as they are; the parameter itself is W."""

    def __init__(self, model: nn.Module, layer: str | None, scale: float | None):
        self._hooks: list[Any] = []
        if layer is not None and scale is not None and scale != 1:
            self._layer, self._scale = model.get_submodule(layer), scale
            self._hooks = [
                _scale_inputs(self._layer, scale),
                self._layer.register_state_dict_post_hook(lambda _, state, prefix, __: _multiply(state, prefix, scale)),
                self._layer.register_load_state_dict_pre_hook(
                    lambda _, state, prefix, *__: _multiply(state, prefix, 1 / scale)
                ),
            ]

    @torch.no_grad()
    def fold(self) -> None:
        if self._hooks:
            self._layer.get_parameter("weight").mul_(self._scale)
        while self._hooks:
            self._hooks.pop().remove()


def _multiply(state: dict[str, Any], prefix: str, scale: float) -> None:
    if prefix + "weight" in state:
        state[prefix + "weight"] = scale * state[prefix + "weight"]
