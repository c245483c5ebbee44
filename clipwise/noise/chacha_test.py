"""The same words as RFC 8439's vectors and as `cryptography`'s ChaCha20."""

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from clipwise.keystream import Key
from clipwise.noise import chacha
from clipwise.types import LoopMisuse

CPU = torch.device("cpu")


def words(key, nonce, first, number):
    return chacha.blocks(key, nonce, first, number, CPU).T.contiguous().numpy().tobytes()


def theirs(key, nonce, first, number):
    start = first.to_bytes(4, "little") + nonce
    return Cipher(algorithms.ChaCha20(key, start), mode=None).encryptor().update(bytes(64 * number))


def test_the_block_of_rfc_8439_section_2_3_2():
    found = words(bytes(range(32)), bytes.fromhex("000000090000004a00000000"), 1, 1)
    assert found.hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4ed2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


@pytest.mark.parametrize("first", [0, 1, (1 << 31) - 2, (1 << 32) - 3])
@pytest.mark.parametrize("seed", range(5))
def test_bit_for_bit_those_of_cryptography(first, seed):
    key, nonce = Key.from_seed(seed).secret, Key.from_seed(seed).derive("nonce").secret[:12]
    assert words(key, nonce, first, 3) == theirs(key, nonce, first, 3)


def test_a_stream_goes_on_and_each_has_a_nonce_of_its_own():
    def stream(**where):
        return chacha.Stream(Key.from_seed(0), CPU, **{"step": 3, **where})

    going = stream()
    parts = torch.cat([going.words(20), going.words(16), going.words(1)])
    assert len(parts) == 32 + 16 + 16
    nonce = (3).to_bytes(5, "big") + bytes(7)
    want = theirs(Key.from_seed(0).derive("chacha20").secret, nonce, 0, 4)
    assert parts.numpy().tobytes() == want
    for other in (stream(step=4), stream(rank=1), stream(stream=1)):
        assert not torch.isin(other.words(64), parts).any()


def test_a_counter_that_would_start_again_is_refused():
    stream = chacha.Stream(Key.from_seed(0), CPU, step=0)
    stream._block = (1 << 32) - 1
    stream.words(16)
    with pytest.raises(LoopMisuse, match="one query"):
        stream.words(1)
