"""Badly scaled inputs, and inputs with a mean: the first layer that is trained sees them times a public power of 4, found by one noised histogram, less a
public vector, a part of their noised mean, and what is left times a public power of 2.

Under clipping, inputs of 0.01 leave the whole gradient to the biases, and inputs of 100 saturate the first layer: no learning rate
repairs either. So what comes into that layer is multiplied by s while the run lasts, as if the user had scaled the inputs, and s goes
into its weights at the end: W (s x) = (s W) x, exactly, because s is a power of 2. And inputs whose mean is long leave most of a clipped gradient to that mean: a
linear layer with a bias sees s x - m, and W (s x - m) + b = (s W) x + (b - W m), to rounding.

Formal guarantee: each record adds one 1 to one bin of the histogram (none, if its size is not finite), so that adding or removing it
moves the counts by at most 1 in l2; s is a function of the released counts. Each record adds s x, cut to a public length, to the sum (nothing, if it is not finite), so that it
moves the sum by at most that length in l2; m is a function of the released sum. Sizes and sums themselves do not leave this file. While s and m are in
place the model is another model with public constants in it, and its steps are those of any run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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

_Calls = Sequence[tuple[nn.Module, Any, Any]]  # of layers: which, with what input, and what came out
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


def found_scale(run: Run, task: Task, layer: str | None, event: Event, *, centred: bool = False) -> float:
    """s, from a release on all records, of inputs as they are or, in a second look, once they are centred; 1 where nothing is badly scaled or nothing stands out
    of the noise."""
    counts = _total(run, task, layer, rule.SCALES, lambda calls, rows: _histogram(calls, rows, centred=centred))
    what = f"histogram of sizes of the first layer's {'centred ' if centred else ''}inputs"
    counts = run.release(counts, event, l2_bound=1.0, what=what)
    return (rule.centred_scale if centred else rule.input_scale)(counts.tolist(), event.noise_multiplier)


def _total(run: Run, task: Task, layer: str | None, width: int, of: Callable[[_Calls, int], Tensor]) -> Tensor:
    """The sum over all records of what is made of the layer's calls; zeros where there is no layer. Private: it is released by the caller alone."""
    total = torch.zeros(width, dtype=torch.float64)
    if layer is not None:
        with modes.evaluating(run.model), _heard([run.model.get_submodule(layer)]) as calls:
            for batch, records in run.all_records():
                calls.clear()
                if not batch.masked:
                    task.row_losses(records)
                    total += of(calls, batch.rows)
    return total


def _histogram(calls: _Calls, rows: int, *, centred: bool = False) -> Tensor:
    """Of the first call. A record whose layer was not called, or with other rows, or with a size that is not finite, is in no bin."""
    if not calls or len(calls[0][1]) != rows:
        return torch.zeros(rule.SCALES, dtype=torch.float64)
    layer, inputs, out = calls[0]
    width = math.prod(layer.get_parameter("weight").shape[1:])  # numbers that one place of the output sees
    lengths = math.sqrt(width) * _rms(inputs)
    places = rule.centred_place(lengths) if centred else rule.scale_place(lengths, _rms(out))
    return torch.bincount(places[places >= 0], minlength=rule.SCALES).double().cpu()


def _rms(numbers: Tensor) -> Tensor:
    """Of each row."""
    return numbers.detach().double().flatten(1).square().mean(1).sqrt()


def can_be_centred(model: nn.Module, task: Task, loader: DataLoader[Any], layer: str | None) -> bool:
    """Whether it is a linear layer with a trained bias of its own that sees one vector a record."""
    found = None if layer is None else model.get_submodule(layer)
    if type(found) is not nn.Linear or found.bias is None or not found.bias.requires_grad:
        return False
    called = _called_first(model, task, loader.collate_fn([loader.dataset[0]]))
    shared = sum(p is found.bias for _, p in model.named_parameters(remove_duplicate=False))
    return called is not None and called[1].dim() == 2 and shared == 1


def found_centre(
    run: Run, task: Task, layer: str | None, scale: float, events: Sequence[Event]
) -> tuple[float, Tensor | None]:
    """s and m, from two releases: m of inputs times `scale`, and then what centred inputs are multiplied by: s' (s x - m)."""
    with seen_inputs(run.model, layer, scale):
        mean = _found_mean(run, task, layer, events[0])
    with seen_inputs(run.model, layer, scale, mean):
        more = found_scale(run, task, None if mean is None else layer, events[1], centred=True)
    return (scale, None) if mean is None else (more * scale, more * mean)


def _found_mean(run: Run, task: Task, layer: str | None, event: Event) -> Tensor | None:
    """m, from a release on all records, of inputs as the layer sees them (scaled); None where little but noise stands in it, or where there is no layer to centre."""
    width = 1 if layer is None else run.model.get_submodule(layer).get_parameter("weight").shape[1]
    bound = rule.input_bound(width)
    total = _total(run, task, layer, width, lambda calls, rows: _cut_sum(calls, rows, width, bound))
    total = run.release(total, event, l2_bound=bound, what="sum of the first layer's inputs")
    return None if layer is None else rule.input_mean(total, bound * event.noise_multiplier, run.facts.records)


def _cut_sum(calls: _Calls, rows: int, width: int, bound: float) -> Tensor:
    """Of the first call's inputs, each cut to this length; as for the histogram, a row that is not finite adds nothing."""
    if not calls or calls[0][1].shape != (rows, width):
        return torch.zeros(width, dtype=torch.float64)
    inputs = calls[0][1].detach().double()
    inputs = inputs.where(inputs.isfinite().all(1, keepdim=True), 0.0)
    lengths = torch.linalg.vector_norm(inputs, dim=1, keepdim=True)
    return (inputs * (bound / lengths.clamp_min(bound))).sum(0).cpu()


@contextmanager
def seen_inputs(model: nn.Module, layer: str | None, scale: float, mean: Tensor | None = None) -> Iterator[None]:
    """A layer's inputs times s less m in this block; its weights are as they are."""
    nothing = layer is None or (scale == 1 and mean is None)
    hook = None if nothing or layer is None else _see(model.get_submodule(layer), scale, mean)
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()


def _see(layer: nn.Module, scale: float, mean: Tensor | None) -> Any:
    if mean is None:
        return layer.register_forward_pre_hook(lambda _, args: (scale * args[0], *args[1:]))
    m = mean.to(layer.get_parameter("weight"))
    return layer.register_forward_pre_hook(lambda _, args: (scale * args[0] - m, *args[1:]))


class Seen:
    """A layer's inputs times s less m, until `fold` puts s and m into its weights. Meanwhile `state_dict` has s W and b - W m and `load_state_dict` takes them, so
    that what is saved and loaded always is of inputs as they are; the parameters themselves are W and b."""

    def __init__(self, model: nn.Module, layer: str | None, scale: float | None, mean: Tensor | None = None):
        self._hooks: list[Any] = []
        self._scale = 1.0 if scale is None else scale
        self.mean: Tensor | None = None
        self._layer = None if layer is None else model.get_submodule(layer)
        self._begin(mean)

    def _begin(self, mean: Tensor | None) -> None:
        if self._layer is not None and (self._scale != 1 or mean is not None):
            self.mean = mean
            self._hooks = [
                _see(self._layer, self._scale, mean),
                self._layer.register_state_dict_post_hook(
                    lambda _, state, prefix, __: self._as_they_are(state, prefix)
                ),
                self._layer.register_load_state_dict_pre_hook(lambda _, state, prefix, *__: self._seen(state, prefix)),
            ]

    def _as_they_are(self, state: dict[str, Any], prefix: str) -> None:
        self._shift(state, prefix, -1)
        _multiply(state, prefix, self._scale)

    def _seen(self, state: dict[str, Any], prefix: str) -> None:
        _multiply(state, prefix, 1 / self._scale)
        self._shift(state, prefix, 1)

    def _shift(self, state: dict[str, Any], prefix: str, sign: int) -> None:
        weight, bias = state.get(prefix + "weight"), state.get(prefix + "bias")
        if self.mean is not None and weight is not None and bias is not None:
            state[prefix + "bias"] = bias + sign * (weight.detach() @ self.mean.to(weight))

    def state_dict(self) -> dict[str, Any]:
        """m, and b as it is: b - W m and back is b to rounding alone."""
        if self.mean is None or self._layer is None or not self._hooks:
            return {}
        return {"mean": self.mean, "bias": self._layer.get_parameter("bias").detach().clone()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """After the model's own state."""
        if "mean" in state and self._layer is not None:
            self._remove()
            self._begin(state["mean"])
            self._layer.get_parameter("bias").copy_(state["bias"])

    @torch.no_grad()
    def fold(self) -> None:
        if self._hooks and self._layer is not None:
            weight = self._layer.get_parameter("weight")
            if self.mean is not None:
                self._layer.get_parameter("bias").sub_(weight @ self.mean.to(weight))
            weight.mul_(self._scale)
        self._remove()

    def _remove(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()


def _multiply(state: dict[str, Any], prefix: str, scale: float) -> None:
    if scale != 1 and prefix + "weight" in state:
        state[prefix + "weight"] = scale * state[prefix + "weight"]
