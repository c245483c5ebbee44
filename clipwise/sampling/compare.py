"""One batch against what each of its records gives alone: rows must be equal, but for constant padding at one end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from clipwise.sampling.layout import Layout, Padded, is_fill
from clipwise.sampling.parts import Path, children, get, name_of, same, step_into, tensor
from clipwise.types import Unsupported


class Found:
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
            path: (rows, tensor(get(batch, path)).shape) for path, rows in self.rows.items() if path not in self.padded
        }
        lengths = [path for path in shapes if _holds_lengths(path, padded, [*alone.values(), *self.cut])]
        return Layout(padded, tuple(lengths), self.leading, shapes)


def _holds_lengths(path: Path, padded: Sequence[Padded], alone: Sequence[Any]) -> bool:
    told = [tensor(get(batch, path)) for batch in alone]
    if any(t.numel() != 1 or t.is_floating_point() or t.dtype == torch.bool for t in told):
        return False
    values = [int(t) for t in told]
    for p in padded:
        own = [tensor(get(batch, p.path)).shape[p.dims[0]] for batch in alone]
        if len(set(own)) > 1 and values == own:
            return True
    return False


def compare(found: Found, path: Path, whole: Any, alone: list[Any], *, every_row: bool) -> None:
    """`whole` is a part of a batch of len(alone) records; `alone` the same part of each record's own batch."""
    count = len(alone)
    if isinstance(whole, PackedSequence):
        raise Unsupported(
            f"loader: {name_of(path)} is a PackedSequence, whose rows cannot be told apart; let collate return the padded batch and its lengths, "
            "and pack it in the model's forward, with enforce_sorted=False"
        )
    if any(type(each) is not type(whole) for each in alone):
        raise _refusal(path, "is of another type for one record than for several")
    if isinstance(whole, Tensor | np.ndarray):
        _compare_tensors(found, path, tensor(whole), [tensor(each) for each in alone], every_row=every_row)
    elif (inside := children(whole)) is not None:
        keys = [k for k, _ in inside]
        if isinstance(whole, list | tuple) and len(whole) == count != 1 and all(len(each) == 1 for each in alone):
            for i, each in enumerate(alone if every_row else alone[:1]):
                if not same(whole[i], each[0]):
                    raise _refusal((*path, ("item", i)), "is not what its record gives alone")
            return
        if any([k for k, _ in children(each) or []] != keys for each in alone):
            raise _refusal(path, "has other parts for one record than for several")
        for key, child in inside:
            compare(found, (*path, key), child, [step_into(each, key) for each in alone], every_row=every_row)
    elif not all(same(whole, each) for each in alone) and not (
        type(whole) is int and whole == count and all(each == 1 for each in alone)
    ):
        raise _refusal(path, "is no row of a record, and changes with the records")


def _compare_tensors(found: Found, path: Path, whole: Tensor, alone: list[Tensor], *, every_row: bool) -> None:
    count = len(alone)
    dims = [
        d
        for d in range(whole.dim())
        if whole.shape[d] == count and all(each.dim() == whole.dim() and each.shape[d] == 1 for each in alone)
    ]
    if not dims:
        if all(same(whole, each) for each in alone):
            return
        if whole.dim() and len(whole) == sum(len(each) for each in alone if each.dim()) and count > 1:
            raise _refusal(
                path,
                "has no dimension in which its rows are the records: it is one list of all their values (for an EmbeddingBag with offsets?). Let collate "
                "pad them to rows and give their lengths, and make the list in the model's forward; or give the bag the rows, with a padding_idx",
            )
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
            if same(inside, own) and bool(is_fill(outside, outside[0].item()).all()):
                return _Pad(dims, outside[0].item(), leading)
    raise _refusal(
        path,
        "has rows that are not what their records give alone, up to padding at one end: they change with the other records",
    )


def _note(found: Found, path: Path, rows: int, pad: _Pad | None) -> None:
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
        f"loader: collate_fn does not keep records apart: {name_of(path)} of a batch {what}. One record's influence could not be bounded. Let "
        "collate only stack and pad; mix, standardise by public numbers or draw at random in the data set's __getitem__, or in the model"
    )
