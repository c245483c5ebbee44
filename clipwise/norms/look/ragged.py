"""Arguments of a model whose records have no dimension of their own: a PackedSequence, and one long list of tokens with the places
where each record's begin (`nn.EmbeddingBag` with offsets).

What such an argument is cannot be told by its shape. A PackedSequence says it by its type; a list of tokens and its offsets
are told by what reaches the model's bags when it is called, not by their values. Both can then be taken apart into
records and put together from others, which is what a look at the model needs (small_batch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence
from torch.utils._pytree import tree_flatten

Row = Callable[[Tensor, Tensor], Tensor]  # one row (1, ...), made from the first two of the batch


class Packed:
    """How a PackedSequence is cut to a few records."""

    def made(self, x: PackedSequence, rows: Sequence[Row], tame: Callable[[Tensor], Tensor]) -> PackedSequence:
        padded, lengths = pad_packed_sequence(x, batch_first=True)
        own = [tame(padded[i : i + 1, : int(n)].detach()) for i, n in enumerate(lengths[:2])]
        return pack_sequence([r.squeeze(0) for r in _rows(own, rows, differ=True)], enforce_sorted=False)


class Bags(NamedTuple):
    """How one list of all records' values (`starts` None), or the list of where each record's begin, is cut to a few records."""

    bounds: tuple[int, ...]  # of the first two records, or of the one that there is
    starts: int | None  # entries of `starts` beyond one a record: 1 where the last is the end of all
    differ: bool  # whether the records may be made differently long: no other argument tells how long they are

    @property
    def few(self) -> bool:
        """A record without a token shows nothing of the model."""
        return any(a == b for a, b in zip(self.bounds, self.bounds[1:], strict=False))

    def made(self, x: Tensor, rows: Sequence[Row], tame: Callable[[Tensor], Tensor]) -> Tensor:
        ends = zip(self.bounds, self.bounds[1:], strict=False)
        if self.starts is None:
            return torch.cat(_rows([tame(x[a:b].detach()).unsqueeze(0) for a, b in ends], rows, differ=self.differ), 1)[
                0
            ]
        sizes = [torch.zeros(1, b - a) for a, b in ends]
        lengths = [r.shape[1] for r in _rows(sizes, rows, differ=self.differ)]
        places = torch.tensor([0, *lengths]).cumsum(0)
        return places[: len(rows) + self.starts].to(x)


Cut = int | Packed | Bags | None  # the dimension of the rows of an argument, or what cuts it; None: it is left whole


def _rows(own: list[Tensor], rows: Sequence[Row], *, differ: bool) -> list[Tensor]:
    """(1, length, ...) each. With `differ` the two records that they are made from have not the same length, so that what a model does
    with the longest of a batch shows."""
    a = own[0]
    b = own[1] if len(own) > 1 else a.flip(1)
    if differ and a.shape[1] == b.shape[1] > 1:
        b = b[:, :-1]
    return [b if row.__name__ == "second" else row(a, a) for row in rows]


def leaves_of(tree: Any) -> tuple[list[Any], Any]:
    """As `tree_flatten`, but a PackedSequence is one leaf."""
    return tree_flatten(tree, is_leaf=lambda x: isinstance(x, PackedSequence))


def has_packed(tree: Any) -> bool:
    return any(isinstance(x, PackedSequence) for x in leaves_of(tree)[0])


def bags_of(model: nn.Module, call: Callable[[], Any], leaves: Sequence[Any], rows: int) -> dict[int, Bags]:
    """What cuts those arguments (by their place in `leaves`) that reach a bag as tokens, weights or offsets. `call` runs the model."""
    flat = [x for x in leaves if isinstance(x, Tensor) and x.dim() == 1]
    bags = [m for m in model.modules() if isinstance(m, nn.EmbeddingBag)] if flat else []
    found: dict[int, Bags] = {}

    def see(module: nn.EmbeddingBag, args: Any, kwargs: Any) -> None:
        given = dict(zip(("input", "offsets", "per_sample_weights"), args, strict=False)) | kwargs
        offsets, more = given.get("offsets"), int(module.include_last_offset)
        if offsets is None or offsets.shape != (rows + more,):
            return
        ends = [*offsets[:3].tolist(), len(given["input"])][: min(rows, 2) + 1]
        told = _place(offsets, leaves)
        for name, x in given.items():
            place = None if x is None else _place(x, leaves)
            if place is not None:
                found[place] = Bags(tuple(ends), more if name == "offsets" else None, told is not None)

    hooks = [m.register_forward_pre_hook(see, with_kwargs=True) for m in bags]
    try:
        if bags:
            call()
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _place(x: Tensor, leaves: Sequence[Any]) -> int | None:
    """Which of the arguments this is, itself or as a view of the whole."""
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.data_ptr() == x.data_ptr() and leaf.shape == x.shape and len(x):
            return i
    return None
