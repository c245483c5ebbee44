"""Operations that keep rows where they are: of one value, of several of the same rows, and with constants."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from torch import Tensor

from clipwise.norms.loss.rules.state import (
    NotRowWise,
    Op,
    Reduced,
    Rows,
    Rule,
    Shared,
    State,
    Unknown,
    constant_of,
    has_rows,
    is_number,
    of_the_whole,
    uniform,
)


@uniform
def elementwise(op: Op) -> State:
    """A function of each number."""
    return op.rows_only().fixed()


@uniform
def linear(op: Op) -> State:
    """A copy of each number, in another type perhaps."""
    return op.only


@uniform
def negative(op: Op) -> State:
    return op.only.times(-op.number("alpha", 1))


@uniform
def scaled(op: Op) -> State:
    """By a Python number."""
    return op.only.times(op.number("other"))


@uniform
def divided(op: Op) -> State:
    return op.only.times(1 / op.number("other"))


def broadcast(op: Op, state: Rows, shape: tuple[int, ...]) -> Rows:
    out = op.shape
    new = len(out) - len(shape)
    for d, size in enumerate(out):
        before = shape[d - new] if d >= new else 1
        if d - new != state.dim and before != size and size in (op.rows, shape[state.dim]):
            raise NotRowWise(f"{op.name} pairs every row with every row")
    if shape[state.dim] != out[state.dim + new]:
        raise NotRowWise(f"{op.name} repeats rows")
    return state.at(state.dim + new)


def _aligned(op: Op) -> list[Rows]:
    """Those inputs that have rows, as they lie in the output; all in the same place."""
    found = []
    for state, shape in zip(op.inputs, op.shapes, strict=True):
        if isinstance(state, Reduced):
            raise NotRowWise(f"{op.name} combines each row with a figure of the whole batch")
        if state is not None:
            found.append(broadcast(op, state, shape))
    if len({state.where() for state in found}) != 1:
        raise NotRowWise(f"{op.name} pairs rows with other rows")
    return found


def joined(found: list[Rows]) -> Rows:
    """A function of all of them."""
    return (
        found[0]
        .fixed()
        ._replace(
            numbers=tuple(n for state in found for n in state.fixed().numbers),
            lengths=tuple(n for state in found for n in state.lengths),
        )
    )


def refuse_shared(op: Op, where: Rows, *names: str) -> None:
    for name in names:
        value = op.saved(name, None)
        if isinstance(value, Tensor) and not is_number(value) and not has_rows(value, where, op.shape):
            raise Shared(
                f"{op.name} takes a tensor of {value.dim()} dimensions that all rows share, and that may have been made from them"
            )


@uniform
def add(op: Op) -> State:
    return _sum(op, (1.0, op.number("alpha", 1)))


@uniform
def subtract(op: Op) -> State:
    return _sum(op, (1.0, -op.number("alpha", 1)))


def _sum(op: Op, factors: tuple[float, float]) -> State:
    given = [None if s is None else s.times(f) for s, f in zip(op.inputs, factors, strict=False)]
    present = [s for s in given if s is not None]
    if all(isinstance(s, Reduced) for s in present):
        refuse_repeats(op)
        return Reduced(tuple(term for s in present for term in s.terms))  # type: ignore[union-attr]
    found = _aligned(op.with_inputs(given))
    if len(found) == 1 or (found[0].scale == found[1].scale and not found[0].suspect and not found[1].suspect):
        numbers = tuple(n for state in found for n in state.numbers)
        lengths = tuple(n for state in found for n in state.lengths)
        return found[0]._replace(numbers=numbers, tag=found[0].tag if len(found) == 1 else (), lengths=lengths)
    return joined(found)


def refuse_repeats(op: Op) -> None:
    """A sum over the batch that is broadcast would count several times."""
    if any(s is not None and prod(shape) != prod(op.shape) for s, shape in zip(op.inputs, op.shapes, strict=True)):
        raise Unknown(f"{op.name} repeats a sum over the batch")


@uniform
def multiply(op: Op) -> State:
    first, second = op.inputs
    if first is not None and second is not None:
        if isinstance(first, Reduced) and isinstance(second, Reduced):
            raise NotRowWise("backward() was called on a product of two reduced losses")
        return joined(_aligned(op))
    constant = op.saved("self" if first is None else "other")
    return _times_constant(op, constant, constant_of)


@uniform
def divide(op: Op) -> State:
    first, second = op.inputs
    if second is None:
        return _times_constant(op, op.saved("other"), lambda value: 1 / constant_of(value))
    if isinstance(second, Reduced):
        if first is None or isinstance(first, Reduced):
            raise NotRowWise("backward() was called on a quotient of reduced losses")
        raise NotRowWise("div divides each row by a figure of the whole batch")
    found = _aligned(op)
    if first is None:
        refuse_shared(op, found[0], "self")
    return joined(found)


def _times_constant(op: Op, constant: Any, value: Callable[[Any], float]) -> State:
    state = op.only
    single = not isinstance(constant, Tensor) or constant.numel() == 1
    if isinstance(state, Reduced):
        if not single:
            raise Unknown(f"{op.name} weighs sums over the batch by a tensor")
        refuse_repeats(op)
        return state.times(value(constant))
    [found] = _aligned(op)
    if single:  # rows are never one here
        return found.times(value(constant), suspect=not is_number(constant))
    if not has_rows(constant, found, op.shape):
        raise Shared(
            f"{op.name} takes a tensor of {constant.dim()} dimensions that all rows share, and that may have been made from them"
        )
    return found.fixed()


def combined(*constants: str) -> Rule:
    """A function of several numbers in the same place; `constants` are what it keeps of those without gradient."""

    def rule(op: Op) -> State:
        if all(isinstance(s, Reduced) for s in op.inputs if s is not None):
            raise of_the_whole(op)
        found = _aligned(op)
        refuse_shared(op, found[0], *constants)
        return joined(found)

    return rule


@uniform
def masked_fill(op: Op) -> State:
    state = op.rows_only()
    [found] = _aligned(op)
    refuse_shared(op, found, "mask")
    return found if state.tag else found.fixed()
