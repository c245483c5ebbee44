"""The registry of layer kinds: one function a kind, joined by the decorator `@layer(nn.Kind)`, or `@layer("package.module.Kind")`
where Clipwise does not need the package.

The function runs the layer's forward pass with its parameters *detached* and hands what its kernel needs to `tap`:

    tap(out, kernel, params, saved, config=None, rows_dim=None, pieces={}) -> out

`params` maps roles to the module's own parameters (None is fine, frozen ones are filtered out); `saved` are the
tensors the kernel wants, all with the batch in dimension `rows_dim` (by default the unit's own batch dimension, found
by the probe); in the backward pass the kernel gets them, and the gradient of `out`, with rows first. A layer may tap
several times (attention).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from clipwise.norms.kernels.kernel import Kernel
from clipwise.types import ClipwiseError

Rule = TypeVar("Rule", bound=Callable[..., Any])


class Tap(Protocol):
    def __call__(
        self,
        out: Tensor,
        kernel: Kernel,
        params: Mapping[str, Tensor | None],
        saved: tuple[Tensor, ...],
        config: Hashable = None,
        rows_dim: int | None = None,
        pieces: Mapping[str, slice] | None = None,
    ) -> Tensor: ...


class Layer(NamedTuple):
    forward: Callable[..., Any]  # (module, tap, *args, **kwargs) -> output
    supports: Callable[[Any], bool]  # False sends this instance to the generic engine
    through: bool = False  # its rows are those of what it saves, not of its own arguments


LAYERS: dict[type[nn.Module], Layer] = {}
NAMED: dict[str, Layer] = {}  # of libraries that need not be installed, by module and class


def own_parameter(module: nn.Module, name: str) -> Any:
    """`getattr(module, name)`, straight from where torch keeps parameters, which is the shorter way."""
    own = module._parameters
    return own[name] if name in own else getattr(module, name)


def layer(
    *kinds: type[nn.Module] | str, supports: Callable[[Any], bool] = lambda _: True, through: bool = False
) -> Callable[[Rule], Rule]:
    def register(forward: Rule) -> Rule:
        for kind in kinds:
            rules: Any = NAMED if isinstance(kind, str) else LAYERS
            rules[kind] = Layer(forward, supports, through)
        return forward

    return register


def find_layer(module: nn.Module) -> Layer | None:
    """The rule for this module, or None if its own forward, or a parametrization, makes it another function than we
    know. A subclass whose forward ends up in its parent's function, on its own weight, has the parent's rule."""
    for kind in type(module).__mro__:
        found = LAYERS.get(kind) or NAMED.get(f"{kind.__module__}.{kind.__qualname__}")
        if found is not None:
            patched = module.__dict__.get("forward")  # on this instance; a copy of an attached model carries ours along
            as_it_was = patched is None or getattr(patched, "is_recording", False)
            hooked = any(
                hook.__class__.__name__ in ("WeightNorm", "SpectralNorm") for hook in module._forward_pre_hooks.values()
            )
            if not as_it_was or hooked or hasattr(module, "parametrizations") or not found.supports(module):
                return None
            if type(module).forward is kind.forward:  # type: ignore[attr-defined]
                return found
            return Layer(_through(kind, found), found.supports, through=True) if kind in _FUNCTIONS else None
    return None


# -- subclasses ----------------------------------------------------------------------------------------------------------

# What a layer of a kind calls, with its input first and its own parameters behind.
_FUNCTIONS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.Embedding: F.embedding,
    nn.Linear: F.linear,
    nn.LayerNorm: F.layer_norm,
}


class NotByRule(ClipwiseError):
    """A subclass uses its parameters otherwise than its parent does."""


class _Through(TorchFunctionMode):
    def __init__(self, module: nn.Module, function: Callable[..., Any], rule: Callable[[Tensor], Tensor]):
        super().__init__()
        self._own = {id(p) for p in module.parameters(recurse=False)}
        self._name, self._function, self._rule = type(module).__name__, function, rule

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {id(x) for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)}
        if given.isdisjoint(self._own):
            return func(*args, **kwargs)
        if func is self._function and given >= self._own and args and id(args[0]) not in self._own:
            return self._rule(args[0])
        out = func(*args, **kwargs)
        if any(isinstance(x, Tensor) for x in tree_flatten(out)[0]):  # else a shape, a type, ...
            raise NotByRule(
                f"{self._name} uses its parameters otherwise than when it was looked at; let it do the same for every batch"
            )
        return out


def _through(kind: type[nn.Module], found: Layer) -> Callable[..., Any]:
    def forward(module: nn.Module, tap: Tap, *args: Any, **kwargs: Any) -> Any:
        with _Through(module, _FUNCTIONS[kind], lambda x: found.forward(module, tap, x)):
            return type(module).forward(module, *args, **kwargs)

    return forward
