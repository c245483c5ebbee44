"""A proof, kept: what was read of a graph to prove it, to be compared with the next graph instead of proving it again.

A rule says what it says because of what it has read: the names of the operations, how they hang together, the sizes of their
values, and what the nodes keep (dimensions, reductions, numbers). All of it goes through `Op`, which takes it down. A graph
that reads the same is proved; one that differs in anything is walked again.

Batches differ in their number of rows. Where all rules are uniform and no number was read, a certificate holds for any number:
sizes that were the rows must be the rows again, all others the same, and none of these may be as long as the batch. Otherwise it
holds for the number of rows that it was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

from torch import Tensor

from clipwise.norms.loss.graph import Reached, Walk
from clipwise.norms.loss.marks import Mark, marks_of
from clipwise.norms.loss.rules.state import Op, is_number

# More numbers of rows than Poisson batches of 256 often have; a certificate is some kB. Chosen, not measured.
MOST_KEPT = 64
_ROWS = -1  # in a size: as many as the batch has
# Of an edge: to nothing, to a node that was met at this place, to one that is new, to a mark (its dimension and size).
_NONE, _KNOWN, _NEW, _MARK = range(4)


class _Step(NamedTuple):
    """What was read of one node. A size of -1 stands for the rows."""

    name: str
    values: list[tuple[Any, list[int], bool]]  # dtype and sizes of its outputs; whether a size is the rows
    read: Callable[[Any], Any] | None  # of what it keeps beside tensors
    plain: Any  # what that gave
    kinds: tuple[type, ...]
    tensors: list[tuple[str, list[int], tuple[float, bool] | None]]  # a number, and whether it is Python's
    counts: list[tuple[str, list[int]]]  # tensors that hold the product of these sizes
    edges: list[tuple[int, int, Any]]


class Certificate:
    """Of a graph with one root."""

    __slots__ = ("_constants", "_made", "_steps", "rows")

    def __init__(self, reached: Reached, walked: Walk, rows: int):
        ops = walked.ops.values()
        self.rows = None if all(op.uniform for op in ops) else rows  # None: any number
        sizes: set[int] = set()

        def general(shape: Sequence[int]) -> list[int]:
            if self.rows is not None:
                return list(shape)
            found = [_ROWS if size == rows else size for size in shape]
            sizes.update(found)
            return found

        order = [reached.roots[0][0][0]]
        self._steps: list[_Step] = []
        for node in order:  # which grows
            met, op = reached.known[node], walked.ops[node]
            edges: list[tuple[int, int, Any]] = []
            for edge in met.edges:
                child, nr = edge
                if child is None:
                    edges.append((_NONE, nr, None))
                elif edge in reached.marks:
                    edges.append((_MARK, nr, (reached.marks[edge].dim, general(reached.shape(edge)))))
                elif child in order:
                    edges.append((_KNOWN, nr, order.index(child)))
                else:
                    edges.append((_NEW, nr, None))
                    order.append(child)
            tensors = [
                (name, general(v.shape), (float(v), is_number(v)) if v.numel() == 1 else None)
                for name, v in op.reads
                if isinstance(v, Tensor)
            ]
            counts = [(name, general(places)) for name, places in op.counts]
            values = [(m.dtype, general(m.shape)) for m in node._input_metadata]
            of_rows = [(dtype, shape, _ROWS in shape) for dtype, shape in values]
            self._steps.append(_Step(met.name, of_rows, *_plain(op), tensors, counts, edges))
        self._constants = frozenset(sizes)

    @staticmethod
    def possible(reached: Reached, walked: Walk) -> bool:
        ops = walked.ops
        terms = walked.total.terms
        tags = (
            [term.tag[1] for term in terms if term.tag] if len(terms) > 1 else []
        )  # of label smoothing, which has two
        return (
            len(reached.roots) == 1
            and reached.roots[0][0][0] in ops
            and not reached.words
            and not any(op.once for op in ops.values())
            and all(node in ops for node in tags)
        )

    def holds(self, root: Tensor, batch: Any) -> bool:
        """Whether the graph of `root` reads as that which was proved, from the outputs of this batch."""
        rows: int = batch.rows
        if self.rows != rows and (self.rows is not None or rows in self._constants):
            return False
        order: list[Any] = [root.grad_fn]
        for place, (name, values, read, plain, kinds, tensors, counts, edges) in enumerate(self._steps):
            node = order[place]
            if node.metadata or node.name() != name:  # a mark, a hook, words
                return False
            found = node._input_metadata
            if len(found) != len(values):
                return False
            for m, (dtype, shape, of_rows) in zip(found, values, strict=True):
                if m.shape != (_at(rows, shape) if of_rows else shape) or m.dtype != dtype:
                    return False
            if read is not None and ((now := read(node)) != plain or tuple(map(type, now)) != kinds):
                return False
            for attribute, shape, number in tensors:
                saved = getattr(node, attribute)
                if not isinstance(saved, Tensor) or list(saved.shape) != _at(rows, shape):
                    return False
                if number is not None and (float(saved), is_number(saved)) != number:
                    return False
            for attribute, shape in counts:
                if float(getattr(node, attribute)) != prod(_at(rows, shape)):
                    return False
            if not _leads_on(node.next_functions, edges, order, batch):
                return False
        return True


def _plain(op: Op) -> tuple[Callable[[Any], Any] | None, Any, tuple[type, ...]]:
    """How to read what a node keeps beside tensors, what that gave, and of which types."""
    reads = [(name, value) for name, value in op.reads if not isinstance(value, Tensor)]
    if not reads:
        return None, (), ()
    names, values = zip(
        *reads, *reads[-1:], strict=True
    )  # the last twice: one name alone would not be given as a tuple
    return attrgetter(*names), values, tuple(map(type, values))


def _at(rows: int, shape: list[int]) -> list[int]:
    """The sizes for a batch of so many rows."""
    return [rows if size == _ROWS else size for size in shape]


class Kept:
    """The certificates of one engine, for losses of either form: one for any number of rows, and those that hold for one number."""

    def __init__(self) -> None:
        self._known: dict[tuple[bool, int | None], Certificate] = {}

    def __len__(self) -> int:
        return len(self._known)

    def hold(self, root: Tensor, batch: Any, *, of_rows: bool) -> bool:
        """Whether one of them holds for the graph of `root`: of row losses, or of a loss that is reduced."""
        general, own = self._known.get((of_rows, None)), self._known.get((of_rows, batch.rows))
        return (general is not None and general.holds(root, batch)) or (own is not None and own.holds(root, batch))

    def keep(self, new: Certificate, *, of_rows: bool) -> None:
        if len(self._known) >= MOST_KEPT:
            del self._known[next(iter(self._known))]  # the oldest
        self._known[of_rows, new.rows] = new


def _leads_on(found: Any, edges: list[tuple[int, int, Any]], order: list[Any], batch: Any) -> bool:
    """Whether the edges of a node go where they went; new nodes are put into the order."""
    if len(found) != len(edges):
        return False
    for (child, nr), (kind, was_nr, what) in zip(found, edges, strict=True):
        if nr != was_nr or (child is None) != (kind == _NONE):
            return False
        if kind == _KNOWN:
            if child is not order[what]:
                return False
        elif kind == _NEW:
            if any([child is other for other in order]):
                return False
            order.append(child)
        elif kind == _MARK:
            found_mark: Mark | None = marks_of(child).get(nr)
            if found_mark is None or found_mark.batch is not batch or found_mark.dim != what[0]:
                return False
            if child._input_metadata[nr].shape != _at(batch.rows, what[1]):
                return False
    return True
