"""What a model is made of while it is trained, asked for at every step.

`Members` tells in one cheap pass whether modules, parameters and buffers are still the same objects in their places. `Watch`
tells whether a buffer or a frozen parameter has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from operator import is_
from typing import Any

from torch import Tensor, nn

from clipwise.norms.state import checksum
from clipwise.types import LoopMisuse


class Members:
    """The modules, parameters and buffers of a model, at one moment."""

    def __init__(self, model: nn.Module):
        self.modules = list(model.modules())
        held = [d for m in self.modules for d in (m._modules, m._parameters, m._buffers)]
        self._empty: list[dict[str, Any]] = [d for d in held if not d]
        self._full: list[dict[str, Any]] = [d for d in held if d]
        self._objects = list(self._held())

    def _held(self) -> Iterator[Any]:
        return chain.from_iterable(map(dict.values, self._full))

    def unchanged(self) -> bool:
        """Whether every module has the children, parameters and buffers that it had: the same objects, in the same order. What
        was put into the place of a whole dictionary of torch's is not seen here."""
        if any(self._empty) or sum(map(len, self._full)) != len(self._objects):
            return False
        return all(map(is_, self._held(), self._objects))


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
