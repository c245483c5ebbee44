"""Gaussian noise: the only room that makes a `Released` value.

Each normal number is Box-Muller over the keystream of a cipher: a radius from 62 random bits (tails to 9.2 sigma), an
angle from 32. The cipher is AES where the host can write to a sum's memory, and elsewhere ChaCha20 on the device itself,
so that nothing is copied from the host. Guarantee: the numbers are independent draws from N(0, 1) up to float32
rounding, a function of (key, step, rank, query, position, cipher) and of nothing else; a query's noise is drawn once or an
error is raised. Rounding is *not* hidden: this generator does not resist attacks that read the last bits of floating-point
sums (Mironov 2012); see docs/threat_model.md.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from cryptography.hazmat.primitives.ciphers import CipherContext
from torch import Tensor

from clipwise.devices import in_host_memory
from clipwise.keystream import Key
from clipwise.noise.chacha import WORDS, Stream
from clipwise.types import Cut, LoopMisuse

_PAIRS = 1 << 18  # numbers are made two by two, in pieces that stay in the cache and are worth an operation's overhead
_LANES = 2  # halves of a piece, one a core: a core then keeps to the numbers that it made itself
_PIECE, _PIECE_BYTES = 2 * _PAIRS, 12 * _PAIRS
_ZEROS = memoryview(bytes(_PIECE_BYTES))


class _Room:
    """Memory to make normal numbers in, of one type: kept from step to step, because fresh memory costs more than the arithmetic
    (204,000 numbers: 9 ns each with new buffers, 3 with these), and filled again for each piece, so that it stays in the cache.

    A piece is made in lanes that share nothing, and torch gives each of two threads one of them in every operation: where
    cores do not share a cache, numbers that go from one to the other take longer than all the arithmetic.
    """

    def __init__(self, pairs: int, wide: torch.dtype):
        self.pairs = pairs
        self._words = torch.empty(3 * pairs, dtype=torch.int32)
        self._bytes = self._words.numpy().data.cast("B")
        self._wide = torch.empty(3 * pairs, dtype=wide)
        self._out = torch.empty(2 * pairs, dtype=wide)

    def next(self, keystream: CipherContext, pairs: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """Three times (lanes, pairs of a lane) numbers, twice in [0, 2^31), then in [-2^31, 2^31); and (lanes, 2, pairs of a
        lane) to be written."""
        own, size = 12 * pairs // _LANES, 12 * pairs
        # The first lane is this thread's. What others touched is taken back faster so than the cipher could.
        self._bytes[own:size] = _ZEROS[: size - own]
        keystream.update_into(_ZEROS[:size], self._bytes[:size])
        words = self._words[: 3 * pairs].view(_LANES, 3, -1)
        words[:, :2].bitwise_and_(0x7FFFFFFF)
        return self._wide[: 3 * pairs].view_as(words).copy_(words).unbind(1), self._out[: 2 * pairs].view(_LANES, 2, -1)


class GaussianNoise:
    """Noise for one run. `rank` tells the processes of a distributed run apart."""

    def __init__(self, key: Key, *, rank: int = 0):
        self._key = key.derive("noise")
        self._rank = rank
        self._step = -1
        self._streams = 0
        self._process = os.getpid()
        self._rooms: dict[torch.dtype, _Room] = {}

    def add(self, sums: Sequence[Tensor], std: float, *, step: int, cut: Cut | None = None) -> tuple[Tensor, ...]:
        """sums + N(0, std^2), in the sums' own memory, so that no sum without its noise is left behind. Each query of a
        step has a stream of its own; a past step is refused. A process that holds a `cut` of the query (on one device) draws
        that part of the stream, in whole pieces, and no other."""
        if os.getpid() != self._process:
            raise LoopMisuse(
                "this run was begun in another process, of which this one is a copy (a fork): both would draw the same noise, and the "
                "ledger would count it once. Attach in the process that trains"
            )
        if step < self._step:
            raise LoopMisuse(
                f"noise for step {step} was asked for after that of step {self._step}; noise is never drawn twice"
            )
        if step > self._step:
            self._step, self._streams = step, 0
        sums = tuple(total.contiguous() for total in sums)
        devices = list(dict.fromkeys(total.device for total in sums))
        for device in devices:
            self._add_on(device, [total for total in sums if total.device == device], std, cut)
        return sums

    def _add_on(self, device: torch.device, sums: Sequence[Tensor], std: float, cut: Cut | None) -> None:
        """Noise from the query's next stream on sums of one device."""
        stream, self._streams = self._streams, self._streams + 1
        wide = torch.float64 if any(total.dtype == torch.float64 for total in sums) else torch.float32
        sizes = [total.numel() for total in sums]
        if std == 0 or sum(sizes) == 0:
            return
        places, length = cut or Cut(tuple(accumulate(sizes, initial=0))[:-1], sum(sizes))
        # One stream of pieces for all tensors: many small ones would each pay for a cipher and a dozen small operations,
        # while the noise of a large model, drawn whole, would go through memory again and again.
        waiting = [(place, total.view(-1)) for place, total in zip(places, sums, strict=True) if total.numel()][::-1]
        while waiting:
            # The pieces from that of the next number on, as far as there are numbers in each.
            first = waiting[-1][0] // _PIECE
            start = first * _PIECE
            for piece in self._standard_normal(device, stream, length, wide, first):
                mine, numbers = _take(waiting, start, piece)
                torch._foreach_add_(mine, numbers, alpha=std)
                start += _PIECE
                if not waiting or waiting[-1][0] >= start + _PIECE:
                    break

    def _standard_normal(
        self, device: torch.device, stream: int, length: int, wide: torch.dtype, first: int = 0
    ) -> Iterator[Tensor]:
        """The numbers of a stream in pieces, from the `first` on, each good until the next."""
        where = {"step": self._step, "rank": self._rank, "stream": stream}
        if in_host_memory(device):
            room = self._room_for(min(_PAIRS, _pairs_for(length)), wide)
            draw = functools.partial(room.next, self._key.keystream(**where, block=first * _PIECE_BYTES // 16))
        else:
            words = Stream(self._key, device, **where, block=first * _PIECE_BYTES // (4 * WORDS))
            draw = functools.partial(_made_on_device, words, wide)
        for start in range(first * _PIECE, length, _PIECE):
            count = min(length - start, _PIECE)
            yield _box_muller(*draw(_pairs_for(count))).flatten()[:count]

    def _room_for(self, pairs: int, wide: torch.dtype) -> _Room:
        room = self._rooms.get(wide)
        if room is None or room.pairs < pairs:
            room = self._rooms[wide] = _Room(pairs, wide)
        return room


def _made_on_device(stream: Stream, wide: torch.dtype, pairs: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """What a `_Room` gives, of words that were made where they are needed."""
    words = stream.words(3 * pairs)[: 3 * pairs].view(_LANES, 3, -1)
    words[:, :2].bitwise_and_(0x7FFFFFFF)
    drawn = words.to(wide)
    return drawn.unbind(1), drawn.new_empty(_LANES, 2, pairs // _LANES)


def _box_muller(drawn: tuple[Tensor, ...], out: Tensor) -> Tensor:
    """Two normal numbers of three words each, in the memory of the words and of `out`."""
    high, low, turn = drawn
    # u in (0, 1]: 31 bits, and 31 more below them, so that small u (the tail) keep their precision
    u = high.add_(low, alpha=2.0**-31)
    radius = u.mul_(2.0**-31).clamp_min_(2.0**-62).log_().mul_(-2).sqrt_()
    angle = turn.mul_(math.pi * 2.0**-31)
    torch.cos(angle, out=out[:, 0]).mul_(radius)
    torch.sin(angle, out=out[:, 1]).mul_(radius)
    return out


def _pairs_for(count: int) -> int:
    """As many in each lane."""
    return -(-count // (2 * _LANES)) * _LANES


def _take(waiting: list[tuple[int, Tensor]], start: int, piece: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Off a stack of flat tensors, each with its place, what lies in this piece, as views; and the numbers for them."""
    at, end = start, start + len(piece)
    mine: list[Tensor] = []
    sizes: list[int] = []  # of numbers that nobody here holds, and of those of `mine`, in turns
    while waiting and waiting[-1][0] < end:
        place, flat = waiting.pop()
        if place + len(flat) > end:
            waiting.append((end, flat[end - place :]))
            flat = flat[: end - place]
        mine.append(flat)
        sizes += [place - at, len(flat)]
        at = place + len(flat)
    return mine, list(piece.split([*sizes, end - at]))[1::2]
