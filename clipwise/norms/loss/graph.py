"""The walk: from the roots of a backward pass down to the marks, and back up with what each operation does to the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from clipwise.norms.loss.marks import Mark, has_hook, marks_of, words_of
from clipwise.norms.loss.rules import RULES
from clipwise.norms.loss.rules.dimensions import reduce_all
from clipwise.norms.loss.rules.state import (
    UNIFORM,
    Hooked,
    NotRowWise,
    Op,
    Reduced,
    Rows,
    State,
    Unknown,
    constant_of,
)

Edge = tuple[Any, int]  # a node, and which of its outputs
_HALF = (torch.float16, torch.bfloat16)


class Met:
    """A node between the roots and the marks, with what is read of it: each reading costs as much as an operation of a rule."""

    __slots__ = ("_metadata", "_shapes", "edges", "hooked", "name", "node", "place")

    def __init__(self, node: Any):
        self.node, self.name, self.edges = node, node.name(), node.next_functions
        self.hooked = has_hook(node)
        self.place = -1  # in the order
        self._metadata: list[Any] | None = None
        self._shapes: list[tuple[int, ...]] | None = None

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of its outputs."""
        if self._shapes is None:
            self._metadata = self.node._input_metadata
            self._shapes = [tuple(m.shape) for m in self._metadata]
        return self._shapes

    @property
    def half(self) -> bool:
        """Whether an output is in half precision."""
        return bool(self.shapes) and any([m.dtype in _HALF for m in self._metadata or ()])


class Reached:
    """The part of the graph between the roots and the marks."""

    __slots__ = ("inside", "known", "marks", "roots", "words")

    def __init__(self) -> None:
        self.roots: list[tuple[Edge, Any]] = []  # each with the gradient that it is given
        self.inside: list[Met] = []  # each after all that it was made from
        self.known: dict[Any, Met] = {}  # the same by node
        self.marks: dict[Edge, Mark] = {}
        self.words: list[str] = []  # that the privacy statement is to say

    @property
    def signature(self) -> tuple[Any, ...]:
        """What the graph looks like, whatever the sizes: which operations, and what each is made from."""
        known = self.known
        return tuple(
            [(m.name, *[(known[f].place if f in known else -1, nr) for f, nr in m.edges]) for m in self.inside]
        )

    @property
    def half(self) -> bool:
        """Whether a value of it is in half precision."""
        return any([m.half for m in self.inside])

    def shape(self, edge: Edge) -> tuple[int, ...]:
        met = self.known.get(edge[0])
        return tuple(edge[0]._input_metadata[edge[1]].shape) if met is None else met.shapes[edge[1]]


def reach(roots: Sequence[Tensor | GradientEdge], gradients: Sequence[Any]) -> Reached:
    reached = Reached()
    known, inside, marks = reached.known, reached.inside, reached.marks
    for root, gradient in zip(roots, gradients, strict=True):
        node = root.grad_fn if isinstance(root, Tensor) else root.node
        if node is None:  # a leaf: no path to a tap
            continue
        edge = (node, root.output_nr)
        reached.roots.append((edge, gradient))
        found = marks_of(node).get(edge[1])
        if found is not None:
            marks[edge] = found
            continue
        waiting = [node]
        while waiting:
            node = waiting[-1]
            met = known.get(node)
            if met is not None:  # all that it was made from is in its place
                waiting.pop()
                if met.place < 0:
                    met.place = len(inside)
                    inside.append(met)
                continue
            met = known[node] = Met(node)
            if (words := words_of(node)) is not None:
                reached.words.append(words)
            for edge in met.edges:
                if edge[0] is None:
                    continue
                found = marks_of(edge[0]).get(edge[1])
                if found is not None:
                    marks[edge] = found
                elif edge[0] not in known:
                    waiting.append(edge[0])
    return reached


class Row(NamedTuple):
    """An edge at which there is still one value a row: what is above it is sums only."""

    edge: Edge
    shape: tuple[int, ...]
    rows: Rows


class Walk(NamedTuple):
    total: Reduced  # of all roots
    row_values: list[Row]
    ops: dict[Any, Op]  # by node, with what the rules have read
    numbers: list[float]  # in functions of one row's value


def walk(reached: Reached, batch: Any, rows: int) -> Walk:
    """How the roots, with the gradients that they are given, combine the rows of `batch`. Raises NotRowWise where they
    may mix them, and Unknown where that cannot be told."""
    states: dict[Any, State] = {}
    ops: dict[Any, Op] = {}
    row_values: dict[Edge, Row] = {}
    numbers: list[float] = []

    def state_of(edge: Edge) -> State | None:
        if edge[0] is None:
            return None
        found = reached.marks.get(edge)
        if found is None:
            return states[edge[0]]
        if found.batch is not batch:
            raise Unknown("it compares the model's output with that of another private model")
        shape = reached.shape(edge)
        if found.dim is None or shape[found.dim] != rows:
            raise Unknown("an output of the model has no dimension for the rows of the batch")
        return Rows(found.dim)

    def keep(edges: Sequence[Edge], values: Sequence[State | None]) -> None:
        for edge, value in zip(edges, values, strict=True):
            if isinstance(value, Rows):
                row_values[edge] = Row(edge, reached.shape(edge), value)

    for met in reached.inside:
        edges = met.edges
        values = [state_of(edge) for edge in edges]
        if met.hooked:
            raise Hooked("a hook (register_hook) may change the gradient on its way to the model")
        rule = RULES.get(met.name)
        if rule is None:
            raise Unknown(f"{_plain(met.name)} is not known to keep rows apart")
        shapes = [() if edge[0] is None else reached.shape(edge) for edge in edges]
        op = ops[met.node] = Op(met.node, values, shapes, rows, met.name, met.shapes[0])
        states[met.node] = state = rule(op)
        op.uniform &= rule in UNIFORM
        numbers += op.other_numbers()
        if isinstance(state, Reduced):
            keep(edges, values)

    terms: list[Any] = []
    for root, gradient in reached.roots:
        of_root = state_of(root)
        if of_root is None:
            continue
        keep([root], [of_root])
        terms += reduce_all(of_root, reached.shape(root), constant_of(gradient)).terms
    return Walk(Reduced(tuple(terms)), list(row_values.values()), ops, numbers)


def _plain(name: str) -> str:
    name = name.rpartition("::")[2]
    return name.removesuffix("0").removesuffix("1").removesuffix("Backward")


__all__ = ["Edge", "NotRowWise", "Reached", "Row", "Unknown", "Walk", "reach", "walk"]
