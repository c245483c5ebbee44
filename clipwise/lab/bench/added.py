"""What the checks add to a run's time: the same run with them and without, side by side in one process.

Two runs of the same model and records are made, and their steps taken in turns, with the order reversed from turn to turn. In
one of them everything that only checks is taken out, by this module and on this run's own objects; there is no switch for it in the
library. What the look at the model finds (which dimension is the batch, which layers are spread) is handed to it, so that all
of the look counts as added.

CPU time of one thread, loader included. The figure of a run of n steps is what is added by `attach` and the first step, by the 2nd,
4th, 8th ... step, at which more is looked at, and the median of what another step adds for each of the rest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import optimizer as torch_optimizer

from clipwise import guards, run
from clipwise.dropin import Private
from clipwise.norms import bookkeeping
from clipwise.norms.kernels.precision import NOTHING
from clipwise.norms.loss import roots
from clipwise.norms.record import recording, tape
from clipwise.sampling.layout import Layout

Attach = Callable[[nn.Module], tuple[torch.optim.Optimizer, Private]]


class _Nothing:
    """In the place of an object that checks: every method of it does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _no_products(*_: Any) -> Any:
    return NOTHING


def _as_it_is(loader: Any, **_: Any) -> Any:
    return loader.collate_fn, Layout()


# Checks that stand in modules, and not in a run's own objects: in a step, and in `attach`.
_IN_A_STEP: tuple[tuple[Any, str, Callable[[], Any]], ...] = (
    (guards, "through_hooks", lambda: _nothing),
    (bookkeeping, "mark", lambda: _nothing),
    (recording, "exact_products", lambda: _no_products),
    (tape, "exact_products", lambda: _no_products),
    (torch.autograd, "_engine_run_backward", lambda: roots._original),
    (torch_optimizer, "_global_optimizer_pre_hooks", dict),
)
_IN_ATTACH: tuple[tuple[Any, str, Callable[[], Any]], ...] = ((run, "check_collate", lambda: _as_it_is),)


@contextmanager
def _without(places: tuple[tuple[Any, str, Callable[[], Any]], ...]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, instead in places:
            stack.enter_context(mock.patch.object(owner, name, instead()))
        yield


def _take_out(private: Private, like: bookkeeping.Bookkeeping) -> None:
    """The checks out of a run that has just begun; what they find comes from an engine that has looked at the same model."""
    engine: Any = private.run.engine
    engine._restore_forwards()
    engine._units = like._units
    engine._replace_forwards()
    for name in ("_watch", "_held_back"):
        setattr(engine, name, _Nothing())
    for name in ("_refuse_gradient", "_note_outputs", "_refuse_changed_model"):
        setattr(engine, name, _nothing)
    engine._is_new = lambda *_: False
    engine._members = mock.Mock(unchanged=lambda: True)
    engine.loss.wants_witness = lambda _: False  # so that no batch is followed
    plain = engine.open

    def open_(rows: int, *args: Any) -> None:
        plain(rows, *args)
        engine._pass.scale, engine._pass.passes = float(rows), 1

    engine.open = open_
    private._refuse_changed_parameters = _nothing  # type: ignore[method-assign]
    private.run.stepper.whereabouts = _Nothing()  # type: ignore[assignment]


class _Timed:
    """One run, step by step."""

    def __init__(self, model: nn.Module, attach: Attach, like: bookkeeping.Bookkeeping | None):
        self._model, self._like = model, like
        self.seconds = [0.0]  # of attach and the first step; of each later step
        with self._timing(_IN_ATTACH):
            self._optimizer, self._private = attach(model)
        if like is not None:
            _take_out(self._private, like)
        self._batches = (batch for _ in range(10**9) for batch in self._private.loader)

    @contextmanager
    def _timing(self, places: Any = _IN_A_STEP) -> Iterator[None]:
        with _without(places if self._like is not None else ()):
            start = time.thread_time()
            yield
            self.seconds[-1] += time.thread_time() - start

    def step(self) -> None:
        with self._timing():
            x, y = next(self._batches)
            self._optimizer.zero_grad()
            F.cross_entropy(self._model(x), y).backward()
            self._optimizer.step()
        self.seconds.append(0.0)

    def end(self) -> list[float]:
        self._private.detach()
        return self.seconds[:-1]


def _engine_of(model: nn.Module, attach: Attach) -> bookkeeping.Bookkeeping:
    """That has looked at the model."""
    known = _Timed(model, attach, None)
    known.step()
    engine = known._private.run.engine
    known.end()
    if not isinstance(engine, bookkeeping.Bookkeeping):
        raise TypeError(f"a run of {type(engine).__name__} has no checks to take out")
    return engine


def added(make: Callable[[], nn.Module], attach: Attach, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of each step (`attach` with the first) with the checks, and without."""
    bare_model = make()
    bare = _Timed(bare_model, attach, _engine_of(bare_model, attach))
    checked = _Timed(make(), attach, None)
    for turn in range(steps):
        for each in (checked, bare) if turn % 2 else (bare, checked):
            each.step()
    return checked.end(), bare.end()


def share(checked: list[float], bare: list[float], steps: int) -> float:
    """Of the time of a run of so many steps, what the checks add."""
    whole = checked[0] + (steps - 1) * statistics.median(checked[1:])
    return over_a_run([a - b for a, b in zip(checked, bare, strict=True)], steps) / whole


def over_a_run(each: list[float], steps: int) -> float:
    """The sum over so many steps: the first, those at which more is looked at (the 2nd, 4th, 8th ...; of those that were not taken, like
    the last that was), and the median of all others for the rest."""
    looks = [2**k - 1 for k in range(1, steps.bit_length()) if 2**k <= steps]
    taken = [each[i] for i in looks if i < len(each)]
    others = [x for i, x in enumerate(each) if i and i not in looks] or taken
    return (
        each[0]
        + sum(taken)
        + (len(looks) - len(taken)) * taken[-1]
        + (steps - 1 - len(looks)) * statistics.median(others)
    )
