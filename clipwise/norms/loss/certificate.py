"""A proof, kept: what was read of a graph to prove it, to be compared with the next graph instead of proving it again.

A rule says what it says because of what it has read: the names of the operations, how they hang together, the sizes of their
values, and what the nodes keep (dimensions, reductions, numbers). All of it goes through `Op`, which takes it down. A graph
that reads the same is proved; one that differs in anything is walked again.

Batches differ in their number of rows. Where all rules are uniform and no number was read, a certificate holds for any number:
sizes that were the rows must be the rows again, all others the same, and none of these may be as long as the batch. Otherwise it
holds for the number of rows that it was made for.
"""

from __future__ import annotations

from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

from torch import Tensor

from clipwise.norms.loss.graph import Reached, Walk
from clipwise.norms.loss.marks import Mark, marks_of
from clipwise.norms.loss.rules.state import is_number

# More numbers of rows than Poisson batches of 256 often have; a certificate is some kB. Chosen, not measured.
MOST_KEPT = 64
_ROWS = -1  # in a size: as many as the batch has
_Sizes = tuple[int, ...]
# Of an edge: to nothing, to a node that was met at this place, to one that is new, to a mark (its dimension and size).
_NONE, _KNOWN, _NEW, _MARK = range(4)


class _Step(NamedTuple):
    """What was read of one node."""

    name: str
    values: list[tuple[Any, _Sizes]]  # dtype and sizes of its outputs
    plain: list[tuple[str, Any]]
    tensors: list[tuple[str, _Sizes, tuple[float, bool] | None]]  # a number, and whether it is Python's
    counts: list[tuple[str, _Sizes]]  # tensors that hold the product of these sizes
    edges: list[tuple[int, int, Any]]


class Certificate:
    """Of a graph with one root."""

    __slots__ = ("_constants", "_made", "_steps", "rows")

    def __init__(self, reached: Reached, walked: Walk, rows: int):
        ops = walked.ops.values()
        self.rows = None if all(op.uniform for op in ops) else rows  # None: any number
        sizes: set[int] = set()

        def general(shape: _Sizes) -> _Sizes:
            if self.rows is not None:
                return shape
            found = tuple([_ROWS if size == rows else size for size in shape])
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
            plain = [(name, v) for name, v in op.reads if not isinstance(v, Tensor)]
            tensors = [
                (name, general(tuple(v.shape)), (float(v), is_number(v)) if v.numel() == 1 else None)
                for name, v in op.reads
                if isinstance(v, Tensor)
            ]
            counts = [(name, general(places)) for name, places in op.counts]
            values = [(m.dtype, general(tuple(m.shape))) for m in node._input_metadata]
            self._steps.append(_Step(met.name, values, plain, tensors, counts, edges))
        self._constants = frozenset(sizes)
        self._made: dict[int, list[tuple[Any, ...]]] = {}  # by the number of rows

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
        for place, (name, values, plain, kinds, read, tensors, counts, edges) in enumerate(self._for(rows)):
            node = order[place]
            if node.metadata or node.name() != name:  # a mark, a hook, words
                return False
            if [(m.dtype, m.shape) for m in node._input_metadata] != values:
                return False
            if read is not None and ((now := read(node)) != plain or tuple(map(type, now)) != kinds):
                return False
            for attribute, shape, number in tensors:
                saved = getattr(node, attribute)
                if not isinstance(saved, Tensor) or saved.shape != shape:
                    return False
                if number is not None and (float(saved), is_number(saved)) != number:
                    return False
            for attribute, count in counts:
                if float(getattr(node, attribute)) != count:
                    return False
            if not _leads_on(node.next_functions, edges, order, batch):
                return False
        return True

    def _for(self, rows: int) -> list[tuple[Any, ...]]:
        """The steps as they are to be for a batch of so many rows."""
        made = self._made.get(rows)
        if made is None:
            if len(self._made) >= MOST_KEPT:
                self._made.clear()
            made = self._made[rows] = [_concrete(step, rows) for step in self._steps]
        return made


def _concrete(step: _Step, rows: int) -> tuple[Any, ...]:
    def sizes(shape: _Sizes) -> _Sizes:
        return tuple([rows if size == _ROWS else size for size in shape])

    values = [(dtype, list(sizes(shape))) for dtype, shape in step.values]  # a list is what a node gives
    # The last twice, because one name alone would not be given as a tuple.
    names = [name for name, _ in (*step.plain, *step.plain[-1:])]
    plain = tuple([value for _, value in (*step.plain, *step.plain[-1:])])
    read = attrgetter(*names) if names else None
    tensors = [(name, sizes(shape), number) for name, shape, number in step.tensors]
    counts = [(name, float(prod(sizes(places)))) for name, places in step.counts]
    edges = [(kind, nr, (what[0], list(sizes(what[1]))) if kind == _MARK else what) for kind, nr, what in step.edges]
    return step.name, values, plain, tuple(map(type, plain)), read, tensors, counts, edges


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
            if child._input_metadata[nr].shape != what[1]:
                return False
    return True
