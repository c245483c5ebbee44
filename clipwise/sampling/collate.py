"""Does the user's collate function keep records apart, and what does it pad?

It is run on a few records together and on each of them alone. Every row of a batch must be, number for number, what its
record gives alone, but for constant padding at one end; everything else in a batch must be the same whatever the records
are. So mixing records, standardising over the batch or sorting it are found before training. Records are fetched once, so
that a random data set does not matter; where collate itself is random, what it draws is held alike (randomness.py).

Only acceptance or refusal comes of it: no value of a record is kept or shown. Shown for the records that were tried, not
for all: what a data set makes of *its own* index (a mix of two records in `__getitem__`) is not seen here.

`pad_to` makes every batch of a padding collate function as long as a public number says.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from clipwise import validate
from clipwise.randomness import Calm, held, seed_all
from clipwise.sampling.compare import Found, compare
from clipwise.sampling.layout import Layout
from clipwise.sampling.parts import get, leaves, put, same, tensor
from clipwise.types import BadArgument, Unsupported

RECORDS = 8  # that are looked at: spread over the data set, which may be sorted
_SEEDS = 4  # of the random draws that a collate function may make, each tried with every record first
Collate = Callable[[list[Any]], Any]


def check_collate(loader: DataLoader[Any], *, pad_to: int | None = None) -> tuple[Collate, Layout]:
    """The collate function to be used and what is known of its batches, after refusing one that mixes records."""
    if pad_to is not None:
        validate.count("pad_to", pad_to)
    collate, dataset = loader.collate_fn, loader.dataset
    several = getattr(dataset, "__getitems__", None)
    if collate is default_collate and several is None and pad_to is None:
        return collate, Layout()  # stacks records, and fails where they differ in shape
    with held():
        source = _Source(dataset, collate, size=len(dataset))  # type: ignore[arg-type]
        layout = _look(source)
        if pad_to is None:
            return collate, layout
        if not layout.padded:
            raise BadArgument(
                f"pad_to={pad_to}: no tensor of a batch was found to follow the length of its records; leave pad_to out, or pad in "
                "the data set"
            )
        padded = PadTo(collate, pad_to, layout)
        source.collate = padded
        return padded, _look(source)


def stacked(records: list[Any]) -> Any:
    """torch's own collate function, with a word on records that it cannot stack."""
    try:
        return default_collate(records)
    except RuntimeError as error:
        if "equal size" not in str(error):
            raise
    raise BadArgument(  # outside the handler: torch's own message tells the lengths of records
        "loader: its records differ in shape, and torch's own collate function only stacks them; pad them to one public length in the data "
        "set, or give the DataLoader a collate_fn that pads (see clipwise.pad_to)"
    )


class _Source:
    """Batches of some of the records, by their numbers 0, 1, ..."""

    def __init__(self, dataset: Any, collate: Collate, *, size: int):
        count = min(RECORDS, size)
        self._index = [round(i * (size - 1) / max(1, count - 1)) for i in range(count)] * (1 if count > 1 else 2)
        self._several = getattr(dataset, "__getitems__", None)
        self._records = None if self._several else [dataset[i] for i in self._index]
        self.collate = collate
        self.count = len(self._index)

    def records(self, which: Sequence[int]) -> list[Any]:
        # Copies: collate functions take things out of records.
        if self._records is not None:
            return [copy.deepcopy(self._records[i]) for i in which]
        return list(self._several([self._index[i] for i in which]))  # type: ignore[misc]

    def batch(self, which: Sequence[int], *, seed: int = 0, calm: bool = False) -> Any:
        seed_all(seed)
        with Calm(reverse=True) if calm else nullcontext():
            return self.collate(self.records(which))


def _look(source: _Source) -> Layout:
    every = list(range(source.count))
    steady = all(same(source.batch(which), source.batch(which, seed=1)) for which in ([0], every))
    found = Found()
    alone = {i: source.batch([i], calm=not steady) for i in every}
    sets = [every, every[::-1], every[:3], *([i, i + 1] for i in every[:-1])]
    if steady:
        for which in sets:
            compare(found, (), source.batch(which), [alone[i] for i in which], every_row=True)
    else:
        # What is drawn for a row hangs on what was drawn before it: each record is put first, with the seed as it is alone.
        for seed in range(_SEEDS):
            for i in every:
                which = [*every[i:], *every[:i]]
                one = source.batch([i], seed=seed, calm=True)
                others = [alone[j] for j in which[1:]]
                compare(found, (), source.batch(which, seed=seed, calm=True), [one, *others], every_row=False)
    if steady and not found.padded:
        _learn_from_cut_records(found, source)
    return found.layout(source.batch(every, calm=not steady), alone)


def _learn_from_cut_records(found: Found, source: _Source) -> None:
    """The records looked at are equally long; would shorter ones be padded?"""
    whole = source.records([0])[0]
    for cut in _cut_records(whole):
        with suppress(Exception):  # no such record, perhaps
            tried = Found()
            pair = [copy.deepcopy(whole), copy.deepcopy(cut)]
            alone = [source.collate([copy.deepcopy(r)]) for r in pair]
            compare(tried, (), source.collate(pair), alone, every_row=True)
            for path, (rows, dims, fill) in tried.padded.items():
                found.padded.setdefault(path, (rows, set(), fill))[1].update(dims)
            found.leading |= tried.leading
            found.cut += [alone[1]]


def _cut_records(record: Any) -> Iterator[Any]:
    """Copies of the record with its sequences cut: all of one length together, then each dimension alone."""
    places = [
        (path, leaf, dim)
        for path, leaf in leaves(record, rows=True)
        for dim, size in enumerate(_sizes(leaf))
        if size > 1
    ]
    for size in sorted({_sizes(leaf)[dim] for _, leaf, dim in places}, reverse=True):
        group = [place for place in places if _sizes(place[1])[place[2]] == size]
        for chosen in [group, *([place] for place in group if len(group) > 1)]:
            cut = copy.deepcopy(record)
            for path, _, dim in chosen:
                half, leaf = slice((size + 1) // 2), get(cut, path)
                cut = put(cut, path, leaf[(slice(None),) * dim + (half,)] if dim else leaf[half])
            yield cut


def _sizes(leaf: Any) -> tuple[int, ...]:
    if isinstance(leaf, Tensor | np.ndarray):
        return tuple(leaf.shape)
    return (len(leaf),) if isinstance(leaf, str | list | tuple) else ()


class PadTo:
    """A collate function whose batches are as long as a public number says. Made by `pad_to`."""

    def __init__(self, collate: Collate, length: int, layout: Layout | None = None):
        self._collate, self._length, self._layout = collate, length, layout

    def __call__(self, records: list[Any]) -> Any:
        if self._layout is None:
            self._layout = self._learned(records)
        batch = self._collate(records)
        for path, _, dims, fill in self._layout.padded:
            x = get(batch, path)
            resized = tensor(x)
            for dim in dims:
                resized = self._resized(resized, dim, fill)
            batch = put(batch, path, resized.numpy() if isinstance(x, np.ndarray) else resized)
        for path in self._layout.lengths:
            x = get(batch, path)
            batch = put(
                batch, path, x.clip(max=self._length) if isinstance(x, np.ndarray) else x.clamp(max=self._length)
            )
        return batch

    def _resized(self, x: Tensor, dim: int, fill: Any) -> Tensor:
        more, leading = self._length - x.shape[dim], self._layout is not None and self._layout.leading
        if more <= 0:
            return x.narrow(dim, -more if leading else 0, self._length)
        extra = x.new_full((*x.shape[:dim], more, *x.shape[dim + 1 :]), fill)
        return torch.cat([extra, x] if leading else [x, extra], dim)

    def _learned(self, records: list[Any]) -> Layout:
        """From a batch itself, whose records may be equally long: copies of the first that are cut show what is padded."""
        with held():
            layout = _look(_Source([*records[:RECORDS]], self._collate, size=len(records[:RECORDS])))
        if not layout.padded:
            raise Unsupported(
                f"pad_to(collate, {self._length}): no tensor of a batch was found to follow the length of its records; pad in the data set"
            )
        return layout


def pad_to(collate: Collate, length: int) -> PadTo:
    """The collate function, with every batch padded to `length` (or cut: longer records lose what is beyond).

    `length` is a public number: not the length of the longest record. What is padded, in which dimension and with which
    value, is learned from what `collate` does to records of different lengths; a tensor that holds each record's length is
    cut to `length` with it.
    """
    if not callable(collate):
        raise BadArgument(f"collate={collate!r} is not a function; give the DataLoader's collate_fn")
    validate.count("length", length)
    return PadTo(collate, length)
