"""The registry of layer kinds: one function a kind, joined by the decorator `@layer(nn.Kind)`.

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

from torch import Tensor, nn

from clipwise.norms.kernel import Kernel

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


LAYERS: dict[type[nn.Module], Layer] = {}


def layer(*kinds: type[nn.Module], supports: Callable[[Any], bool] = lambda _: True) -> Callable[[Rule], Rule]:
    def register(forward: Rule) -> Rule:
        for kind in kinds:
            LAYERS[kind] = Layer(forward, supports)
        return forward

    return register


def find_layer(module: nn.Module) -> Layer | None:
    """The rule for this module, or None if its own forward, or a parametrization, makes it another function than we
    know."""
    for kind in type(module).__mro__:
        if kind in LAYERS:
            same_function = type(module).forward is kind.forward and not hasattr(module, "parametrizations")
            patched = module.__dict__.get("forward")  # on this instance; a copy of an attached model carries ours along
            same_function = same_function and (patched is None or getattr(patched, "is_recording", False))
            hooked = any(
                hook.__class__.__name__ in ("WeightNorm", "SpectralNorm") for hook in module._forward_pre_hooks.values()
            )
            found = LAYERS[kind]
            return found if same_function and not hooked and found.supports(module) else None
    return None
