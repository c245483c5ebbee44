"""Operations along dimensions, and the reductions that end in one figure for all rows."""

from __future__ import annotations

from math import prod

from clipwise.norms.loss.rules.shapes import signed
from clipwise.norms.loss.rules.state import NotRowWise, Op, Reduced, Rows, State, Term, uniform


@uniform
def along(op: Op) -> State:
    """A function of the numbers along a dimension that keeps the shape (softmax, cumsum)."""
    state = op.rows_only()
    if state.dim in op.dims():
        raise NotRowWise(f"{op.name} runs over the rows")
    return state.fixed()


@uniform
def over(op: Op) -> State:
    """A function that leaves one number of those along its dimensions (max, norm, logsumexp)."""
    state = op.rows_only()
    dims = op.dims()
    if state.dim in dims:
        raise NotRowWise(f"{op.name} is taken over the rows")
    return _without(op, state.fixed(), dims)


def over_all(op: Op) -> State:
    op.rows_only()
    raise NotRowWise(f"{op.name} is taken over the rows")


def _without(op: Op, state: Rows, dims: list[int]) -> Rows:
    if op.saved("keepdim", False) or len(op.shape) == len(op.in_shape):
        return state
    return state.at(state.dim - sum(d < state.dim for d in dims))


@uniform
def sum_over(op: Op) -> State:
    return _reduction(op, mean=False)


@uniform
def mean_over(op: Op) -> State:
    return _reduction(op, mean=True)


def _reduction(op: Op, *, mean: bool) -> State:
    state, shape = op.only, op.in_shape
    dims = op.dims() if op.names_dimensions else list(range(len(shape)))
    count = prod(shape[d] for d in dims if d < len(shape))
    if isinstance(state, Reduced):
        sizes = tuple(shape[d] for d in dims if d < len(shape))
        terms = (
            t._replace(
                factor=t.factor / (count if mean else 1),
                sizes=(*t.sizes, *sizes),
                tag=(),
                lengths=(*t.lengths, *(sizes if mean else ())),
            )
            for t in state.terms
        )
        return Reduced(tuple(terms))
    if state.dim in dims:
        others = tuple(shape[d] for d in dims if d != state.dim)
        return reduced(state, others, 1 / count if mean else 1.0)
    tag = (op.source, count) if not mean and _is_log_softmax(op, dims) else ()
    if mean:
        lengths = (*state.lengths, *(shape[d] for d in dims))
        state = state._replace(numbers=(*state.numbers, 1 / count), lengths=lengths)
    return _without(op, state._replace(tag=tag), dims)


def reduced(state: Rows, sizes: tuple[int, ...], factor: float) -> Reduced:
    tag = ("all", *state.tag) if state.tag else ()
    sizes = tuple(size for size in (state.outer, state.inner, *sizes) if size != 1)
    lengths = state.lengths if factor == 1 else (*state.lengths, *sizes)
    return Reduced((Term(factor, sizes, state.scale, state.suspect, state.numbers, tag, lengths),))


def reduce_all(state: State, shape: tuple[int, ...], gradient: float) -> Reduced:
    """What backward() with that gradient in all places makes of a root."""
    if isinstance(state, Reduced):
        return Reduced(tuple(t._replace(factor=t.factor * gradient, sizes=(*t.sizes, *shape)) for t in state.terms))
    return reduced(state, tuple(size for d, size in enumerate(shape) if d != state.dim), gradient)


def _is_log_softmax(op: Op, dims: list[int]) -> bool:
    node = op.source
    return (
        node is not None
        and node.name() == "LogSoftmaxBackward0"
        and dims == [signed(node._saved_dim) % len(op.in_shape)]
    )
