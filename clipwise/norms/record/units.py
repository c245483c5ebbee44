"""Units: the modules whose outputs are tapped, and the way each runs while the engine records.

A unit is a module with a rule of its own (layers/), or, where there is none, a module that is run *generically*: its
parameters are expanded to one copy a row and its forward pass is mapped over the rows (torch.func.vmap; a loop where
vmap cannot), so that ordinary autograd hands back one gradient a row. Generic is exact for any code that treats rows
alike, only slower.

What has no batch dimension is *spread*: given one, without a copy, so that every row has a gradient of its own. So a
table of positions looked up with `arange(T)` keeps its rule, and so do the layers of a module that holds a parameter
itself: a class token, the weight of a normalisation of its own kind (RMSNorm in all its classes), a vector that scales a
layer. The code around must not mind the new dimension; the probe sees to that, and lets the parent run generically
otherwise.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from clipwise.norms.layers import Layer, find_layer
from clipwise.types import Unsupported

Args = tuple[Any, ...]  # of a call of a model or module
Kwargs = dict[str, Any]
Forward = Callable[..., Any]  # of a module, as it was before it was recorded


@dataclass
class Unit:
    name: str
    module: nn.Module
    layer: Layer | None  # None: generic
    batch_dim: int | None = None  # None: not called so far
    arg_dims: list[int | None] | None = None  # generic: the batch dimension of each tensor argument, None for none
    out_dims: list[int | None] | None = None
    signature: Any = None  # generic: of the call that these were told from
    use_loop: bool = False  # generic: vmap cannot, so loop
    spread: bool = False  # a rule whose input has no batch dimension: its output is spread over the rows
    own: tuple[
        str, ...
    ] = ()  # parameters of a module without a rule that are spread; its children are units themselves
    ndim: int | None = None  # of what `own` is spread to; None: as many dimensions as the first tensor that it is given

    def parameters(self) -> Iterable[nn.Parameter]:
        """What this unit answers for."""
        return [self.module.get_parameter(name) for name in self.own] if self.own else self.module.parameters()

    def holders(self) -> list[nn.Module]:
        """Modules whose `_parameters` hold `own`."""
        return [self.module, *(m for m in self.module.children() if isinstance(m, _LISTS))]

    def own_shape(self, p: Tensor, rows: int, args: Args, kwargs: Kwargs) -> torch.Size:
        """A parameter of `own`, seen from every row."""
        given = tensor_shapes((args, kwargs))
        return spread_shape(p, rows, self.ndim or (len(given[0]) if given else 0))

    @property
    def is_generic(self) -> bool:
        return self.layer is None and not self.own


_LISTS = (nn.ParameterDict, nn.ParameterList)  # never called: who holds one uses what is in it
# Dimensions that a vector is spread to, one after the other, where as many as the input has will not do (a class token that is put
# before the patches of a picture).
NDIMS = (3, 2)

# Rules that map each place of their input alike, and tap their output last: these can be spread.
SPREADABLE = (nn.Embedding, nn.Linear, nn.LayerNorm, nn.RMSNorm)


def find_units(model: nn.Module, trainable: Collection[int], *, spread: bool = True) -> list[Unit]:
    """The units that cover every trainable parameter (by id) of the model, outermost first."""
    units: list[Unit] = []
    seen: set[int] = set()

    def visit(name: str, module: nn.Module) -> None:
        if id(module) in seen or not any(id(p) in trainable for p in module.parameters()):
            return
        seen.add(id(module))
        found = find_layer(module)
        own = {key: p for key, p in _own_parameters(module) if id(p) in trainable}
        may_spread = spread and all(p.dim() < 3 or p.shape[0] == 1 for p in own.values())
        if found is not None or (own and not may_spread):
            units.append(Unit(name, module, found))
            return
        if own:
            units.append(Unit(name, module, None, own=tuple(own)))
        for child_name, child in module.named_children():
            if not isinstance(child, _LISTS):
                visit(f"{name}.{child_name}" if name else child_name, child)

    visit("", model)
    return units


def _own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    yield from module.named_parameters(recurse=False)
    for name, child in module.named_children():
        if isinstance(child, _LISTS):
            yield from child.named_parameters(prefix=name)


def spread_shape(value: Tensor, rows: int, ndim: int = 0) -> torch.Size:
    """The shape with a row dimension: where it begins with 1, else before the others, with as many ones between that there
    are `ndim` dimensions."""
    rest = value.shape[1:] if value.dim() > 1 and value.shape[0] == 1 else value.shape
    between = ndim - 1 - value.dim() if len(rest) == value.dim() else 0
    return torch.Size((rows, *[1] * between, *rest))


@contextmanager
def swapped(modules: Iterable[nn.Module], make: Callable[[nn.Parameter], Tensor | None]) -> Iterator[None]:
    """The modules' own parameters replaced for the length of a block, where `make` gives something for them."""
    places = [(m, name, p) for m in modules for name, p in m._parameters.items() if p is not None]
    try:
        for m, name, p in places:
            m._parameters[name] = p if (value := make(p)) is None else value  # type: ignore[assignment]
        yield
    finally:
        for m, name, p in places:
            m._parameters[name] = p


@contextmanager
def untrained(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """A block whose graphs do not reach these parameters."""
    trained = [p for p in parameters if p.requires_grad]
    for p in trained:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in trained:
            p.requires_grad_(True)


def run_generic(
    unit: Unit,
    expand: Callable[[nn.Parameter], Tensor | None],
    rows: int,
    original: Forward,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """The unit's forward pass, row by row, with parameters from `expand` (rows, *shape), so that each row has its
    own."""
    if signature(args, kwargs) != unit.signature:
        raise Unsupported(
            f"{unit.name or 'the model'!r} ({type(unit.module).__name__}) has no fast rule, and was called with other arguments than when the "
            "engine looked at it, or for the first time; which of them have one row a record cannot be told. Call it alike for every "
            "batch (give an optional mask always, say)"
        )
    leaves, spec = tree_flatten((args, kwargs))
    dims = iter(unit.arg_dims or [])
    in_dims = [next(dims) if isinstance(leaf, Tensor) else None for leaf in leaves]
    copies = {name: expand(p) for name, p in unit.module.named_parameters()}
    params = {name: copy for name, copy in copies.items() if copy is not None}
    out_spec: Any = None
    out_leaves: list[Any] = []  # what is returned, with `Tensor` where a tensor stands

    def single(own: dict[str, Tensor], row: list[Any]) -> tuple[Tensor, ...]:
        nonlocal out_spec
        batched = [x if d is None else x.unsqueeze(d) for x, d in zip(row, in_dims, strict=True)]
        one_args, one_kwargs = tree_unflatten(batched, spec)
        # The unit's own forward is replaced while the engine records; call the one it had.
        out = functional_call(
            _Original(unit.module, original), {f"module.{k}": v for k, v in own.items()}, one_args, one_kwargs
        )
        found, out_spec = tree_flatten(out)
        out_leaves[:] = [Tensor if isinstance(leaf, Tensor) else leaf for leaf in found]
        if strange := [leaf for leaf in found if not isinstance(leaf, Tensor | int | float | str | None)]:
            raise Unsupported(
                f"{unit.name or 'the model'!r} ({type(unit.module).__name__}) has no fast rule, and returns a {type(strange[0]).__name__}, "
                "whose values for each record cannot be told; return tensors (of transformers: use_cache=False)"
            )
        tensors = [leaf for leaf in found if isinstance(leaf, Tensor)]
        return tuple(
            leaf if d is None else leaf.squeeze(d) for leaf, d in zip(tensors, unit.out_dims or [], strict=True)
        )

    def by_loop() -> list[Tensor]:
        each = []
        for i in range(rows):
            row = [x if d is None else x.select(d, i) for x, d in zip(leaves, in_dims, strict=True)]
            each.append(single({k: v[i] for k, v in params.items()}, row))
        return [torch.stack(column) for column in zip(*each, strict=True)]

    def by_vmap() -> list[Tensor]:
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]

        def mapped(own: dict[str, Tensor], given: list[Tensor]) -> tuple[Tensor, ...]:
            row = list(leaves)
            for i, x in zip(places, given, strict=True):
                row[i] = x
            return single(own, row)

        with warnings.catch_warnings():  # the engine has said itself that this is slower
            warnings.filterwarnings("ignore", "There is a performance drop")
            each = vmap(mapped, in_dims=(0, [in_dims[i] for i in places]), randomness="different")
            return list(each(params, tensors))

    if not unit.use_loop:
        try:
            outs = by_vmap()
        except (
            RuntimeError,
            ValueError,
            NotImplementedError,
        ):  # what vmap cannot map (.item(), data-dependent shapes), a loop can
            unit.use_loop = True
    if unit.use_loop:
        outs = by_loop()
    rows_of = iter([o[0] if d is None else o.movedim(0, d) for o, d in zip(outs, unit.out_dims or [], strict=True)])
    return tree_unflatten([next(rows_of) if leaf is Tensor else leaf for leaf in out_leaves], out_spec)


class _Original(nn.Module):
    """Calls a module's own forward where its instance attribute `forward` has been replaced."""

    def __init__(self, module: nn.Module, original: Forward):
        super().__init__()
        self.module = module
        self._original = original

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._original(*args, **kwargs)


def signature(args: Args, kwargs: Kwargs) -> Any:
    """Which arguments a call has, and which of them are tensors."""
    leaves, spec = tree_flatten((args, dict(sorted(kwargs.items()))))
    return spec, [isinstance(leaf, Tensor) for leaf in leaves]


def tensor_shapes(tree: Any) -> list[torch.Size]:
    """Of a packed sequence: its rows."""
    leaves = tree_flatten(tree, is_leaf=lambda x: isinstance(x, PackedSequence))[0]
    return [
        leaf.shape if isinstance(leaf, Tensor) else torch.Size((int(leaf.batch_sizes[0]),))
        for leaf in leaves
        if isinstance(leaf, Tensor | PackedSequence)
    ]


def detached(tree: Any) -> Any:
    return tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, tree)
