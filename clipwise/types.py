"""The values that pass from one room of the house to the next. Data only: no logic lives here.

Fields of these types are public. Private values (norms, weights, rows) appear only in `Decision` and in the engine's
tape, and neither outlives the step that made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # accounting imports this file, and must not import torch
    from torch import Tensor


class ClipwiseError(Exception):
    """Base of every error that Clipwise raises on purpose."""

    exit_code = 1  # of the command line


class BadArgument(ClipwiseError, ValueError):
    """An argument that cannot be honoured: the message names the argument, the value and the remedy."""

    exit_code = 2


class Unsupported(ClipwiseError, TypeError):
    """A model, layer or loader that cannot be trained privately as it is: the message says what to do."""


class LoopMisuse(ClipwiseError, RuntimeError):
    """The training loop did something out of order (step twice, backward twice, ...); nothing was changed."""


class BudgetExhausted(ClipwiseError, RuntimeError):
    """The next step would exceed the stated epsilon; it was not taken, and nothing was read or changed."""


class SideQuery(NamedTuple):
    """A sum of per-example rows that a method releases beside the gradient, on the same batch."""

    name: str
    width: int  # numbers in a row; 0 stands for a vector as large as the model (see Decision.gradient_rows)
    l2_bound: float  # of one example's row
    noise_multiplier: float  # noise std / l2_bound


class Decision(NamedTuple):
    """What a method makes of the private norms: row i depends on norm i alone."""

    weights: Tensor  # (rows,)
    rows: Mapping[str, Tensor] = {}  # side query -> (rows, width)
    gradient_rows: Mapping[str, Tensor] = {}  # side query -> (rows,) weights of a second weighted sum of the same tape


@dataclass(frozen=True)
class Padding:
    """What is padding in one row of a batch that was padded to its longest record. Private."""

    row: int  # the one that is padded most
    own_length: Mapping[int, int]  # of each length that the batch was padded to, how much is the row's own
    leading: bool = False  # padded on the left


class Cut(NamedTuple):
    """Which numbers of a query a process holds, where its sums are cut over several: public."""

    places: tuple[int, ...]  # of each sum's first number, among all of the query
    length: int  # of the whole query


@dataclass(frozen=True)
class Released:
    """Noised sums, and nothing else: whoever holds one holds only post-processing of the private data.

    The optimizer stage re-uses the gradient's memory: a method that keeps a part of it in its state keeps a copy.
    """

    gradient: tuple[Tensor, ...]  # one tensor for each trainable parameter, in the plan's order
    sides: Mapping[str, Tensor] = field(default_factory=dict)
    side_gradients: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)
    noise_multiplier: float = 0.0  # of the gradient, and
    noise_std: float = 0.0  # its noise: public numbers
