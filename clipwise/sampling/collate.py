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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, default_collate

from clipwise import validate
from clipwise.randomness import Calm, held, seed_all
from clipwise.types import BadArgument, Padding, Unsupported

RECORDS = 8  # that are looked at: spread over the data set, which may be sorted
_SEEDS = 4  # of the random draws that a collate function may make, each tried with every record first
Collate = Callable[[list[Any]], Any]
Path = tuple[Any, ...]


class Padded(NamedTuple):
    """A tensor of the batch whose size in some dimensions is that of the longest record."""

    path: Path
    rows: int  # its dimension of records
    dims: tuple[int, ...]
    fill: float | int | bool


@dataclass(frozen=True)
class Layout:
    """What is known of a collate function's batches."""

    padded: tuple[Padded, ...] = ()
    lengths: tuple[Path, ...] = ()  # tensors of one number a record: its own length
    leading: bool = False  # padded on the left
    shapes: Mapping[Path, tuple[int, torch.Size]] = field(
        default_factory=dict
    )  # of others: dimension of rows, a batch's shape

    def sizes(self, batch: Any) -> tuple[int, ...]:
        """Of the dimensions that follow the longest record, in this batch."""
        found = (_tensor(_get(batch, path)).shape[dim] for path, _, dims, _ in self.padded for dim in dims)
        return tuple(dict.fromkeys(found))

    def padding(self, batch: Any) -> Padding | None:
        """Of the row that is padded most; None where no row is padded."""
        self._refuse_other_shapes(batch)
        own: dict[int, Tensor] = {}  # length of the batch -> (rows,) of each record
        for path, rows, dims, fill in self.padded:
            x = _tensor(_get(batch, path)).movedim(rows, 0)
            for dim in dims:
                of_row = x.movedim(dim if dim > rows else dim + 1, 1).flatten(2) if x.dim() > 2 else x.unsqueeze(2)
                real = _real_lengths(_is(of_row, fill).all(2), leading=self.leading)
                size = of_row.shape[1]
                own[size] = torch.maximum(own[size], real) if size in own else real
        for path in self.lengths:
            told = _tensor(_get(batch, path)).flatten()
            own = {size: torch.maximum(real, told.to(real).clamp(max=size)) for size, real in own.items()}
        if not own or all(bool((real == size).all()) for size, real in own.items()):
            return None
        row = int(torch.stack([size - real for size, real in own.items()]).sum(0).argmax())
        return Padding(row, {size: int(real[row]) for size, real in own.items()}, self.leading)

    def _refuse_other_shapes(self, batch: Any) -> None:
        for path, (rows, shape) in self.shapes.items():
            now = _tensor(_get(batch, path)).shape
            if len(now) != len(shape) or any(
                a != b for d, (a, b) in enumerate(zip(now, shape, strict=True)) if d != rows
            ):
                raise Unsupported(
                    f"loader: {_name(path)} of a batch has another shape than when the collate function was looked at: it seems to follow its "
                    "longest record, and whether that matters to the model was not asked. Give attach(..., pad_to=LENGTH)"
                )


def _real_lengths(is_fill: Tensor, *, leading: bool) -> Tensor:
    """(rows,): how much of each row (rows, T) is not padding at the end."""
    real = (~is_fill).flip(1) if not leading else ~is_fill
    length = is_fill.shape[1]
    return torch.where(real.any(1), length - real.int().argmax(1), 0)


def _is(x: Tensor, fill: Any) -> Tensor:
    return x.isnan() if fill != fill else x == fill


# -- the look ---------------------------------------------------------------------------------------------------------


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
    found = _Found()
    alone = {i: source.batch([i], calm=not steady) for i in every}
    sets = [every, every[::-1], every[:3], *([i, i + 1] for i in every[:-1])]
    if steady:
        for which in sets:
            _compare(found, (), source.batch(which), [alone[i] for i in which], every_row=True)
    else:
        # What is drawn for a row hangs on what was drawn before it: each record is put first, with the seed as it is alone.
        for seed in range(_SEEDS):
            for i in every:
                which = [*every[i:], *every[:i]]
                one = source.batch([i], seed=seed, calm=True)
                others = [alone[j] for j in which[1:]]
                _compare(found, (), source.batch(which, seed=seed, calm=True), [one, *others], every_row=False)
    if steady and not found.padded:
        _learn_from_cut_records(found, source)
    return found.layout(source.batch(every, calm=not steady), alone)


def _learn_from_cut_records(found: _Found, source: _Source) -> None:
    """The records looked at are equally long; would shorter ones be padded?"""
    whole = source.records([0])[0]
    for cut in _cut_records(whole):
        with suppress(Exception):  # no such record, perhaps
            tried = _Found()
            pair = [copy.deepcopy(whole), copy.deepcopy(cut)]
            alone = [source.collate([copy.deepcopy(r)]) for r in pair]
            _compare(tried, (), source.collate(pair), alone, every_row=True)
            for path, (rows, dims, fill) in tried.padded.items():
                found.padded.setdefault(path, (rows, set(), fill))[1].update(dims)
            found.leading |= tried.leading
            found.cut += [alone[1]]


def _cut_records(record: Any) -> Iterator[Any]:
    """Copies of the record with its sequences cut: all of one length together, then each dimension alone."""
    places = [
        (path, leaf, dim)
        for path, leaf in _leaves(record, rows=True)
        for dim, size in enumerate(_sizes(leaf))
        if size > 1
    ]
    for size in sorted({_sizes(leaf)[dim] for _, leaf, dim in places}, reverse=True):
        group = [place for place in places if _sizes(place[1])[place[2]] == size]
        for chosen in [group, *([place] for place in group if len(group) > 1)]:
            cut = copy.deepcopy(record)
            for path, _, dim in chosen:
                half, leaf = slice((size + 1) // 2), _get(cut, path)
                cut = _put(cut, path, leaf[(slice(None),) * dim + (half,)] if dim else leaf[half])
            yield cut


def _sizes(leaf: Any) -> tuple[int, ...]:
    if isinstance(leaf, Tensor | np.ndarray):
        return tuple(leaf.shape)
    return (len(leaf),) if isinstance(leaf, str | list | tuple) else ()


class _Found:
    """What the comparisons have shown."""

    def __init__(self) -> None:
        self.padded: dict[Path, tuple[int, set[int], Any]] = {}  # rows, dims, fill
        self.rows: dict[Path, int] = {}
        self.leading = False
        self.cut: list[Any] = []  # batches of one record each that was cut

    def layout(self, batch: Any, alone: Mapping[int, Any]) -> Layout:
        padded = tuple(
            Padded(path, rows, tuple(sorted(dims)), fill) for path, (rows, dims, fill) in self.padded.items()
        )
        shapes = {
            path: (rows, _tensor(_get(batch, path)).shape)
            for path, rows in self.rows.items()
            if path not in self.padded
        }
        lengths = [path for path in shapes if _holds_lengths(path, padded, [*alone.values(), *self.cut])]
        return Layout(padded, tuple(lengths), self.leading, shapes)


def _holds_lengths(path: Path, padded: Sequence[Padded], alone: Sequence[Any]) -> bool:
    told = [_tensor(_get(batch, path)) for batch in alone]
    if any(t.numel() != 1 or t.is_floating_point() or t.dtype == torch.bool for t in told):
        return False
    values = [int(t) for t in told]
    for p in padded:
        own = [_tensor(_get(batch, p.path)).shape[p.dims[0]] for batch in alone]
        if len(set(own)) > 1 and values == own:
            return True
    return False


# -- one batch against its records alone --------------------------------------------------------------------------------


def _compare(found: _Found, path: Path, whole: Any, alone: list[Any], *, every_row: bool) -> None:
    """`whole` is a part of a batch of len(alone) records; `alone` the same part of each record's own batch."""
    count = len(alone)
    if isinstance(whole, PackedSequence):
        raise Unsupported(
            f"loader: {_name(path)} is a PackedSequence, whose rows cannot be told apart; let collate return the padded batch and its lengths, "
            "and pack it in the model's forward, with enforce_sorted=False"
        )
    if any(type(each) is not type(whole) for each in alone):
        raise _refusal(path, "is of another type for one record than for several")
    if isinstance(whole, Tensor | np.ndarray):
        _compare_tensors(found, path, _tensor(whole), [_tensor(each) for each in alone], every_row=every_row)
    elif (children := _children(whole)) is not None:
        keys = [k for k, _ in children]
        if isinstance(whole, list | tuple) and len(whole) == count != 1 and all(len(each) == 1 for each in alone):
            for i, each in enumerate(alone if every_row else alone[:1]):
                if not same(whole[i], each[0]):
                    raise _refusal((*path, ("item", i)), "is not what its record gives alone")
            return
        if any([k for k, _ in _children(each) or []] != keys for each in alone):
            raise _refusal(path, "has other parts for one record than for several")
        for key, child in children:
            _compare(found, (*path, key), child, [_step(each, key) for each in alone], every_row=every_row)
    elif not all(same(whole, each) for each in alone) and not (
        type(whole) is int and whole == count and all(each == 1 for each in alone)
    ):
        raise _refusal(path, "is no row of a record, and changes with the records")


def _compare_tensors(found: _Found, path: Path, whole: Tensor, alone: list[Tensor], *, every_row: bool) -> None:
    count = len(alone)
    dims = [
        d
        for d in range(whole.dim())
        if whole.shape[d] == count and all(each.dim() == whole.dim() and each.shape[d] == 1 for each in alone)
    ]
    if not dims:
        if all(same(whole, each) for each in alone):
            return
        raise _refusal(path, "has no dimension in which its rows are the records (one row each), and changes with them")
    problem: Unsupported | None = None
    for d in dims:  # more than one where a length is 1 and the number of records by chance
        try:
            pads = [
                _padding_of(path, whole.select(d, i), each.select(d, 0))
                for i, each in enumerate(alone)
                if every_row or i == 0
            ]
        except Unsupported as error:
            problem = problem or error
            continue
        found.rows[path] = d
        for pad in pads:
            _note(found, path, d, pad)
        return
    if every_row and count > 1 and _is_permuted(whole, alone, dims[0]):
        raise _refusal(
            path,
            "holds the records in another order than they came in (sorted by length?); leave them in order, and pack sequences with "
            "enforce_sorted=False",
        )
    raise problem or _refusal(path, "cannot be compared")


class _Pad(NamedTuple):
    dims: tuple[int, ...]  # of the row
    fill: Any
    leading: bool


def _padding_of(path: Path, row: Tensor, own: Tensor) -> _Pad | None:
    """How a row of the batch differs from what its record gives alone; None if it does not."""
    if same(row, own):
        return None
    dims = tuple(d for d in range(row.dim()) if row.shape[d] != own.shape[d])
    if dims and all(row.shape[d] > own.shape[d] for d in dims):
        for leading in (False, True):
            inside = row
            for d in dims:
                inside = inside.narrow(d, row.shape[d] - own.shape[d] if leading else 0, own.shape[d])
            rest = torch.ones(row.shape, dtype=torch.bool)
            place = rest
            for d in dims:
                place = place.narrow(d, row.shape[d] - own.shape[d] if leading else 0, own.shape[d])
            place.fill_(False)
            outside = row[rest]
            if same(inside, own) and bool(_is(outside, outside[0].item()).all()):
                return _Pad(dims, outside[0].item(), leading)
    raise _refusal(
        path,
        "has rows that are not what their records give alone, up to padding at one end: they change with the other records",
    )


def _note(found: _Found, path: Path, rows: int, pad: _Pad | None) -> None:
    if pad is None:
        return
    dims = {d if d < rows else d + 1 for d in pad.dims}
    known = found.padded.setdefault(path, (rows, set(), pad.fill))
    known[1].update(dims)
    if not same(known[2], pad.fill):
        raise _refusal(path, "is padded with a value that changes with the records")
    found.leading |= pad.leading


def _is_permuted(whole: Tensor, alone: list[Tensor], d: int) -> bool:
    def fits(i: int, each: Tensor) -> bool:
        with suppress(Unsupported):
            _padding_of((), whole.select(d, i), each.select(d, 0))
            return True
        return False

    return all(any(fits(i, each) for i in range(len(alone))) for each in alone)


def _refusal(path: Path, what: str) -> Unsupported:
    return Unsupported(
        f"loader: collate_fn does not keep records apart: {_name(path)} of a batch {what}. One record's influence could not be bounded. Let "
        "collate only stack and pad; mix, standardise by public numbers or draw at random in the data set's __getitem__, or in the model"
    )


# -- parts of a batch -----------------------------------------------------------------------------------------------------


def _children(value: Any) -> list[tuple[Any, Any]] | None:
    """(step, part) for what a container holds; None for a leaf."""
    if isinstance(value, Mapping):
        return [(("key", k), v) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return [(("item", i), v) for i, v in enumerate(value)]
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict) and own and not callable(value) and not isinstance(value, Tensor):
        return [(("attribute", k), v) for k, v in own.items()]
    return None


def _leaves(value: Any, path: Path = (), *, rows: bool = False) -> Iterator[tuple[Path, Any]]:
    """Every leaf; with `rows`, a list of numbers is one."""
    numbers = (
        rows and isinstance(value, list | tuple) and bool(value) and all(isinstance(v, int | float) for v in value)
    )
    children = None if numbers else _children(value)
    if children is None:
        yield path, value
    for key, child in children or []:
        yield from _leaves(child, (*path, key), rows=rows)


def _step(value: Any, key: Any) -> Any:
    kind, name = key
    return getattr(value, name) if kind == "attribute" else value[name]


def _get(value: Any, path: Path) -> Any:
    for key in path:
        value = _step(value, key)
    return value


def _put(value: Any, path: Path, leaf: Any) -> Any:
    """The value with another leaf: changed in place where that can be, made anew where not (a tuple)."""
    if not path:
        return leaf
    (kind, name), *rest = path
    child = _put(_step(value, path[0]), tuple(rest), leaf)
    if kind == "attribute":
        setattr(value, name, child)
    elif isinstance(value, tuple):
        parts = [child if i == name else v for i, v in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    else:
        value[name] = child
    return value


def map_tensors(make: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """A batch of the same layout with other tensors."""
    made = copy.copy(batch)
    if isinstance(batch, Tensor):
        return make(batch)
    if isinstance(batch, np.ndarray) and batch.dtype.kind in "biuf":
        return make(torch.from_numpy(batch)).numpy()
    for key, child in _children(batch) or []:
        made = _put(made, (key,), map_tensors(make, child))
    return made


def _tensor(x: Any) -> Tensor:
    if isinstance(x, np.ndarray):
        return torch.from_numpy(x) if x.dtype.kind in "biufc" else torch.zeros(x.shape)
    dense: Tensor = x.detach().to_dense() if x.layout != torch.strided else x.detach()
    return dense


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit; NaN is NaN."""
    if isinstance(a, Tensor | np.ndarray) and isinstance(b, Tensor | np.ndarray):
        if isinstance(a, np.ndarray) and a.dtype.kind not in "biufc":
            return isinstance(b, np.ndarray) and np.array_equal(a, b)
        a, b = _tensor(a), _tensor(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
    if type(a) is not type(b):
        return False
    one, other = _children(a), _children(b)
    if one is not None and other is not None:
        return [k for k, _ in one] == [k for k, _ in other] and all(
            same(v, w) for (_, v), (_, w) in zip(one, other, strict=True)
        )
    return bool(a == b) or (isinstance(a, float) and a != a and b != b)


def _name(path: Path) -> str:
    shown = "".join(f".{name}" if kind == "attribute" else f"[{name!r}]" for kind, name in path)
    return f"batch{shown}" if shown else "the whole"


# -- a public length --------------------------------------------------------------------------------------------------


class PadTo:
    """A collate function whose batches are as long as a public number says. Made by `pad_to`."""

    def __init__(self, collate: Collate, length: int, layout: Layout | None = None):
        self._collate, self._length, self._layout = collate, length, layout

    def __call__(self, records: list[Any]) -> Any:
        if self._layout is None:
            self._layout = self._learned(records)
        batch = self._collate(records)
        for path, _, dims, fill in self._layout.padded:
            x = _get(batch, path)
            resized = _tensor(x)
            for dim in dims:
                resized = self._resized(resized, dim, fill)
            batch = _put(batch, path, resized.numpy() if isinstance(x, np.ndarray) else resized)
        for path in self._layout.lengths:
            x = _get(batch, path)
            batch = _put(
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
