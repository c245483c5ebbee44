"""What the rest of the house knows of a sampler. Its event, what a step on its batches costs, is paired with it in
`clipwise/plans.py`."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from clipwise.keystream import Key


class Sampler(Protocol):
    """Made from the number of records and the share of them that a batch has, on average or exactly."""

    @property
    def size(self) -> int: ...

    @property
    def sample_rate(self) -> float: ...

    def __init__(self, size: int, sample_rate: float) -> None: ...

    def smaller(self, part: float) -> Sampler:
        """Of the same records, this part of a batch."""
        ...

    def draw(self, key: Key, step: int) -> np.ndarray:
        """Indices of the records in the batch of this step, in order, each once: a function of key and step."""
        ...
