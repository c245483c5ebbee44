"""Gaussian noise: the only room that makes a `Released` value.

Each normal number is Box-Muller over an AES keystream: a radius from 62 random bits (tails to 9.2 sigma), an angle
from 32. Guarantee: the numbers are independent draws from N(0, 1) up to float32 rounding, a
function of (key, step, rank, query, position) and of nothing else; a query's noise is drawn once or an error is
raised. Rounding is *not* hidden: this generator does not resist attacks that read the last bits of floating-point
sums (Mironov 2012); see docs/threat_model.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from clipwise.keystream import Key
from clipwise.types import LoopMisuse

_PAIRS = 1 << 16  # numbers are made two by two, in pieces that stay in the cache
_ZEROS = bytes(12 * _PAIRS)


class GaussianNoise:
    """Noise for one run. `rank` tells the processes of a distributed run apart."""

    def __init__(self, key: Key, *, rank: int = 0):
        self._key = key.derive("noise")
        self._rank = rank
        self._step = -1
        self._streams = 0

    def add(self, sums: Sequence[Tensor], std: float, *, step: int) -> tuple[Tensor, ...]:
        """sums + N(0, std^2), as new tensors. Each query of a step has a stream of its own; a past step is refused."""
        if step < self._step:
            raise LoopMisuse(
                f"noise for step {step} was asked for after that of step {self._step}; noise is never drawn twice"
            )
        if step > self._step:
            self._step, self._streams = step, 0
        stream, self._streams = self._streams, self._streams + 1
        if std == 0:
            return tuple(total.clone() for total in sums)
        wide = torch.float64 if any(total.dtype == torch.float64 for total in sums) else torch.float32
        # One draw for all tensors: many small ones would each pay for a cipher and a dozen small operations.
        noise = self._standard_normal(sum(total.numel() for total in sums), stream, wide).mul_(std)
        pieces = noise.split([total.numel() for total in sums])
        return tuple(piece.view(total.shape).to(total).add_(total) for piece, total in zip(pieces, sums, strict=True))

    def _standard_normal(self, count: int, stream: int, wide: torch.dtype) -> Tensor:
        out = torch.empty(count, dtype=wide)
        keystream = self._key.keystream(step=self._step, rank=self._rank, stream=stream)
        buffer = bytearray(12 * min(_PAIRS, (count + 1) // 2))
        words = torch.frombuffer(buffer, dtype=torch.int32) if count else torch.empty(0)
        for start in range(0, count, 2 * _PAIRS):
            pairs = min(_PAIRS, (count - start + 1) // 2)
            keystream.update_into(memoryview(_ZEROS)[: 12 * pairs], buffer)
            high, low, turn = words[:pairs], words[pairs : 2 * pairs], words[2 * pairs : 3 * pairs]
            # u in (0, 1]: 31 bits, and 31 more below them, so that small u (the tail) keep their precision
            u = high.bitwise_and_(0x7FFFFFFF).to(wide).add_(low.bitwise_and_(0x7FFFFFFF).to(wide), alpha=2.0**-31)
            radius = u.mul_(2.0**-31).clamp_min_(2.0**-62).log_().mul_(-2).sqrt_()
            angle = turn.to(wide).mul_(math.pi * 2.0**-31)
            torch.mul(angle.cos(), radius, out=out[start : start + pairs])
            second = min(pairs, count - start - pairs)
            torch.mul(angle.sin_()[:second], radius[:second], out=out[start + pairs : start + pairs + second])
        return out
