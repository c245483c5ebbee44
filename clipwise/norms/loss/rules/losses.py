"""Torch's own losses, with the reduction, weights and ignored targets that their nodes keep."""

from __future__ import annotations

from math import prod

from clipwise.norms.loss.rules.dimensions import reduced
from clipwise.norms.loss.rules.elementwise import joined
from clipwise.norms.loss.rules.state import (
    ClassWeights,
    NotRowWise,
    Op,
    Reduced,
    Rows,
    State,
    has_rows,
    of_the_whole,
    uniform,
)

_NONE, _MEAN = 0, 1  # torch's codes of a reduction; 2 is a sum


@uniform
def loss_of_numbers(op: Op) -> State:
    """A loss of each number: of shape (rows, ...) before it is reduced."""
    found = _aligned_inputs(op)
    for name in ("weight", "pos_weight"):
        value = op.saved(name, None)
        if value is not None and not has_rows(value, found, op.shapes[0]):
            raise ClassWeights(f"{op.name} was given {name}, a tensor that all rows share")
    return _by_code(found, op.shapes[0], op.saved("reduction"))


@uniform
def loss_of_rows(op: Op) -> State:
    """A loss of each row of (rows, classes)."""
    found = _aligned_inputs(op)
    if op.saved("weight", None) is not None:
        raise ClassWeights(f"{op.name} was given class weights")
    if found.dim != 0 or len(op.shapes[0]) != 2:
        raise NotRowWise(f"{op.name} takes the rows for classes")
    return _by_code(found, op.shapes[0][:1], op.saved("reduction"))


def _aligned_inputs(op: Op) -> Rows:
    found = [s for s in op.inputs if s is not None]
    if any(isinstance(s, Reduced) for s in found):
        raise of_the_whole(op)
    if len({s.where() for s in found}) != 1 or len({x for s, x in zip(op.inputs, op.shapes, strict=True) if s}) != 1:  # type: ignore[union-attr]
        raise NotRowWise(f"{op.name} pairs rows with other rows")
    return joined(found)  # type: ignore[arg-type]


def _by_code(state: Rows, shape: tuple[int, ...], code: int) -> State:
    if code == _NONE:
        return state
    others = tuple(size for d, size in enumerate(shape) if d != state.dim)
    return reduced(state, others, 1 / prod(shape) if code == _MEAN else 1.0)


@uniform
def nll(op: Op) -> State:
    state = op.rows_only()
    shape = op.in_shape
    if state.dim != 0 or len(shape) < 2:
        raise NotRowWise("cross entropy takes the rows for classes")
    code = op.saved("reduction")
    if op.saved("weight") is not None:
        why = (
            "its mean divides by the weights of the whole batch"
            if code == _MEAN
            else "where they come from is not known"
        )
        raise ClassWeights(f"cross entropy was given class weights, and {why}")
    places = (shape[0], *shape[2:])
    found = _by_code(state.fixed(), places, code)
    if isinstance(found, Rows):
        return found
    if code == _MEAN and not op.is_count("total_weight", places):
        raise ClassWeights(
            "cross entropy leaves out targets that are ignore_index, and its mean divides by how many the whole batch has"
        )
    source = op.source
    while source is not None and source.name() in ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"):
        source = source.next_functions[0][0]
    tag = ("nll", source, shape[1]) if source is not None and source.name() == "LogSoftmaxBackward0" else ()
    return Reduced(tuple(t._replace(tag=tag) for t in found.terms))


def ctc(op: Op) -> State:
    """(T, rows, classes) -> (rows,)."""
    state = op.rows_only()
    if state.where() != (1, 1, 1):
        raise NotRowWise("ctc_loss takes another dimension for the rows")
    return state.fixed().at(0)
