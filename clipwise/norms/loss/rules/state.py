"""What is known of the value at an edge of the graph, and of the operation that made it (rules/__init__.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

_MISSING = object()
# What torch calls the numbers that its functions of a value keep (an exponent, a slope, where they bend).
_NUMBERS = ["alpha", "beta", "delta", "eps", "exponent", "input_scale", "lambd", "lower", "margin", "max", "max_val", "min", "min_val", "negative_slope", "p", "scale", "self", "threshold", "upper", "value", "weight"]  # fmt: skip
_kept_by: dict[str, tuple[str, ...]] = {}  # which of them nodes of a name have


class NotRowWise(Exception):
    """The operation mixes rows; the text continues "the loss mixes the records: ..."."""


class Unknown(Exception):
    """What the operation does to rows is not known."""


class Shared(Unknown):
    """A tensor that all rows share takes part."""


class Hooked(Unknown):
    """A hook may change the gradient on its way."""


class Leaf(Unknown):
    """A tensor that asks for a gradient itself, and has no rows."""


class ClassWeights(NotRowWise):
    """Sound in another form, which clipwise.losses has."""


class Rows(NamedTuple):
    dim: int
    outer: int = 1
    inner: int = 1
    scale: float = 1.0  # of the numbers since the last function that is not linear
    suspect: bool = False  # whether `scale` holds a tensor's value
    numbers: tuple[float, ...] = ()  # that each row's value holds
    tag: tuple[Any, ...] = ()  # (log-softmax node, classes): minus the sum of its log-probabilities
    lengths: tuple[int, ...] = ()  # of dimensions within a row that a mean was taken over

    def where(self) -> tuple[int, int, int]:
        return self.dim, self.outer, self.inner

    def fixed(self) -> Rows:
        """The value of a function of each row: its scale cannot be a part of the reduction any more."""
        if self.suspect:
            raise Shared("a tensor that all rows share scales them, and may have been counted from the batch")
        numbers = self.numbers if self.scale == 1 else (*self.numbers, self.scale)
        return self._replace(scale=1.0, numbers=numbers, tag=())

    def times(self, value: float, *, suspect: bool = False) -> Rows:
        return self._replace(scale=self.scale * value, suspect=self.suspect or suspect, tag=() if suspect else self.tag)

    def at(self, dim: int) -> Rows:
        return self._replace(dim=dim)


class Term(NamedTuple):
    factor: float  # of the reduction
    sizes: tuple[int, ...]  # of the dimensions within a row that were summed: a mean divides by some of them too
    scale: float
    suspect: bool
    numbers: tuple[float, ...]
    tag: tuple[Any, ...] = ()  # ("nll" | "all", log-softmax node, classes)
    lengths: tuple[int, ...] = ()  # of dimensions within a row that a mean was taken over


class Reduced(NamedTuple):
    terms: tuple[Term, ...]

    def times(self, value: float) -> Reduced:
        return Reduced(tuple(t._replace(factor=t.factor * value) for t in self.terms))


State = Rows | Reduced


class Op:
    """A node of the graph with what is known of its inputs (None for those without gradient)."""

    __slots__ = ("counts", "full_name", "inputs", "node", "once", "reads", "rows", "shape", "shapes", "uniform")

    def __init__(
        self,
        node: Any,
        inputs: Sequence[State | None],
        shapes: Sequence[tuple[int, ...]],
        rows: int,
        full_name: str,
        shape: tuple[int, ...],
    ):
        """`shapes` of its inputs, `shape` of its (first) output."""
        self.node, self.inputs, self.shapes, self.rows = node, inputs, shapes, rows
        self.full_name, self.shape = full_name, shape
        # What the rule reads of the node, for the certificate (certificate.py).
        self.reads: list[tuple[str, Any]] = []
        self.counts: list[tuple[str, tuple[int, ...]]] = []
        self.uniform = True  # whether the same reads mean the same for any number of rows
        self.once = False  # whether it went by values that no certificate holds

    def with_inputs(self, inputs: Sequence[State | None]) -> Op:
        other = copy(self)
        other.inputs = inputs
        return other

    @property
    def name(self) -> str:
        return self.full_name.rpartition("::")[2].removesuffix("0").removesuffix("1").removesuffix("Backward").lower()

    def saved(self, name: str, otherwise: Any = _MISSING) -> Any:
        """What the node keeps by this name. Of a tensor of several numbers the rule may use the shape alone."""
        name = f"_saved_{name}"
        if otherwise is not _MISSING and not hasattr(self.node, name):
            return otherwise
        value = getattr(self.node, name)
        self.reads.append((name, value))
        if isinstance(value, Tensor) and value.numel() == 1:  # a number, which the rule may use
            self.uniform = False
        return value

    def number(self, name: str, otherwise: Any = _MISSING) -> float:
        """A number that the node keeps: it may be one over the rows."""
        value = float(self.saved(name, otherwise))
        self.uniform &= value == 1
        return value

    def other_numbers(self) -> list[float]:
        """Those that the node keeps and the rule did not ask for: each row's value hangs on them."""
        names = _kept_by.get(self.full_name)
        if names is None:
            found = [f"_saved_{n}" for n in _NUMBERS if hasattr(self.node, f"_saved_{n}")]
            names = _kept_by[self.full_name] = tuple(
                [n for n in found if not isinstance(getattr(self.node, n), Tensor)]
            )
        new = [] if not names else [n for n in names if all(n != known for known, _ in self.reads)]
        values = [(name, getattr(self.node, name)) for name in new]
        self.reads += values
        return [float(v) for _, v in values if isinstance(v, int | float)]

    def is_count(self, name: str, sizes: tuple[int, ...]) -> bool:
        """Whether a tensor that the node keeps holds the product of these sizes."""
        self.counts.append((f"_saved_{name}", sizes))
        return float(getattr(self.node, f"_saved_{name}")) == prod(sizes)

    @property
    def names_dimensions(self) -> bool:
        return hasattr(self.node, "_saved_dim")

    @property
    def source(self) -> Any:
        """The node that its first input comes from."""
        return self.node.next_functions[0][0]

    @property
    def only(self) -> State:
        if len(self.inputs) == 1 and self.inputs[0] is not None:
            return self.inputs[0]
        [state] = [s for s in self.inputs if s is not None]
        return state

    @property
    def in_shape(self) -> tuple[int, ...]:
        if len(self.inputs) == 1:
            return self.shapes[0]
        [shape] = [shape for s, shape in zip(self.inputs, self.shapes, strict=True) if s is not None]
        return shape

    def dims(self) -> list[int]:
        """The dimensions that it works along; all where it names none."""
        value = self.saved("dim")
        rank = max(1, len(self.in_shape))
        values = (value,) if isinstance(value, int) else tuple(value or range(rank))
        return sorted((d - 2**64 if d >= 2**63 else d) % rank for d in values)

    def rows_only(self) -> Rows:
        """The input, which must not be reduced yet."""
        state = self.only
        if isinstance(state, Reduced):
            raise of_the_whole(self)
        return state


Rule = Callable[[Op], State]
UNIFORM: set[Rule] = set()


def uniform(rule: Rule) -> Rule:
    """A rule that says the same of the same reads whatever the number of rows is, as long as no other dimension is as long."""
    UNIFORM.add(rule)
    return rule


def of_the_whole(op: Op) -> NotRowWise:
    return NotRowWise(
        f"backward() was called on {op.name} of the reduced loss, so that each row's gradient depends on all the others' losses"
    )


# -- numbers and tensors without gradient ------------------------------------------------------------------------------


def constant_of(value: Any) -> float:
    """The number that a tensor holds in all places."""
    if not isinstance(value, Tensor):
        return float(value)
    if value.numel() == 1:
        return float(value)
    first = value.flatten()[0]
    if not bool((value == first).all()):
        raise NotRowWise("backward() was given a gradient that is not the same for all rows")
    return float(first)


def is_number(value: Any) -> bool:
    """Whether it was a Python number: torch keeps them as tensors that do not take part in type promotion."""
    if not isinstance(value, Tensor):
        return True
    if value.dim():
        return False
    narrow = torch.float16 if value.is_floating_point() else torch.int8
    return torch.result_type(value, torch.zeros((), dtype=narrow)) == narrow


def has_rows(value: Tensor, where: Rows, shape: tuple[int, ...]) -> bool:
    """Whether a tensor that is broadcast to `shape` has slices of its own for the rows of it."""
    dim = where.dim - (len(shape) - value.dim())
    return dim >= 0 and value.shape[dim] == shape[where.dim]
