"""Batches of a fixed size: m of the n records, drawn without replacement and anew for each step, all subsets alike.

Guarantee: every record gets 64 random bits from the run's key and the step, and the m smallest are the batch. Two equal
draws, which would be decided by their order in the data, have a chance below n^2 / 2^65. Neighbours are data sets of the
same size with one record replaced: n is public.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clipwise import validate
from clipwise.keystream import Key
from clipwise.types import BadArgument


@dataclass(frozen=True)
class FixedSizeSampler:
    size: int
    sample_rate: float  # m / n

    def __post_init__(self) -> None:
        validate.count("size", self.size, least=1, remedy="the data set must have at least one record")
        validate.probability(
            "sample_rate", self.sample_rate, one_allowed=True, remedy="it is batch size / data set size"
        )
        if abs(self.sample_rate * self.size - self.rows) > 1e-6 or self.rows < 1:
            raise BadArgument(
                f"sample_rate={self.sample_rate!r} of {self.size} records is no whole number of records; with "
                "sampling='fixed-size' give a whole expected_batch_size, and leave sample_rate out"
            )

    @property
    def rows(self) -> int:
        return round(self.sample_rate * self.size)

    def smaller(self, part: float) -> FixedSizeSampler:
        """Of the same records, this part of a batch, in whole records and at least one."""
        return FixedSizeSampler(self.size, max(1, round(self.rows * part)) / self.size)

    def draw(self, key: Key, step: int) -> np.ndarray:
        """Indices of the records in the batch of this step, in order."""
        coins = key.derive("sampling").keystream(step=step)
        bits = np.frombuffer(coins.update(bytes(8 * self.size)), dtype="<u8")
        return np.sort(np.argpartition(bits, self.rows - 1)[: self.rows])
