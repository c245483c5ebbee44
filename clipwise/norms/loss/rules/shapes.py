"""Operations on shapes: where the rows are afterwards."""

from __future__ import annotations

from math import prod

import torch

from clipwise.norms.loss.rules.elementwise import broadcast, joined, refuse_repeats, refuse_shared
from clipwise.norms.loss.rules.state import NotRowWise, Op, Reduced, Rows, State, Unknown, uniform


@uniform
def view(op: Op) -> State:
    state, before, after = op.only, op.in_shape, op.shape
    if isinstance(state, Reduced):
        return state
    if not prod(before):
        raise Unknown("it has no numbers at all")
    step = state.inner * prod(before[state.dim + 1 :])  # from one row to the next, in the order of the numbers
    if not (state.where() == (0, 1, 1) and before[0] == after[0]):
        op.uniform = False  # by what divides what
    for dim, size in enumerate(after):
        small = prod(after[dim + 1 :])
        if step % small == 0 and (small * size) % (step * op.rows) == 0:
            return state._replace(dim=dim, inner=step // small, outer=small * size // (step * op.rows))
    raise NotRowWise("a view cuts across rows")


@uniform
def permute(op: Op) -> State:
    state = op.only
    if isinstance(state, Reduced):
        return state
    rank = len(op.in_shape)
    return state.at([d % rank for d in map(signed, op.saved("dims"))].index(state.dim))


@uniform
def transpose(op: Op) -> State:
    state = op.only
    if isinstance(state, Reduced):
        return state
    rank = len(op.in_shape)
    a, b = (signed(op.saved(name)) % rank for name in ("dim0", "dim1"))
    return state.at({a: b, b: a}.get(state.dim, state.dim))


@uniform
def transpose_last(op: Op) -> State:
    state = op.only
    return state if isinstance(state, Reduced) else state.at(len(op.shape) - 1 - state.dim)


def signed(dim: int) -> int:
    return dim - 2**64 if dim >= 2**63 else dim


@uniform
def squeeze(op: Op) -> State:
    """Without dimensions of size 1, all of them or some; rows are never one here."""
    state = op.only
    if isinstance(state, Reduced) or len(op.shape) == len(op.in_shape):
        return state
    dims = op.dims() if op.names_dimensions else range(len(op.in_shape))
    gone = [d for d in dims if op.in_shape[d] == 1]
    return state.at(state.dim - sum(d < state.dim for d in gone))


@uniform
def unsqueeze(op: Op) -> State:
    state = op.only
    if isinstance(state, Reduced):
        return state
    new = signed(op.saved("dim")) % len(op.shape)
    return state.at(state.dim + (new <= state.dim))


@uniform
def expand(op: Op) -> State:
    state = op.only
    if isinstance(state, Reduced):
        refuse_repeats(op)
        return state
    return broadcast(op, state, op.in_shape)


@uniform
def select(op: Op) -> State:
    state = op.only
    if isinstance(state, Reduced):
        return state
    dim = signed(op.saved("dim")) % len(op.in_shape)
    if dim == state.dim:
        raise NotRowWise("some rows are picked out of the batch by their place")
    return state.at(state.dim - (dim < state.dim))


def part(op: Op) -> State:
    """A slice, or one of several pieces."""
    state = op.only
    if isinstance(state, Reduced):
        return state
    dim = signed(op.saved("dim")) % len(op.in_shape)
    if dim == state.dim and op.shape[dim] != op.in_shape[dim]:
        raise NotRowWise("the batch is cut into pieces")
    if op.name == "slice" and dim == state.dim and op.saved("step") != 1:
        raise NotRowWise("the batch is cut into pieces")
    return state


def layer_norm(op: Op) -> State:
    """Over the last dimensions; its own weights, if any, must be the model's."""
    state = op.rows_only()
    if state.dim >= len(op.in_shape) - len(op.saved("normalized_shape")):
        raise NotRowWise("layer_norm runs over the rows")
    refuse_shared(op, state, "weight", "bias")
    return state.fixed()


@uniform
def gather(op: Op) -> State:
    state = op.rows_only()
    dim = signed(op.saved("dim")) % len(op.in_shape)
    if dim == state.dim or op.shape[state.dim] != op.in_shape[state.dim]:
        raise NotRowWise("rows are picked out of the batch by a tensor")
    return state.fixed()


def index(op: Op) -> State:
    """`x[a, b, ...]`: rows only by arange, each in its place."""
    state = op.rows_only()
    op.once = True
    indices = list(op.saved("indices"))
    places = [d for d, i in enumerate(indices) if i is not None]
    own = indices[state.dim] if state.dim < len(indices) else None
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        raise NotRowWise("numbers are picked out of the batch by a mask, and how many depends on all rows")
    if own is None:
        rank = max(indices[d].dim() for d in places)
        together = places == list(range(places[0], places[-1] + 1))
        first = places[0] if together else 0
        before = state.dim - sum(d < state.dim for d in places)
        return state.fixed().at(before + rank if before >= first else before)
    arange = torch.arange(op.in_shape[state.dim], device=own.device)
    if own.dim() != 1 or places != list(range(places[0], places[-1] + 1)) or not torch.equal(own.long(), arange):
        raise NotRowWise("rows are picked out of the batch by a tensor")
    if any(indices[d].dim() != 1 or indices[d].shape != own.shape for d in places):
        raise NotRowWise("rows are picked out of the batch by a tensor")
    return state.fixed().at(places[0])


def _several(op: Op) -> Reduced | Rows:
    present = [s for s in op.inputs if s is not None]
    if all(isinstance(s, Reduced) for s in present):
        return Reduced(tuple(term for s in present for term in s.terms))  # type: ignore[union-attr]
    if any(isinstance(s, Reduced) for s in present):
        raise NotRowWise(f"{op.name} combines each row with a figure of the whole batch")
    found: list[Rows] = present  # type: ignore[assignment]
    if len({s.where() for s in found}) != 1:
        raise NotRowWise(f"{op.name} puts other rows beside each row")
    return joined(found)


def cat(op: Op) -> State:
    state = _several(op)
    if isinstance(state, Reduced):
        return state
    if signed(op.saved("dim")) % len(op.shape) != state.dim:
        return state
    if any(s is None for s in op.inputs):
        raise Unknown("rows of the batch are joined with others")
    return state._replace(outer=sum(s.outer for s in op.inputs if isinstance(s, Rows)))


def stack(op: Op) -> State:
    state = _several(op)
    if isinstance(state, Reduced):
        return state
    dim = signed(op.saved("dim")) % len(op.shape)
    return state.at(state.dim + (dim <= state.dim))


def batch_product(op: Op) -> State:
    """A product of matrices for each place of the first dimension."""
    found = [s for s in op.inputs if isinstance(s, Rows) and s.dim == 0]
    if len(found) != sum(s is not None for s in op.inputs) or len({s.where() for s in found}) != 1:
        raise NotRowWise("a product of matrices combines rows with one another")
    return joined(found)


def matrix_product(op: Op) -> State:
    if None not in op.inputs:
        raise NotRowWise("a product of matrices combines rows with one another")
    op.rows_only()
    raise Unknown("a product with a matrix that all rows share, and that may have been made from them")
