"""Poisson sampling: each record joins each batch with probability q, independently of all else.

Guarantee: for every step the batch is a Poisson sample at a rate of at most q (short of it by less than 2^-63),
decided by integer comparison of 64 random bits a record with a public threshold. Of these the first 8 decide alone but
for one record in 256, where they are those of the threshold: the other 56 are drawn for it then, from a stream of their
own. The coins come from the run's key and the step alone: secret, independent of the noise, the same if a step has to
be drawn again. A batch may be empty. Float32 coins would double the rate at q = 3e-8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clipwise import validate
from clipwise.keystream import Key

_RECORDS = 1 << 18  # coins are tossed for so many records at a time: a byte each, which stay in the cache
_REST = 56  # bits of a coin below the first 8


@dataclass(frozen=True)
class PoissonSampler:
    size: int
    sample_rate: float

    def __post_init__(self) -> None:
        validate.count("size", self.size, least=1, remedy="the data set must have at least one record")
        validate.probability(
            "sample_rate", self.sample_rate, one_allowed=True, remedy="it is expected batch size / data set size"
        )

    def smaller(self, part: float) -> PoissonSampler:
        """Of the same records, this part of a batch: the rate alone says so, which is public where their number is not."""
        return PoissonSampler(self.size, self.sample_rate * part)

    def draw(self, key: Key, step: int) -> np.ndarray:
        """Indices of the records in the batch of this step, in order; perhaps none."""
        if self.sample_rate == 1:
            return np.arange(self.size)
        # Scaling a float64 by a power of two is exact, and int() truncates: never above the stated rate.
        first, rest = divmod(int(self.sample_rate * 2.0**64), 1 << _REST)
        key = key.derive("sampling")
        coins, ties = key.keystream(step=step), key.keystream(step=step, stream=1)
        chosen = []
        for start in range(0, self.size, _RECORDS):
            bits = np.frombuffer(coins.update(bytes(min(_RECORDS, self.size - start))), dtype=np.uint8)
            perhaps = np.flatnonzero(bits <= first)
            tied = bits[perhaps] == first
            below = np.frombuffer(ties.update(bytes(8 * int(tied.sum()))), dtype="<u8") >> np.uint64(64 - _REST)
            tied[tied] = below >= np.uint64(rest)  # the threshold is reached: not chosen
            chosen.append(perhaps[~tied] + start)
        return np.concatenate(chosen)
