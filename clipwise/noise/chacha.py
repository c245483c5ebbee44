"""ChaCha20 in whole-number torch operations: random words made where the sums are, for devices whose memory the
host's cipher cannot write to.

Guarantee: the words are those of RFC 8439 (`chacha_test.py`: its vectors, and bit for bit `cryptography`'s), for a
nonce of (step, rank, stream) under a key of this purpose's own, which no AES keystream is made with.

All blocks are made side by side, so that the number of operations does not depend on how many there are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clipwise.keystream import Key
from clipwise.types import LoopMisuse

WORDS = 16  # of 32 bits, in a block
_CONSTANTS = b"expand 32-byte k"
_ROUNDS = 10  # double ones
_MOST_BLOCKS = 1 << 32  # of one nonce: its counter has 32 bits
_STEP, _RANK, _STREAM = 5, 2, 4  # bytes of the nonce; the twelfth is 0


class Stream:
    """The words of one (step, rank, stream), in order, from a block on."""

    def __init__(self, key: Key, device: torch.device, *, step: int, rank: int = 0, stream: int = 0, block: int = 0):
        nonce = step.to_bytes(_STEP, "big") + rank.to_bytes(_RANK, "big") + stream.to_bytes(_STREAM, "big") + bytes(1)
        self._device, self._block = device, block
        self._key, self._nonce = key.derive("chacha20").secret, nonce

    def words(self, count: int) -> Tensor:
        """At least so many, as int32; whole blocks of 16."""
        number = -(-count // WORDS)
        first, self._block = self._block, self._block + number
        if self._block > _MOST_BLOCKS:
            raise LoopMisuse(
                f"noise for more than {_MOST_BLOCKS * WORDS} words was asked for in one query; split the model's sums"
            )
        return blocks(self._key, self._nonce, first, number, self._device).T.reshape(-1)


def blocks(key: bytes, nonce: bytes, first: int, number: int, device: torch.device) -> Tensor:
    """(16, number) words of the blocks from `first` on."""
    start = torch.empty(WORDS, number, dtype=torch.int32, device=device)
    for row, word in enumerate(_signed(_CONSTANTS + key + bytes(4) + nonce)):
        start[row].fill_(word)  # a number given with the launch: nothing is copied from the host
    counter = torch.arange(first, first + number, dtype=torch.int64, device=device)
    start[12] = torch.where(counter < 1 << 31, counter, counter - (1 << 32)).to(torch.int32)
    a, b, c, d = start.view(4, 4, number).clone().unbind(0)
    for _ in range(_ROUNDS):
        _quarters(a, b, c, d)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)  # columns to diagonals
        _quarters(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat([a, b, c, d]).add_(start)  # int32 wraps around


def _quarters(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
    """Four quarter rounds side by side, in place."""
    for x, y, z, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        x.add_(y)
        z.bitwise_xor_(x)
        low = (z >> (32 - bits)).bitwise_and_((1 << bits) - 1)  # the shift of a signed word brings its sign along
        z.bitwise_left_shift_(bits).bitwise_or_(low)


def _signed(text: bytes) -> list[int]:
    return [int.from_bytes(text[i : i + 4], "little", signed=True) for i in range(0, len(text), 4)]
