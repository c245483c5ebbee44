"""Randomness held still while code of the user's is looked at.

`held` seeds the generators of torch, numpy and Python and gives their states back, so that two runs draw alike. Where
two runs have tensors of different shapes they cannot draw alike, whatever the seed: under `Calm` torch's random numbers
are constants, the same for every row and place (a dropout drops nothing). A generator that is neither (one made in the
forward pass from the system's entropy, a clock) stays random; who looks must refuse what it sees differ.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


@contextmanager
def held(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """The states of all generators (torch's on the CPU and these devices) as they were, afterwards."""
    python, legacy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)


def seed_all(seed: int) -> None:
    # Not torch.manual_seed: for devices that are not there, it keeps a trace of its caller, and takes milliseconds.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed)
    random.seed(seed)


OF_TORCH = frozenset({"torch", "cuda"})  # of the generators' names


def drawn_since(seed: int) -> set[str]:
    """Which of the generators have been drawn from since `seed_all(seed)`."""
    now = _states()
    return {name for name, state in _seeded(seed, torch.cuda.is_initialized()).items() if state != now[name]}


@lru_cache(maxsize=8)  # a look at a model asks for one to three seeds, again and again
def _seeded(seed: int, cuda: bool) -> dict[str, Any]:  # noqa: ARG001
    with held():
        seed_all(seed)
        return _states()


def _states() -> dict[str, Any]:
    states: dict[str, Any] = {"python": random.getstate(), "torch": bytes(torch.default_generator.get_state().numpy())}
    kind, keys, *rest = np.random.get_state()
    states["numpy"] = (kind, bytes(keys), rest)  # type: ignore[arg-type]
    if torch.cuda.is_initialized():
        states["cuda"] = [bytes(state.numpy()) for state in torch.cuda.get_rng_state_all()]
    return states


COINS = frozenset({"bernoulli", "native_dropout"})  # of a dropout

# Operations whose result is random numbers, by torch's names without overload and trailing underscore.
_SOURCES = frozenset(
    [
        "bernoulli",
        "binomial",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "multinomial",
        "normal",
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random",
        "randperm",
        "uniform",
        "_sample_dirichlet",
        "_standard_gamma",
    ]
)


class Calm(TorchDispatchMode):
    """torch's random numbers replaced by constants. A coin falls so that dropout keeps; a permutation keeps the order, or (to
    show who is mixed with whom) reverses it."""

    def __init__(self, *, reverse: bool = False):
        super().__init__()
        self._reverse = reverse
        self.drawn: set[str] = set()  # which operations would have drawn

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.removeprefix("aten::").removesuffix("_")
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        self.drawn.add(name)
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        given = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        if name == "rrelu_with_noise":
            given["training"] = False
        if "dropout_p" in given:
            given["dropout_p"] = 0.0
        out = func(**given)
        if name in _SOURCES:
            for x in tree_flatten(out)[0]:
                _hold(x, name, given, reverse=self._reverse)
        return out


def _hold(x: Tensor, name: str, given: dict[str, Any], *, reverse: bool) -> None:
    x = x.detach()
    if name == "randperm":
        order = torch.arange(len(x))
        x.copy_(order.flip(0) if reverse else order)
    elif name == "bernoulli":
        x.fill_(1)
    elif x.is_floating_point():
        x.fill_(0.5)
    else:
        x.fill_(given.get("low", given.get("from", 0)) or 0)
