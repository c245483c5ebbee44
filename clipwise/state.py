"""The state of a run, all of it: what a checkpoint keeps so that a run that died goes on as if it had not.

A stateful part has `state_dict()` and `load_state_dict(state)`, as torch's own have, and stands in `RunState` under a name:
a new part is one line there and its own two functions.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import random
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten
from torch.utils.data import Dataset, TensorDataset

from clipwise.keystream import Key
from clipwise.randomness import held, seed_all
from clipwise.step import State, Stepper
from clipwise.types import BadArgument


class Part(Protocol):
    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Any) -> Any: ...


class RunState:
    """Named parts, saved and loaded together."""

    def __init__(self, **parts: Part):
        self._parts = parts

    def add(self, **parts: Part) -> None:
        self._parts |= parts

    def save(self) -> dict[str, Any]:
        return {name: dict(part.state_dict()) for name, part in self._parts.items()}

    def load(self, saved: Mapping[str, Any]) -> None:
        if missing := self._parts.keys() ^ saved.keys():
            raise BadArgument(
                f"resume: the checkpoint and this run do not both have {', '.join(sorted(missing))}; resume with the same "
                "model, optimizer, scheduler and averaging as before"
            )
        for name, part in self._parts.items():
            try:
                part.load_state_dict(saved[name])
            except (RuntimeError, ValueError, KeyError, TypeError) as error:
                raise BadArgument(
                    f"resume: the checkpoint's {name} does not fit this run's ({error}); resume with the same one as before"
                ) from error


class StepState:
    """Step, thresholds and whatever else the method's state holds. The sampler's position is the step: a draw is a function
    of it."""

    def __init__(self, stepper: Stepper):
        self._stepper = stepper

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._stepper.state.step, "method": self._stepper.state.method._asdict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        kind = type(self._stepper.state.method)
        self._stepper.state = State(int(state["step"]), kind(**state["method"]))


class Generators:
    """Of torch, numpy and Python: dropout and augmentation go on where they were. Noise and sampling need none of them."""

    def state_dict(self) -> dict[str, Any]:
        now: Any = np.random.get_state(legacy=True)  # of the generator that user code draws from
        name, words, place, has_gauss, gauss = now
        return {
            "torch": torch.get_rng_state(),
            "cuda": list(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else [],
            "numpy": [name, torch.from_numpy(words.astype(np.int64)), int(place), int(has_gauss), float(gauss)],
            "python": random.getstate(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        name, words, *rest = state["numpy"]
        torch.set_rng_state(state["torch"])
        if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state["cuda"])
        np.random.set_state((name, words.numpy().astype(np.uint32), *rest))
        random.setstate(state["python"])


def data_fingerprint(dataset: Dataset[Any], seed: int | None) -> str:
    """Whether two runs are on the same data.

    Of a seeded run: a keyed hash of every record, its key from the seed, which must stay secret like the noise. Without a
    seed there is no secret that outlives the process, and a hash in the clear would let anyone test a guess of the whole
    data set; so then it is the types of a record alone.
    """
    if seed is None:
        return f"layout {hashlib.sha256(json.dumps(_layout(dataset)).encode()).hexdigest()}"
    return f"content {content_fingerprint(dataset, Key.from_seed(seed))}"


def content_fingerprint(dataset: Dataset[Any], key: Key) -> str:
    """A keyed hash of every record, in order. Records that are drawn anew when they are read (augmented) are read with all
    generators seeded alike."""
    digest = hmac.new(key.derive("data fingerprint").secret, digestmod="sha256")
    if isinstance(dataset, TensorDataset):
        for tensor in dataset.tensors:
            _digest(digest, tensor)
        return digest.hexdigest()
    with held():
        seed_all(0)
        for i in range(len(dataset)):  # type: ignore[arg-type]
            for leaf in tree_flatten(dataset[i])[0]:
                _digest(digest, leaf)
    return digest.hexdigest()


def _digest(digest: Any, leaf: Any) -> None:
    if isinstance(leaf, np.ndarray) and leaf.dtype != object:
        leaf = torch.from_numpy(leaf)
    if isinstance(leaf, Tensor):
        flat = leaf.detach().cpu().contiguous()
        digest.update(f"{flat.dtype}{tuple(flat.shape)}".encode())
        digest.update(flat.flatten().view(torch.uint8).numpy().data)
    else:
        digest.update(repr(leaf).encode())


def _layout(dataset: Dataset[Any]) -> list[str]:
    leaves = tree_flatten(dataset[0])[0]
    return [f"{x.dtype}, {x.dim()} dimensions" if isinstance(x, Tensor) else type(x).__name__ for x in leaves]
