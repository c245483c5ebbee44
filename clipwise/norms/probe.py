"""A look at the model before it is trusted with the first private batch.

Two tiny batches, of two and of three rows, go through the model. From them the engine learns, instead of guessing:

- which dimension of each layer's input is the batch (the one that grew);
- whether any example's output depends on another example (then the model is refused);
- whether a parameter is used past its layer's tap (then its parent is run generically), or vmap fails (then rows are
  looped over).

Nothing is released: the outcome depends on the model's code, not on the values of the records, which are only
borrowed for shape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from clipwise.norms.kernel import Kernel
from clipwise.norms.units import Unit, tensor_shapes
from clipwise.types import Unsupported


class Probe:
    """Stands in for the engine's recording while the probe runs: notes shapes and output gradients."""

    def __init__(self) -> None:
        self.shapes: defaultdict[str, list[tuple[list[torch.Size], list[torch.Size]]]] = defaultdict(list)
        self.gradients: list[tuple[str, int | None, Tensor]] = []  # unit, explicit batch dimension, b
        self.dummy = torch.zeros((), requires_grad=True)

    def run(self, unit: Unit, original: Callable, args: tuple, kwargs: dict) -> Any:
        given = tensor_shapes((args, kwargs))
        if unit.layer is not None:
            out = unit.layer.forward(unit.module, self._tap(unit), *args, **kwargs)
        else:
            with _Detached(unit.module):
                out = original(*args, **kwargs)
            leaves, spec = tree_flatten(out)
            out = tree_unflatten(
                [_Watch.apply(x, self.dummy, self, unit.name, None) if _is_float(x) else x for x in leaves], spec
            )
        self.shapes[unit.name].append((given, tensor_shapes(out)))
        return out

    def _tap(self, unit: Unit) -> Callable[..., Tensor]:
        def tap(
            out: Tensor,
            kernel: Kernel,  # noqa: ARG001
            params: Mapping[str, Tensor | None],  # noqa: ARG001
            saved: tuple[Tensor, ...],  # noqa: ARG001
            config: Hashable = None,  # noqa: ARG001
            rows_dim: int | None = None,
            pieces: Mapping[str, slice] | None = None,  # noqa: ARG001
        ) -> Tensor:
            return _Watch.apply(out, self.dummy, self, unit.name, rows_dim)

        return tap


class _Watch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, dummy: Tensor, look: Probe, name: str, dim: int | None) -> Tensor:  # noqa: ARG004
        ctx.look, ctx.name, ctx.dim = look, name, dim
        return out.clone()

    @staticmethod
    def backward(ctx: Any, b: Tensor) -> tuple:
        ctx.look.gradients.append((ctx.name, ctx.dim, b))
        return b if ctx.needs_input_grad[0] else None, None, None, None, None


class _Detached:
    """A module's parameters out of autograd, for the length of a block."""

    def __init__(self, module: nn.Module):
        self._places = [(m, name, p) for m in module.modules() for name, p in m._parameters.items() if p is not None]

    def __enter__(self) -> None:
        for m, name, p in self._places:
            m._parameters[name] = p.detach()  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        for m, name, p in self._places:
            m._parameters[name] = p


class _Promote(Exception):
    """This unit cannot be handled as it is; run its parent generically."""

    def __init__(self, unit: Unit, why: str):
        super().__init__(why)
        self.unit, self.why = unit, why


def probe(
    model: nn.Module,
    units: list[Unit],
    parameters: list[nn.Parameter],
    rows: int,
    args: tuple,
    kwargs: dict,
    attempt: Callable[..., Any],
    notify: Callable[[str], None],
) -> list[Unit]:
    """The units as they must be run. `attempt(units, look, *args, **kwargs)` calls the model with its units
    replaced."""
    batches = {n: _small_batch(args, kwargs, rows, n) for n in (2, 3)}
    buffers = [(b, b.clone()) for b in model.buffers()]
    devices = {p.device for p in parameters if p.is_cuda}
    notices: list[str] = []
    try:
        with torch.random.fork_rng(devices=list(devices)), torch.enable_grad():
            while True:
                try:
                    units = _look(units, parameters, batches, attempt)
                    break
                except _Promote as problem:
                    notices.append(f"{problem.unit.name or type(problem.unit.module).__name__}: {problem.why}")
                    units = _promoted(model, units, problem)
    finally:
        with torch.no_grad():
            for b, was in buffers:
                b.copy_(was)
    generic = [u for u in units if u.layer is None]
    if generic:
        names = ", ".join(f"{u.name or 'the whole model'} ({type(u.module).__name__})" for u in generic)
        why = f" Why: {'; '.join(notices)}." if notices else ""
        notify(
            f"clipwise: no fast rule for {names}: its per-example gradients are exact, but slower (torch.func).{why}"
        )
    return units


def _look(
    units: list[Unit], parameters: list[nn.Parameter], batches: dict[int, Any], attempt: Callable[..., Any]
) -> list[Unit]:
    looks, outs = {}, {}
    for n, (args, kwargs) in batches.items():
        looks[n] = Probe()
        outs[n] = attempt(units, looks[n], *args, **kwargs)
    settled = [_settled(u, looks[2].shapes[u.name], looks[3].shapes[u.name]) for u in units]
    _refuse_mixing(settled, parameters, looks[3], outs)
    return settled


def _settled(unit: Unit, two: list, three: list) -> Unit:
    """The unit with its batch dimensions filled in."""
    if len(two) != len(three):
        raise _Promote(unit, "it is called more often for larger batches")
    kinds = {
        (
            tuple(_grown(a, b) for a, b in zip(args2, args3, strict=True)),
            tuple(_grown(a, b) for a, b in zip(outs2, outs3, strict=True)),
        )
        for (args2, outs2), (args3, outs3) in zip(two, three, strict=True)
        if len(args2) == len(args3) and len(outs2) == len(outs3)
    }
    if not two:
        return unit  # not used in this model's forward: its gradient is zero
    if unit.layer is not None:
        firsts = {args[0] if args else None for args, _ in kinds}
        if len(firsts) != 1 or None in firsts or -1 in firsts:
            raise _Promote(unit, "its input has no batch dimension of its own")
        return replace(unit, batch_dim=firsts.pop())
    if len(kinds) != 1:
        raise _Promote(unit, "it is called with inputs of different layouts")
    args, outs = kinds.pop()
    if -1 in args or -1 in outs or not any(d is not None for d in args):
        raise _Promote(unit, "the batch dimension of its input or output cannot be told")
    return replace(unit, arg_dims=list(args), out_dims=list(outs))


def _grown(two: torch.Size, three: torch.Size) -> int | None:
    """The dimension that grew from 2 to 3; None if none did; -1 if it is not that simple."""
    if len(two) != len(three):
        return -1
    changed = [i for i, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    if not changed:
        return None
    return changed[0] if len(changed) == 1 and (two[changed[0]], three[changed[0]]) == (2, 3) else -1


def _refuse_mixing(units: list[Unit], parameters: list[nn.Parameter], look: Probe, outs: dict[int, Any]) -> None:
    """Send a gradient back from the first example's output only: it must reach the first example's rows only."""
    scalars = []
    for two, three in zip(tree_flatten(outs[2])[0], tree_flatten(outs[3])[0], strict=True):
        if _is_float(three) and three.requires_grad:
            dim = _grown(two.shape, three.shape)
            if dim is None or dim < 0:
                raise Unsupported(
                    f"the model's output has shape {tuple(two.shape)} for 2 rows and {tuple(three.shape)} for 3: no dimension is the "
                    "batch. Return one output a row, and reduce it in the loss"
                )
            scalars.append(three.select(dim, 0).sum())
    if not scalars:
        raise Unsupported(
            "no output of the model depends on a trainable parameter; unfreeze a layer, or check the forward"
        )
    grads = torch.autograd.grad(sum(scalars), [look.dummy, *parameters], allow_unused=True)[1:]
    by_name = {u.name: u for u in units}
    for name, dim, b in look.gradients:
        unit = by_name[name]
        dims = unit.out_dims if unit.layer is None else None
        at = dim if dim is not None else (dims[0] if dims else unit.batch_dim)
        if at is not None and b.narrow(at, 1, b.shape[at] - 1).count_nonzero():
            raise Unsupported(
                f"the model mixes examples: the output for one row depends on what other rows do at {name or 'its root'!r}. No example's "
                "influence can then be bounded. Replace what mixes them (batch statistics, batch-wise attention); clipwise.fix(model) "
                "replaces BatchNorm"
            )
    stray = {id(p) for p, g in zip(parameters, grads, strict=True) if g is not None}
    for unit in units:
        if any(id(p) in stray for p in unit.module.parameters()):
            raise _Promote(unit, "a parameter is used outside its layer's forward")


def _promoted(model: nn.Module, units: list[Unit], problem: _Promote) -> list[Unit]:
    """Units with the problem's parent run generically (or the unit itself, if it was run by a rule)."""
    name = problem.unit.name
    if problem.unit.layer is None:
        if not name:
            raise Unsupported(f"the model cannot be trained privately as it is: {problem.why}")
        name = name.rpartition(".")[0]
    elif problem.why.startswith("a parameter is used outside") or problem.why.startswith("its input has no batch"):
        name = name.rpartition(".")[0]
    inside = f"{name}." if name else ""
    kept = [u for u in units if u.name != name and not u.name.startswith(inside)] if name else []
    return [*kept, Unit(name, model.get_submodule(name), None)]


def _small_batch(args: tuple, kwargs: dict, rows: int, n: int) -> tuple[tuple, dict]:
    """The call's arguments cut or stretched to n rows. Values are made finite; the first two rows differ where they
    can."""
    leaves, spec = tree_flatten((args, kwargs))

    def resize(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        dim = next((d for d in range(min(2, x.dim())) if x.shape[d] == rows), None)
        if dim is None:
            return x
        first = x.detach().narrow(dim, 0, 1)
        second = x.detach().narrow(dim, 1, 1) if rows > 1 else (first.flip(-1) if first.dim() > 1 else first)
        small = torch.cat([first, second, *[second] * (n - 2)], dim)
        return torch.nan_to_num(small, posinf=1.0, neginf=-1.0) if _is_float(small) else small

    return tree_unflatten([resize(x) for x in leaves], spec)


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
