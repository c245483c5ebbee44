"""What is known of a collate function's batches: which tensors are padded to the longest record, where and with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clipwise.sampling.parts import Path, get, name_of, tensor
from clipwise.types import Padding, Unsupported


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
        found = (tensor(get(batch, path)).shape[dim] for path, _, dims, _ in self.padded for dim in dims)
        return tuple(dict.fromkeys(found))

    def padding(self, batch: Any) -> Padding | None:
        """Of the row that is padded most; None where no row is padded."""
        self._refuse_other_shapes(batch)
        own: dict[int, Tensor] = {}  # length of the batch -> (rows,) of each record
        for path, rows, dims, fill in self.padded:
            x = tensor(get(batch, path)).movedim(rows, 0)
            for dim in dims:
                of_row = x.movedim(dim if dim > rows else dim + 1, 1).flatten(2) if x.dim() > 2 else x.unsqueeze(2)
                real = _real_lengths(is_fill(of_row, fill).all(2), leading=self.leading)
                size = of_row.shape[1]
                own[size] = torch.maximum(own[size], real) if size in own else real
        for path in self.lengths:
            told = tensor(get(batch, path)).flatten()
            own = {size: torch.maximum(real, told.to(real).clamp(max=size)) for size, real in own.items()}
        if not own or all(bool((real == size).all()) for size, real in own.items()):
            return None
        row = int(torch.stack([size - real for size, real in own.items()]).sum(0).argmax())
        return Padding(row, {size: int(real[row]) for size, real in own.items()}, self.leading)

    def _refuse_other_shapes(self, batch: Any) -> None:
        for path, (rows, shape) in self.shapes.items():
            now = tensor(get(batch, path)).shape
            if len(now) != len(shape) or any(
                a != b for d, (a, b) in enumerate(zip(now, shape, strict=True)) if d != rows
            ):
                raise Unsupported(
                    f"loader: {name_of(path)} of a batch has another shape than when the collate function was looked at: it seems to follow its "
                    "longest record, and whether that matters to the model was not asked. Give attach(..., pad_to=LENGTH)"
                )


def _real_lengths(filled: Tensor, *, leading: bool) -> Tensor:
    """(rows,): how much of each row (rows, T) is not padding at the end."""
    real = (~filled).flip(1) if not leading else ~filled
    length = filled.shape[1]
    return torch.where(real.any(1), length - real.int().argmax(1), 0)


def is_fill(x: Tensor, fill: Any) -> Tensor:
    return x.isnan() if fill != fill else x == fill
