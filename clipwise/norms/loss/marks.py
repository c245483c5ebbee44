"""Marks on the graph: where the values stand that a batch's loss is a function of.

A mark is kept in the autograd node's own metadata, so that it lives exactly as long as the graph, and nothing else has to
hold the graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

_KEY = "clipwise: rows"
_HOOK = "clipwise: a hook"
_WORDS = "clipwise: words"


class Mark(NamedTuple):
    batch: Any  # the Pass that it belongs to
    dim: int | None  # where its rows are; None: they are not in one place


def mark(value: Tensor, batch: Any, dim: int | None) -> None:
    """`value` is an output of the model, or of one of its taps."""
    node = value.grad_fn
    if node is not None:
        marks = node.metadata.setdefault(_KEY, {})  # type: ignore[attr-defined]
        marks.setdefault(value.output_nr, Mark(batch, dim))  # the first is the deepest: a tap that is an output too


def marks_of(node: Any) -> dict[int, Mark]:
    marks: dict[int, Mark] = node.metadata.get(_KEY, _NONE)
    return marks


def mark_hook(value: Tensor) -> None:
    """A hook on the gradient of `value`: nothing tells what it does."""
    if value.grad_fn is not None:
        value.grad_fn.metadata[_HOOK] = True  # type: ignore[index]


def has_hook(node: Any) -> bool:
    return _HOOK in node.metadata


def say_of_loss(value: Tensor, words: str) -> None:
    """What the privacy statement is to say of a loss that this value has a part in."""
    if value.grad_fn is not None:
        value.grad_fn.metadata[_WORDS] = words  # type: ignore[index]


def words_of(node: Any) -> str | None:
    words: str | None = node.metadata.get(_WORDS)
    return words


_NONE: dict[int, Mark] = {}
