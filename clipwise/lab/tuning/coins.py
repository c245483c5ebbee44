"""Secret uniform numbers for draws and choices, from the same keystream as all noise."""

from __future__ import annotations

import numpy as np
import torch

from clipwise.keystream import Key
from clipwise.noise import GaussianNoise


class Coins:
    """The coins of one purpose. Called with a number n, they give n numbers in [0, 1) of 53 bits; no two calls, and no two
    purposes, share a byte: a search that was cut and goes on with the same seed re-uses no noise for anything else."""

    def __init__(self, key: Key, purpose: str):
        self._key, self._calls = key.derive(f"tuning: {purpose}"), 0

    def __call__(self, count: int) -> np.ndarray:
        stream = self._key.keystream(step=self._calls)
        self._calls += 1
        words = np.frombuffer(stream.update(bytes(8 * count)), dtype=">u8")
        return (words >> np.uint64(11)).astype(float) * 2.0**-53

    def noised(self, value: float, std: float) -> float:
        """value + N(0, std^2), each time from a stream of its own."""
        own = GaussianNoise(self._key.derive(f"noise {self._calls}"))
        self._calls += 1
        (answer,) = own.add([torch.tensor([value], dtype=torch.float64)], std, step=0)
        return float(answer)

    def whole(self) -> int:
        """A whole number of 53 bits."""
        return int(self(1)[0] * 2.0**53)
