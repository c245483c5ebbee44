"""Randomness as a function: bytes from (key, purpose, step, rank, stream), an AES-128 keystream in counter mode.

Guarantee: two different (purpose, step, rank, stream) never share a byte of keystream; the same one always gives the
same bytes. So noise can be tested, cannot be influenced by torch.manual_seed, and cannot be drawn twice by accident.
The key comes from the operating system; a key made from a seed is for tests and studies, and then the privacy
statement says that the seed must stay secret.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from clipwise import validate

_STEP, _RANK, _STREAM, _BLOCK = 5, 2, 4, 5  # bytes of the 16-byte counter; 2^40 blocks of 16 bytes follow each start
_FEW_STREAMS, _SEGMENT = 2, 3  # with step and rank, the 12 bytes of a nonce of AES-GCM; 2^32 - 2 blocks follow each


@dataclass(frozen=True, repr=False)
class Key:
    secret: bytes
    seeded: bool

    @staticmethod
    def fresh() -> Key:
        return Key(os.urandom(32), seeded=False)

    @staticmethod
    def from_seed(seed: int) -> Key:
        seed = validate.count("seed", seed, least=0)
        return Key(hashlib.blake2b(str(seed).encode(), digest_size=32, person=b"clipwise seed").digest(), seeded=True)

    def derive(self, label: str) -> Key:
        """An independent key for another purpose, or for another segment of a resumed run."""
        secret = hashlib.blake2b(label.encode(), digest_size=32, key=self.secret).digest()
        return Key(secret, self.seeded)

    def keystream(self, *, step: int, rank: int = 0, stream: int = 0, block: int = 0) -> CipherContext:
        """From a block of 16 bytes on: a part of a long stream costs what that part costs."""
        start = b"".join(
            value.to_bytes(size, "big")
            for value, size in ((step, _STEP), (rank, _RANK), (stream, _STREAM), (block, _BLOCK))
        )
        return Cipher(algorithms.AES128(self.secret[:16]), modes.CTR(start)).encryptor()

    def segment(self, *, step: int, rank: int = 0, stream: int = 0, segment: int = 0) -> CipherContext:
        """The same for long streams, cut into segments: AES-GCM's keystream, which is CTR's from the block `nonce, 2` on.
        OpenSSL makes it with the wide AES instructions that its CTR leaves alone (8 bytes: 0.30 ns against 0.64), tag and all.
        The blocks lie otherwise than `keystream`'s: a key gives one kind or the other, never both."""
        nonce = step.to_bytes(_STEP, "big") + rank.to_bytes(_RANK, "big") + stream.to_bytes(_FEW_STREAMS, "big")
        nonce += segment.to_bytes(_SEGMENT, "big")
        return Cipher(algorithms.AES128(self.secret[:16]), modes.GCM(nonce)).encryptor()

    def __repr__(self) -> str:  # a key must not reach a log
        return f"Key(seeded={self.seeded})"
