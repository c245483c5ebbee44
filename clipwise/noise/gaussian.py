"""Gaussian noise: the only room that makes a `Released` value.

Each normal number is Box-Muller over the keystream of a cipher: a radius from 63 random bits (tails to 9.3 sigma), of which
the last 32 are drawn only where a float32 would show them, and an angle from 32. The cipher is AES where the host can write
to a sum's memory, and elsewhere ChaCha20 on the device itself, so that nothing is copied from the host. Guarantee: the numbers
are independent draws from N(0, 1) up to float32 rounding, a function of (key, step, rank, query, position, cipher) and, up to
rounding, of nothing else; a query's noise is drawn once or an error is raised. Rounding is *not* hidden: this generator does
not resist attacks that read the last bits of floating-point sums (Mironov 2012); see docs/threat_model.md.
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

STREAM = 3  # counted up when the numbers that a key gives change: a redone step must have those of the first time
# Numbers are made two by two, in pieces that stay in the cache and are worth an operation's overhead: 2^20 numbers took 1.17 ns each
# in pieces of 2^15 pairs, 1.08 of 2^16 (one thread, least of 80 rounds side by side, on a machine with other work).
_PAIRS = 1 << 16
_PAIRS_ON_DEVICE = 1 << 18  # where each operation has a launch to pay for; chosen, never measured
_ONE_THREAD = (
    1 << 15
)  # numbers that torch hands to one thread: the grain of its parallel loops (at::internal::GRAIN_SIZE)
_BYTES = 8  # of keystream for a pair, at first
_WORDS_ON_DEVICE = 3  # of 32 bits for a pair: to look which need the last would be to wait for the device
_ZEROS = memoryview(bytes(_BYTES * _PAIRS))
# Below so many 2^-31sts, a distance from 0 is drawn with 32 bits more. Above, the step from one 2^-31st to the next moves the radius, 4.1
# there and less above, by less than two neighbouring float32 lie apart.
_FINE_BELOW = float(1 << 19)


def _tan_is_wide() -> bool:
    """Whether numpy has a tangent for many float32 at once: 0.25 ns each where it has (AVX-512), several where libm makes them.
    It has a sine and a cosine everywhere, at 0.38."""
    try:
        from numpy.lib import introspect

        found = introspect.opt_func_info(func_name="^tan$", signature="float32")["tan"]["ff"]["current"]
    except (ImportError, AttributeError, KeyError):  # before numpy 2.1, or on a machine for which it has one way alone
        return False
    return not found.startswith("baseline")


class _Room:
    """Memory to make normal numbers in, of one type: kept from step to step, because fresh memory costs more than the arithmetic
    (204,000 numbers: 9 ns each with new buffers, 3 with these), and filled again for each piece, so that it stays in the cache.

    A piece is made by one thread: torch would hand a half of each operation to another core, and where cores do not share a
    cache, numbers that go from one to the other take longer than the arithmetic. Threads take whole pieces. It is numpy's, whose
    log and tan take a third and a fifth of what torch's take (AVX-512 of an AMD EPYC).
    """

    def __init__(self, pairs: int, wide: torch.dtype, *, by_tan: bool | None = None):
        self.pairs = pairs
        self._out = torch.empty(3 * pairs, dtype=wide)
        self._made = self._out.numpy()
        self._fine = None if wide == torch.float64 else np.empty(pairs, np.bool_)
        self._by_tan = _tan_is_wide() if by_tan is None else by_tan
        kind = self._made.dtype  # numpy takes half as long for an array of no dimensions as for a number of Python's
        self._half, self._one, self._unit, self._minus_four, self._turn = (
            np.array(value, kind)
            for value in (0.5, 1.0, 2.0**-62, -4.0, math.pi * (2.0**-32 if self._by_tan else 2.0**-31))
        )
        self._edge = np.array(_FINE_BELOW**2, kind)

    def next(self, keystream: CipherContext, pairs: int) -> Tensor:
        """Two numbers a pair, good until the next."""
        even, odd, free = self._made[: 3 * pairs].reshape(3, pairs)
        words = self._made.view(np.int32)[: 2 * pairs]  # in the same memory: what is worked on fits in the cache
        keystream.update_into(_ZEROS[: _BYTES * pairs], words.data.cast("B"))
        np.copyto(free, words[:pairs])
        np.copyto(odd, words[pairs:])
        self._twice_radius(keystream, free, even)
        self._turned(even, odd, free)
        return self._out[: 2 * pairs]

    def _twice_radius(self, keystream: CipherContext, u: Any, out: Any) -> None:
        """2 sqrt(-2 log |u|), as sqrt(-4 log u^2), of u in (-1, 1), given in 2^-31sts: near 0, where the tail comes from, with as many
        digits as elsewhere, and never 0."""
        np.multiply(u, u, out=out)
        if self._fine is None:
            rows = np.arange(len(u))
        else:
            fine = np.less(out, self._edge, out=self._fine[: len(u)])
            rows = fine.nonzero()[0]
        if len(rows):
            more = np.frombuffer(keystream.update(bytes(4 * len(rows))), np.uint32) | 1  # odd, so that none is 0
            exact = more * 2.0**-32
            exact += u[rows]
            out[rows] = exact * exact
        np.multiply(out, self._unit, out=out)
        np.log(out, out=out)
        np.multiply(out, self._minus_four, out=out)
        np.sqrt(out, out=out)

    def _turned(self, even: Any, odd: Any, free: Any) -> None:
        """`even` holds twice a radius and `odd` an angle in 2^-31sts of half a turn: their cosine and sine take its place."""
        np.multiply(odd, self._turn, out=odd)
        if self._by_tan:  # of half the angle: cos = 2 / (1 + tan^2) - 1 and sin = 2 tan / (1 + tan^2)
            np.tan(odd, out=odd)
            np.multiply(odd, odd, out=free)
            np.add(free, self._one, out=free)
            np.divide(even, free, out=free)
            np.multiply(even, self._half, out=even)
            np.subtract(free, even, out=even)
            np.multiply(odd, free, out=odd)
            return
        np.multiply(even, self._half, out=even)
        np.cos(odd, out=free)
        np.sin(odd, out=odd)
        np.multiply(odd, even, out=odd)
        np.multiply(free, even, out=even)


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
        count = sum(sizes)
        if std == 0 or count == 0:
            return
        if cut is None and count <= 2 * _PAIRS and in_host_memory(device):  # one piece, which nobody shares out
            (room,) = self._rooms_for(1, _pairs_for(count), wide)
            numbers = self._standard_normal(device, stream, 0, count, wide, room)
            torch._foreach_add_([total.view(-1) for total in sums], numbers.split(sizes), alpha=std)
            return
        places, length = cut or Cut(tuple(accumulate(sizes, initial=0))[:-1], count)
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

        def fill(share: Sequence[_Piece], room: _Room) -> None:
            for piece in share:
                numbers = self._standard_normal(device, stream, piece.index, piece.count, wide, room)
                piece.add(numbers, std, alone=len(shares) == 1)

        if len(shares) == 1:
            fill(pieces, rooms[0])
            return
        inference = torch.is_inference_mode_enabled()

        def work(share: Sequence[_Piece], room: _Room) -> None:
            with torch.inference_mode(inference):  # a thread begins without
                fill(share, room)

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
            words = Stream(self._key, device, **where, block=index * _PAIRS_ON_DEVICE * _WORDS_ON_DEVICE // WORDS)
            made = _made_on_device(words, wide, _pairs_for(count))
        else:
            made = room.next(self._key.segment(**where, segment=index), _pairs_for(count))
        return made[:count]

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
    """What a `_Room` gives, of words that were made where they are needed: 64 bits for every radius, and no look at any."""
    words = stream.words(_WORDS_ON_DEVICE * pairs)
    made = torch.empty(4, pairs, dtype=wide, device=words.device)
    made[0], made[1] = words[: 2 * pairs].view(torch.int64), words[2 * pairs : 3 * pairs]
    u, angle, even, odd = made
    # -2 log |u|, as -log u^2, of u in [-1, 1] with as many digits near 0 (the tail) as elsewhere. u^2 is in no danger: 2^-126,
    # which stands for the one u that is 0, is the least that float32 holds with all its digits.
    u.mul_(2.0**-63)
    u.mul_(u).add_(2.0**-126).log_().neg_().sqrt_()
    angle.mul_(math.pi * 2.0**-31)
    torch.cos(angle, out=even)
    torch.sin(angle, out=odd)
    even.mul_(u)
    odd.mul_(u)
    return made[2:].flatten()


def _pairs_for(count: int) -> int:
    return -(-count // 2)
