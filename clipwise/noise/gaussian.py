"""Gaussian noise: the only room that makes a `Released` value.

Each normal number is Box-Muller over the keystream of a cipher: a radius from 63 random bits (tails to 9.3 sigma), an
angle from 32. The cipher is AES where the host can write to a sum's memory, and elsewhere ChaCha20 on the device itself,
so that nothing is copied from the host. Guarantee: the numbers are independent draws from N(0, 1) up to float32
rounding, a function of (key, step, rank, query, position, cipher) and of nothing else; a query's noise is drawn once or an
error is raised. Rounding is *not* hidden: this generator does not resist attacks that read the last bits of floating-point
sums (Mironov 2012); see docs/threat_model.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import CipherContext
from torch import Tensor

from clipwise.devices import in_host_memory
from clipwise.keystream import Key
from clipwise.noise.chacha import WORDS, Stream
from clipwise.types import Cut, LoopMisuse

STREAM = 2  # counted up when the numbers that a key gives change: a redone step must have those of the first time
# Numbers are made two by two, in pieces that stay in the cache and are worth an operation's overhead: of 200,000 numbers each took
# 2.3 ns in pieces of 2^17 pairs, 2.7 of 2^15, 3.5 of 2^13 (one thread, beside other work).
_PAIRS = 1 << 17
_PAIRS_ON_DEVICE = 1 << 18  # where each operation has a launch to pay for; chosen, never measured
_ONE_THREAD = (
    1 << 15
)  # numbers that torch hands to one thread: the grain of its parallel loops (at::internal::GRAIN_SIZE)
_BYTES = 12  # of keystream, a pair
_ZEROS = memoryview(bytes(_BYTES * _PAIRS))


class _Room:
    """Memory to make normal numbers in, of one type: kept from step to step, because fresh memory costs more than the arithmetic
    (204,000 numbers: 9 ns each with new buffers, 3 with these), and filled again for each piece, so that it stays in the cache.

    A piece is made by one thread: torch would hand a half of each operation to another core, and where cores do not share a
    cache, numbers that go from one to the other take longer than the arithmetic. Threads take whole pieces (3.2 million numbers: 7.7
    ms with one, 4.5 with two). It is numpy's, whose log, sin and cos take half
    of what torch's take (AVX-512 of an AMD EPYC; 1.4 against 3.5 ns for a log, a sine and a cosine).
    """

    def __init__(self, pairs: int, wide: torch.dtype):
        self.pairs = pairs
        self._words = bytearray(_BYTES * pairs)
        made = torch.empty(4, pairs, dtype=wide)
        self._made, self._out = made.numpy(), made[2:]

    def next(self, keystream: CipherContext, pairs: int) -> Tensor:
        """(2, pairs) numbers, good until the next."""
        size = _BYTES * pairs
        keystream.update_into(_ZEROS[:size], self._words)
        long = np.frombuffer(self._words, np.int64, pairs)
        turn = np.frombuffer(self._words, np.int32, pairs, offset=8 * pairs)
        made = self._made[:, :pairs]
        made[0], made[1] = long, turn
        _box_muller(np, *made)
        return self._out[:, :pairs]


class GaussianNoise:
    """Noise for one run. `rank` tells the processes of a distributed run apart."""

    def __init__(self, key: Key, *, rank: int = 0):
        self._key = key.derive("noise")
        self._rank = rank
        self._step = -1
        self._streams = 0
        self._process = os.getpid()
        self._rooms: dict[torch.dtype, list[_Room]] = {}  # one a thread

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
        wide = torch.float64 if any([total.dtype == torch.float64 for total in sums]) else torch.float32
        sizes = [total.numel() for total in sums]
        if std == 0 or sum(sizes) == 0:
            return
        places, length = cut or Cut(tuple(accumulate(sizes, initial=0))[:-1], sum(sizes))
        # One stream of pieces for all tensors: many small ones would each pay for a cipher and a dozen small operations,
        # while the noise of a large model, drawn whole, would go through memory again and again.
        waiting = [(place, total.view(-1)) for place, total in zip(places, sums, strict=True) if total.numel()][::-1]
        if not in_host_memory(device):
            for piece in _pieces(waiting, 2 * _PAIRS_ON_DEVICE, length):
                piece.add(self._standard_normal(device, stream, piece.index, piece.count, wide, None), std)
            return
        pieces = _pieces(waiting, 2 * _PAIRS, length)
        shares = _shares(pieces, torch.get_num_threads())
        rooms = self._rooms_for(len(shares), min(_PAIRS, _pairs_for(length)), wide)

        inference = torch.is_inference_mode_enabled()

        def work(share: Sequence[_Piece], room: _Room) -> None:
            with torch.inference_mode(inference):  # a thread begins without
                for piece in share:
                    numbers = self._standard_normal(device, stream, piece.index, piece.count, wide, room)
                    piece.add(numbers, std, alone=len(shares) == 1)

        if len(shares) == 1:
            work(pieces, rooms[0])
            return
        with ThreadPoolExecutor(
            len(shares) - 1
        ) as pool:  # made for this: no thread of ours is there when a loader forks
            others = [pool.submit(work, *each) for each in zip(shares[1:], rooms[1:], strict=True)]
            work(shares[0], rooms[0])
            for other in others:
                other.result()

    def _standard_normal(
        self, device: torch.device, stream: int, index: int, count: int, wide: torch.dtype, room: _Room | None
    ) -> Tensor:
        """So many numbers of a piece of a stream: in a room of the host, good until its next, or where there is none on the device."""
        where = {"step": self._step, "rank": self._rank, "stream": stream}
        if room is None:
            words = Stream(self._key, device, **where, block=index * _PAIRS_ON_DEVICE * _BYTES // (4 * WORDS))
            made = _made_on_device(words, wide, _pairs_for(count))
        else:
            keystream = self._key.keystream(**where, block=index * _PAIRS * _BYTES // 16)
            made = room.next(keystream, _pairs_for(count))
        return made.flatten()[:count]

    def _rooms_for(self, threads: int, pairs: int, wide: torch.dtype) -> list[_Room]:
        rooms = self._rooms.setdefault(wide, [])
        if rooms and rooms[0].pairs < pairs:
            rooms.clear()
        rooms += [_Room(pairs, wide) for _ in range(threads - len(rooms))]
        return rooms[:threads]


class _Piece:
    """Which numbers of a stream go where: `sizes` of those that nobody here holds, and of those of `mine`, in turns."""

    __slots__ = ("count", "index", "mine", "sizes")

    def __init__(self, index: int, count: int):
        self.index, self.count = index, count
        self.mine: list[Tensor] = []
        self.sizes: list[int] = []

    def add(self, numbers: Tensor, std: float, *, alone: bool = True) -> None:
        """`alone`: whether no other piece is added at the same time."""
        whole = self.sizes == [0, self.count, 0]
        mine, parts = self.mine, [numbers] if whole else list(numbers.split(self.sizes))[1::2]
        if not alone:
            mine, parts = ([some for t in each for some in t.split(_ONE_THREAD)] for each in (mine, parts))
        if len(mine) == 1:
            mine[0].add_(parts[0], alpha=std)
        else:
            torch._foreach_add_(mine, parts, alpha=std)


def _pieces(waiting: list[tuple[int, Tensor]], size: int, length: int) -> list[_Piece]:
    """Off a stack of flat tensors, each with its place in a stream of that length, all pieces that they have a part in."""
    pieces = []
    while waiting:
        index = waiting[-1][0] // size
        at, end = index * size, min((index + 1) * size, length)
        piece = _Piece(index, end - at)
        while waiting and waiting[-1][0] < end:
            place, flat = waiting.pop()
            count = flat.numel()  # len() of a tensor takes longer than an addition
            if place + count > end:
                waiting.append((end, flat[end - place :]))
                flat, count = flat[: end - place], end - place
            piece.mine.append(flat)
            piece.sizes += [place - at, count]
            at = place + count
        piece.sizes.append(end - at)
        pieces.append(piece)
    return pieces


def _shares(pieces: list[_Piece], threads: int) -> list[list[_Piece]]:
    """Pieces side by side for each thread: as torch shares out the work that the sums were made by."""
    threads = max(1, min(threads, len(pieces)))
    return [pieces[len(pieces) * i // threads : len(pieces) * (i + 1) // threads] for i in range(threads)]


def _made_on_device(stream: Stream, wide: torch.dtype, pairs: int) -> Tensor:
    """What a `_Room` gives, of words that were made where they are needed."""
    words = stream.words(3 * pairs)
    made = torch.empty(4, pairs, dtype=wide, device=words.device)
    made[0], made[1] = words[: 2 * pairs].view(torch.int64), words[2 * pairs : 3 * pairs]
    _box_muller(torch, *made)
    return made[2:]


def _box_muller(ops: Any, u: Any, angle: Any, even: Any, odd: Any) -> None:
    """Two normal numbers of 64 and 32 signed bits, given as `u` and `angle`, whose memory is used up. `ops` is torch or numpy."""
    # -2 log |u|, as -log u^2, of u in [-1, 1] with as many digits near 0 (the tail) as elsewhere. u^2 is in no danger: 2^-126,
    # which stands for the one u that is 0, is the least that float32 holds with all its digits.
    ops.multiply(u, 2.0**-63, out=u)
    ops.multiply(u, u, out=u)
    ops.add(u, 2.0**-126, out=u)
    ops.log(u, out=u)
    ops.negative(u, out=u)
    ops.sqrt(u, out=u)
    ops.multiply(angle, math.pi * 2.0**-31, out=angle)
    ops.cos(angle, out=even)
    ops.sin(angle, out=odd)
    ops.multiply(even, u, out=even)
    ops.multiply(odd, u, out=odd)


def _pairs_for(count: int) -> int:
    return -(-count // 2)
