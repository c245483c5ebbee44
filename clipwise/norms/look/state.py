"""What a model holds, and what a forward pass leaves of it.

Held are parameters, buffers, and the numbers, tensors, arrays and generators in the attributes of its modules, also inside
plain lists, dictionaries, tuples, sets and objects. A `State` puts all of it back, in place, so that a model can be run
again and again from the same point; `moved` says what a run has changed.

Not seen: what code keeps outside the model (a global, a closure, a class). Such a state cannot be put back either, so that
a model whose output depends on it does not repeat itself, and is refused for that (influence.py).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, MutableSequence, MutableSet
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import is_
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clipwise.types import Unsupported

# Objects. An attribute may lead anywhere (a trainer, its data). What is not reached is not put back: see above. Chosen, not
# measured.
_MOST_LEAVES = 20_000
_DEEPEST = 4  # containers and objects below a module: chosen, not measured
# Bytes that are copied at most, so that a large frozen model is not held twice; beyond, a checksum shows a change. Chosen, not
# measured.
_MOST_COPIED = 2**30
# Bytes of a tensor that is not compared after every run where torch's counter says that nothing was written: a look at a large
# model would read all of it a dozen times. Compared once at its end; where a write shows that was not counted, all is done again. Chosen,
# not measured.
_LARGE = 2**18
_TORCHS_OWN = frozenset(nn.Module().__dict__) | {"forward"}  # of a module's attributes
# Hooks that a forward pass registers come with a note in an attribute that they are there (transformers' output_hidden_states):
# taking back the note alone would register them at every pass.
_HOOKS = tuple(name for name in nn.Module().__dict__ if "_hooks" in name)
_PLAIN = (int, float, complex, str, bytes, type(None), np.number, np.bool_)


@dataclass(frozen=True)
class Leaf:
    """A value that is held. `kept` if it stands among the parameters or buffers, and so in state_dict()."""

    value: Any
    kept: bool

    @property
    def is_number(self) -> bool:
        return isinstance(self.value, int | float | complex | np.number)


class Held:
    """What dictionaries hold, at one moment."""

    def __init__(self, held: list[dict[Any, Any]]):
        self._empty = [d for d in held if not d]
        self._full = [d for d in held if d]
        self._objects = list(self._values())

    def _values(self) -> Iterator[Any]:
        return chain.from_iterable(map(dict.values, self._full))

    def unchanged(self) -> bool:
        """Whether they hold the same objects, in the same order."""
        if any(self._empty) or sum(map(len, self._full)) != len(self._objects):
            return False
        return all(map(is_, self._values(), self._objects))


class State:
    """Everything that a model holds, at one moment."""

    def __init__(self, model: nn.Module):
        self._model = model
        self._left_to_copy = _MOST_COPIED
        self._containers: list[tuple[Any, Any]] = []
        self._values: dict[str, tuple[Any, Any, bool]] = {}  # path -> (the object, a copy of its value, kept)
        self._mutable: list[tuple[str, Any, Any, bool]] = []  # of them those that may have other values in place
        # Whether values may change though every container holds the same objects: a module that makes them when it is asked.
        self._made_anew = any(type(m).get_extra_state is not nn.Module.get_extra_state for m in model.modules())
        self._refills = True  # whether something else may be in the containers than when they were last filled
        self._moved: set[str] | None = None  # by `moved`, since when nothing has run; None: anything may have
        for path, leaf in _walk(model, containers=self._containers):
            self._values[path] = (leaf.value, self._copy(leaf.value), leaf.kept)
            if isinstance(leaf.value, Tensor | np.ndarray):
                self._mutable.append((path, *self._values[path]))
        self.exact = False  # whether large tensors are compared after every run
        self._large = {path: value for path, value, was, _ in self._mutable if _is_large(value, was)}
        self._lists = [each for each in self._containers if isinstance(each[0], MutableSequence | MutableSet)]
        self._filled = Held(self._dictionaries())  # the containers, when they were last filled
        self._counts = self._counted()  # of writes, by path, at the beginning of a run

    def _counted(self) -> dict[str, tuple[int, int]]:
        return {path: _counted(t) for path, t in self._large.items()}

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            size = value.numel() * value.element_size()
            if size > self._left_to_copy:
                return _Checksum(value)
            self._left_to_copy -= size
            return value.detach().clone()
        if isinstance(value, np.ndarray):
            return value.copy()
        get = _GENERATORS.get(type(value))
        return get[0](value) if get else value

    def restore(self, *, whole: bool = False) -> None:
        """All as it was: the same objects in the same places, with the values that they had. `whole`: whatever `moved` has said."""
        if whole:
            self._moved, self._refills = None, True
        if self._refills:
            for container, content in self._containers:
                _refill(container, content)
            self._filled = Held(self._dictionaries())
        for path, (value, was, _) in self._values.items():
            if self._moved is not None and path not in self._moved:
                continue
            if isinstance(was, _Checksum):
                if was != _Checksum(value):
                    raise Unsupported(
                        f"the forward pass has written into {path!r}, which is too large to have been copied; load the model again, and "
                        "leave it as it is in the forward pass"
                    )
            elif isinstance(value, Tensor):
                _put_back(value, was)
            elif isinstance(value, np.ndarray):
                np.copyto(value, was)
        self._moved, self._refills = None, True
        self._counts = self._counted()
        self.restore_generators()

    @property
    def has_generators(self) -> bool:
        return any(type(value) in _GENERATORS for value, _, _ in self._values.values())

    def restore_generators(self) -> None:
        for value, was, _ in self._values.values():
            if type(value) in _GENERATORS:
                _GENERATORS[type(value)][1](value, was)

    def moved(self) -> dict[str, Leaf]:
        """By name, what is not as it was, with a copy of its value now. Generators move as they like."""
        if self._as_filled():
            same = {
                path: _now(value, kept) for path, value, was, kept in self._mutable if self._wrote(path, value, was)
            }
            self._moved, self._refills = set(same), False
            return same
        found: dict[str, Leaf] = {}
        met = set()
        for path, leaf in _walk(self._model):
            met.add(path)
            if self._values.get(path, (None,))[0] is not leaf.value:
                met.discard(path)  # another object in its place: what stood there may have been written to as well
            if type(leaf.value) in _GENERATORS:
                continue
            before = self._values.get(path)
            if before is None or self._wrote(path, leaf.value, before[1]):
                found[path] = _now(leaf.value, leaf.kept)
        gone = self._values.keys() - met
        self._moved, self._refills = found.keys() | gone, True
        return found

    def _wrote(self, path: str, value: Any, was: Any) -> bool:
        large = None if self.exact else self._large.get(path)
        if large is not None and large is value and self._counts.get(path) == _counted(value):
            return False
        return not _unchanged(value, was)

    def was_written_unseen(self) -> bool:
        """Whether a large tensor has other values though no write to it was counted (through `.data`, say). All is put back, and
        from then on they are compared every time."""
        self.restore()
        if self.exact or all([_unchanged(t, self._values[path][1]) for path, t in self._large.items()]):
            return False
        self.exact = True
        self.restore(whole=True)
        return True

    def _dictionaries(self) -> list[dict[Any, Any]]:
        plain = [each[0] for each in self._containers if not isinstance(each[0], MutableSequence | MutableSet)]
        modules = [held for c in plain if isinstance(c, nn.Module) for held in _held_by(c)]
        return [*(c if isinstance(c, dict) else c.__dict__ for c in plain), *modules]

    def _as_filled(self) -> bool:
        """Whether all containers hold the very objects that they were filled with."""
        if self._made_anew or not self._filled.unchanged():
            return False
        for c, was in self._lists:
            if isinstance(c, MutableSequence) and not (len(c) == len(was) and all(map(is_, c, was))):
                return False
            if isinstance(c, MutableSet) and c != was:
                return False
        return True


def _is_large(value: Any, was: Any) -> bool:
    if not isinstance(value, Tensor) or isinstance(was, _Checksum) or value.is_inference():
        return False
    return value.layout == torch.strided and value.numel() * value.element_size() > _LARGE


def _counted(t: Tensor) -> tuple[int, int]:
    return t._version, t.data_ptr()


def _now(value: Any, kept: bool) -> Leaf:
    """With a copy of the value as it is."""
    value = value.detach().clone() if isinstance(value, Tensor) else value
    return Leaf(value.copy() if isinstance(value, np.ndarray) else value, kept)


class _Checksum:
    """Of a tensor's bits."""

    def __init__(self, t: Tensor):
        self._value = (t.shape, t.dtype, checksum(t))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Checksum) and self._value == other._value

    __hash__ = None  # type: ignore[assignment]


def checksum(t: Tensor) -> tuple[int, int]:
    """Two sums over a tensor's bits: of its words, and of every second one, so that two that change places show."""
    if t.is_meta:
        return 0, 0
    if hasattr(t, "to_local"):  # cut over processes (fully_shard): what is in this one
        t = t.to_local()
    t = t.detach().int_repr() if t.is_quantized else t.detach().to_dense() if t.layout != torch.strided else t.detach()
    flat = (torch.view_as_real(t) if t.is_complex() else t).contiguous().flatten()
    words = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
    return int(words.sum(dtype=torch.int64)), int(words[::2].sum(dtype=torch.int64))


_GENERATORS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    torch.Generator: (lambda g: g.get_state(), lambda g, was: g.set_state(was)),
    random.Random: (lambda g: g.getstate(), lambda g, was: g.setstate(was)),
    np.random.Generator: (lambda g: g.bit_generator.state, lambda g, was: setattr(g.bit_generator, "state", was)),
    np.random.RandomState: (lambda g: g.get_state(), lambda g, was: g.set_state(was)),
}


def _unchanged(value: Any, was: Any) -> bool:
    if isinstance(was, _Checksum):
        return isinstance(value, Tensor) and _Checksum(value) == was
    return alike(value, was, exactly=True)


def alike(a: Any, b: Any, *, exactly: bool = False) -> bool:
    """Whether two held values are the same, up to rounding or exactly; NaN is like NaN."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc" and b.dtype.kind in "fc")
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
            return False
        if a.layout != torch.strided or a.is_quantized:
            return False if a.is_quantized else torch.equal(a.to_dense(), b.to_dense())
        if torch.equal(a, b):
            return True
        if not (a.is_floating_point() or a.is_complex()):
            return False
        tolerance = 0.0 if exactly else 1e-4
        return torch.allclose(a, b, rtol=tolerance, atol=tolerance * 1e-3, equal_nan=True)
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b)) or (not exactly and math.isclose(a, b, rel_tol=1e-4))
    return type(a) is type(b) and bool(a == b)


def _walk(model: nn.Module, containers: list[tuple[Any, Any]] | None = None) -> Iterator[tuple[str, Leaf]]:
    """Every value by its name, once; and into `containers` every container with what it holds now."""
    seen: set[int] = set()
    stack: list[tuple[str, Any, bool, int]] = [("", model, False, 0)]
    leaves = 0
    while stack and leaves < _MOST_LEAVES:
        path, value, kept, depth = stack.pop()
        plain, leaf = _is_leaf(type(value))  # type: ignore[arg-type]
        if leaf:
            if plain or id(value) not in seen:
                seen.add(id(value))
                leaves += 1
                yield path, Leaf(value, kept)
            continue
        inside = None if id(value) in seen or depth > _DEEPEST else _inside(value)
        if inside is None:
            continue
        seen.add(id(value))
        content, children = inside
        if containers is not None and content is not None:
            containers.append((value, content))
        for name, child, child_kept in children:
            deeper = 0 if isinstance(child, nn.Module) else depth + 1
            named = f"{path}.{name}" if path and not name.startswith("[") else path + name
            stack.append((named, child, kept or child_kept, deeper))


@lru_cache(
    maxsize=1024
)  # isinstance is slow for classes with an __instancecheck__ of their own, and a walk asks thousands of times
def _is_leaf(kind: type) -> tuple[bool, bool]:
    """Whether values of this kind are plain, and whether they are values at all and no containers."""
    plain = issubclass(kind, _PLAIN)
    return plain, plain or issubclass(kind, (Tensor, np.ndarray, *_GENERATORS))


_Children = list[tuple[str, Any, bool]]


def _inside(value: Any) -> tuple[Any, _Children] | None:
    """A copy of what a container holds (None where it cannot change), and its children; None for what is not looked into."""
    if isinstance(value, nn.Module):
        own = {k: v for k, v in value.__dict__.items() if k not in _TORCHS_OWN}
        children: _Children = [(k, v, False) for k, v in own.items()]
        if type(value).get_extra_state is not nn.Module.get_extra_state:
            children.append(("get_extra_state()", value.get_extra_state(), True))
        children += [(k, m, False) for k, m in value._modules.items()]
        # Last, because the last comes first: an attribute that is one of these as well goes by its name here.
        children += [(k, p, True) for held in (value._parameters, value._buffers) for k, p in held.items()]
        return (own, *map(dict, _held_by(value))), children
    if isinstance(value, dict):
        return dict(value), [(f"[{k!r}]", v, False) for k, v in value.items()]
    if isinstance(value, list | deque):
        return list(value), [(f"[{i}]", v, False) for i, v in enumerate(value)]
    if isinstance(value, set):
        return set(value), [(f"[{v!r}]", v, False) for v in value if isinstance(v, _PLAIN)]
    if isinstance(value, tuple | frozenset):
        return None, [(f"[{i}]", v, False) for i, v in enumerate(value)]
    own_kind = type(value).__module__.partition(".")[0]
    if own_kind in ("torch", "numpy", "builtins", "functools", "threading") or isinstance(value, type | ModuleType):
        return None
    attributes = getattr(value, "__dict__", None)
    if (callable(value) and not attributes) or not isinstance(attributes, dict):
        return None
    return dict(attributes), [(k, v, False) for k, v in attributes.items()]


def _held_by(module: nn.Module) -> tuple[dict[str, Any], ...]:
    hooks: list[dict[str, Any]] = [module.__dict__.get(name, {}) for name in _HOOKS]
    return module._parameters, module._buffers, module._modules, *hooks


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, nn.Module):
        own, *held = content
        for k in [k for k in container.__dict__ if k not in own and k not in _TORCHS_OWN]:
            del container.__dict__[k]
        container.__dict__.update(own)
        for now, was in zip(_held_by(container), held, strict=True):
            _refill(now, was)
    elif isinstance(container, MutableSequence):  # a list, a deque
        if len(container) != len(content) or any(a is not b for a, b in zip(container, content, strict=True)):
            container.clear()
            container.extend(content)
    elif isinstance(container, MutableSet):
        if container != content:
            container.clear()
            container.update(content)  # type: ignore[attr-defined]
    else:
        own = container if isinstance(container, dict) else container.__dict__
        if len(own) != len(content) or any(own.get(k, content) is not v for k, v in content.items()):
            own.clear()
            own.update(content)


def _put_back(value: Tensor, was: Tensor) -> None:
    if value.is_inference() or alike(value.detach(), was, exactly=True):
        return
    if value.shape == was.shape and value.dtype == was.dtype:
        value.data.copy_(was)  # not seen by autograd's version counters: graphs that hold it stay good
    else:
        value.data = was.clone()
