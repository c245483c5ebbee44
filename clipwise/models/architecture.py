"""What an architecture has to say of itself: a name, a sentence, and how it is built for records of a shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Architecture:
    """`build(shape, classes)` gives the module (one row of logits a record), or refuses the shape by BadArgument."""

    name: str
    summary: str
    build: Callable[[tuple[int, ...], int], nn.Module]
    kinds: tuple[str, ...] = ("image", "tabular")  # of data; "text" and "sequence" are rows of token numbers
