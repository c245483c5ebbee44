"""The walk: from the roots of a backward pass down to the marks, and back up with what each operation does to the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge

from clipwise.norms.loss.marks import Mark, has_hook, marks_of
from clipwise.norms.loss.rules import RULES
from clipwise.norms.loss.rules.dimensions import reduce_all
from clipwise.norms.loss.rules.state import Hooked, NotRowWise, Op, Reduced, Rows, State, Unknown, constant_of

Edge = tuple[Any, int]  # a node, and which of its outputs


class Reached(NamedTuple):
    """The part of the graph between the roots and the marks."""

    roots: list[tuple[Edge, Any]]  # each with the gradient that it is given
    inside: list[Any]  # nodes, each after all that it was made from
    marks: dict[Edge, Mark]

    @property
    def signature(self) -> tuple[str, ...]:
        """What the graph looks like, whatever the sizes."""
        return tuple(node.name() for node in self.inside)


def reach(roots: Sequence[Tensor | GradientEdge], gradients: Sequence[Any]) -> Reached:
    edges: list[tuple[Edge, Any]] = []
    for root, gradient in zip(roots, gradients, strict=True):
        node = root.grad_fn if isinstance(root, Tensor) else root.node
        if node is not None:  # else a leaf: no path to a tap
            edges.append(((node, root.output_nr), gradient))
    marks: dict[Edge, Mark] = {}
    inside: list[Any] = []
    seen: set[Any] = set()
    waiting: list[tuple[Any, bool]] = []

    def visit(edge: Edge) -> None:
        node, nr = edge
        if node is None:
            return
        found = marks_of(node).get(nr)
        if found is not None:
            marks[edge] = found
        elif node not in seen:
            waiting.append((node, False))

    for edge, _ in edges:
        visit(edge)
        while waiting:
            node, done = waiting.pop()
            if done:
                inside.append(node)
            elif node not in seen:
                seen.add(node)
                waiting.append((node, True))
                for following in node.next_functions:
                    visit(following)
    return Reached(edges, inside, marks)


class Row(NamedTuple):
    """An edge at which there is still one value a row: what is above it is sums only."""

    edge: Edge
    shape: tuple[int, ...]
    rows: Rows


class Walk(NamedTuple):
    total: Reduced  # of all roots
    row_values: list[Row]


def walk(reached: Reached, batch: Any, rows: int) -> Walk:
    """How the roots, with the gradients that they are given, combine the rows of `batch`. Raises NotRowWise where they
    may mix them, and Unknown where that cannot be told."""
    states: dict[Edge | Any, State] = {}
    row_values: dict[Edge, Row] = {}

    def state_of(edge: Edge) -> State | None:
        if edge[0] is None:
            return None
        found = reached.marks.get(edge)
        if found is None:
            return states[edge[0]]
        if found.batch is not batch:
            raise Unknown("it compares the model's output with that of another private model")
        shape = _shape(edge)
        if found.dim is None or shape[found.dim] != rows:
            raise Unknown("an output of the model has no dimension for the rows of the batch")
        return Rows(found.dim)

    def keep(edges: Sequence[Edge], values: Sequence[State | None]) -> None:
        for edge, value in zip(edges, values, strict=True):
            if isinstance(value, Rows):
                row_values[edge] = Row(edge, _shape(edge), value)

    for node in reached.inside:
        edges = node.next_functions
        values = [state_of(edge) for edge in edges]
        if has_hook(node):
            raise Hooked("a hook (register_hook) may change the gradient on its way to the model")
        rule = RULES.get(node.name())
        if rule is None:
            raise Unknown(f"{_plain(node.name())} is not known to keep rows apart")
        op = Op(node, values, [() if f is None else _shape((f, nr)) for f, nr in edges], rows)
        states[node] = rule(op)
        if isinstance(states[node], Reduced):
            keep(edges, values)

    terms: list[Any] = []
    for root, gradient in reached.roots:
        state = state_of(root)
        if state is None:
            continue
        keep([root], [state])
        terms += reduce_all(state, _shape(root), constant_of(gradient)).terms
    return Walk(Reduced(tuple(terms)), list(row_values.values()))


def _shape(edge: Edge) -> tuple[int, ...]:
    return tuple(edge[0]._input_metadata[edge[1]].shape)


def _plain(name: str) -> str:
    name = name.rpartition("::")[2]
    return name.removesuffix("0").removesuffix("1").removesuffix("Backward")


__all__ = ["Edge", "NotRowWise", "Reached", "Row", "Unknown", "Walk", "reach", "walk"]
