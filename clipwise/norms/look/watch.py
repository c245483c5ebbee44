"""What a model is made of while it is trained, asked for at every step.

`Members` tells in one cheap pass whether modules, parameters, buffers and hooks are still the same objects in their places, and
which way the modules' switches stand. `Watch` tells whether a buffer or a frozen parameter has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch.nn.modules.module as of_all_modules
from torch import Tensor, nn

from clipwise.norms import modes_of_torch
from clipwise.norms.look.state import Held, checksum
from clipwise.types import LoopMisuse

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_GLOBAL_HOOKS: list[dict[Any, Any]] = [getattr(of_all_modules, f"_global{name}") for name in _HOOKS]


class Members:
    """The modules, hooks, parameters and buffers of a model, at one moment. What was put into the place of a whole dictionary of
    torch's is not seen here."""

    def __init__(self, model: nn.Module):
        self.modules = list(model.modules())
        self._tensors = Held([d for m in self.modules for d in (m._parameters, m._buffers)])
        hooks = [getattr(m, name) for m in self.modules for name in _HOOKS]
        self._structure = Held([*(m._modules for m in self.modules), *hooks, *_GLOBAL_HOOKS])
        # Of torch's own modules they are known; of others they may stand for a branch of the forward pass.
        own = [vars(m) for m in self.modules if not type(m).__module__.startswith("torch.nn.modules.")]
        self._switches = [(d, name) for d in own for name, value in d.items() if isinstance(value, bool | str)]

    def unchanged(self) -> bool:
        return self.same_tensors() and self.same_structure()

    def same_tensors(self) -> bool:
        """Of parameters and buffers alone."""
        return self._tensors.unchanged()

    def same_structure(self) -> bool:
        """Of modules and hooks alone: a call by torch.func.functional_call has other tensors."""
        return self._structure.unchanged()

    def modes(self) -> tuple[Any, ...]:
        """Every module's `training`, and its attributes that are true, false or a word; and which modes of torch's are around the
        call, that may do something else than its functions."""
        switches = *[m.training for m in self.modules], *[d.get(name) for d, name in self._switches]
        around = modes_of_torch.of_functions() or modes_of_torch.of_operations()
        return (*switches, *modes_of_torch.kinds()) if around else switches


class Watch:
    """Buffers and frozen parameters while a model is trained: they may not change in a step, but for those that were shown to
    move in the same way whatever the records are.

    Every step by identity and torch's version counters. A write through `.data` does not move them, and is seen by a checksum,
    after the 1st, 2nd, 4th ... step and at the end of an epoch; then all names are gone through as well.
    """

    def __init__(self, model: nn.Module, trainable: Collection[int]):
        self._model, self._trainable = model, trainable
        self.may_move: set[str] = set()  # by name
        self._begun, self._steps = False, 0
        self._versions: dict[str, tuple[int, int]] = {}
        self._checksums: dict[str, tuple[int, int]] = {}
        self._tensors: list[Tensor] = []

    def _held(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._model.named_buffers()
        yield from ((name, p) for name, p in self._model.named_parameters() if id(p) not in self._trainable)

    def begin(self) -> None:
        self._begun = True
        held = dict(self._held())
        self._versions = {name: _version(t) for name, t in held.items()}
        self._checksums = {name: checksum(t) for name, t in held.items()}
        self._tensors = list(held.values())

    def begin_once(self) -> None:
        if not self._begun:
            self.begin()

    def check(self, *, same_members: bool) -> None:
        """Each step. `same_members`: whether the model is known to be made of the same objects as after the last step."""
        self._steps += 1
        whole = self._steps & (self._steps - 1) == 0
        if whole or not same_members or any(map(_differ, self._tensors, self._versions.values())):
            self._refuse({name: _version(t) for name, t in self._held()}, self._versions)
        if whole:
            self.end()

    def end(self) -> None:
        self._refuse({name: checksum(t) for name, t in self._held()}, self._checksums)

    def _refuse(self, now: dict[str, Any], was: dict[str, Any]) -> None:
        if now == was:
            return
        for name in {**was, **now}:
            if now.get(name) != was.get(name) and name not in self.may_move:
                raise LoopMisuse(
                    f"{name!r} (a buffer or a frozen parameter) changed while a loop over private.loader was running. What records leave "
                    "there is saved with the model, without noise, and no epsilon holds for it. Keep it fixed while training; a value "
                    "that follows a public schedule can be a plain number on the module, or be set between epochs"
                )


def _version(t: Tensor) -> tuple[int, int]:
    return id(t), 0 if t.is_inference() else t._version


def _differ(t: Tensor, was: tuple[int, int]) -> bool:
    return _version(t) != was
