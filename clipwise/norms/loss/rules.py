"""What each operation of the graph does to rows: a table, node name -> rule.

The value at an edge of the graph is one of two kinds:

    Rows      one slice a row along a dimension; slice i is a function of row i alone
    Reduced   a sum over the rows: each term is a factor times the sum of one value a row

Elementwise operations and those along other dimensions keep Rows; a sum or mean over the rows turns them into Reduced;
on Reduced only linear operations follow, with numbers that are known. Everything else raises NotRowWise (it mixes rows)
or Unknown. A dimension of `outer * rows * inner` numbers holds rows that were merged with others by a view (texts of T
words as rows * T words: inner = T).

Constants: a tensor without gradient that has one slice a row is data of these rows. A number on Rows is a part of each
row's loss, and must be the same in every batch (`numbers`); one that stands between the last function of the row and
the sum (`scale`) may be a part of the reduction instead. Any other tensor is shared by all rows and may have been made
from them: its value must be accounted for by the reduction (`suspect`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor


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

    def __init__(self, node: Any, inputs: Sequence[State | None], shapes: Sequence[tuple[int, ...]], rows: int):
        self.node, self.inputs, self.shapes, self.rows = node, inputs, shapes, rows

    @property
    def name(self) -> str:
        name: str = self.node.name()
        return name.rpartition("::")[2].removesuffix("0").removesuffix("1").removesuffix("Backward").lower()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.node._input_metadata[0].shape)

    def saved(self, name: str) -> Any:
        return getattr(self.node, f"_saved_{name}")

    @property
    def only(self) -> State:
        [state] = [s for s in self.inputs if s is not None]
        return state

    @property
    def in_shape(self) -> tuple[int, ...]:
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
            raise _of_the_whole(self)
        return state


Rule = Callable[[Op], State]


def _of_the_whole(op: Op) -> NotRowWise:
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


def _has_rows(value: Tensor, where: Rows, shape: tuple[int, ...]) -> bool:
    """Whether a tensor that is broadcast to `shape` has slices of its own for the rows of it."""
    dim = where.dim - (len(shape) - value.dim())
    return dim >= 0 and value.shape[dim] == shape[where.dim]


# -- operations that keep rows where they are --------------------------------------------------------------------------


def elementwise(op: Op) -> State:
    """A function of each number."""
    return op.rows_only().fixed()


def linear(op: Op) -> State:
    """A copy of each number, in another type perhaps."""
    return op.only


def negative(op: Op) -> State:
    return op.only.times(-float(getattr(op.node, "_saved_alpha", 1)))


def scaled(op: Op) -> State:
    """By a Python number."""
    return op.only.times(float(op.saved("other")))


def divided(op: Op) -> State:
    return op.only.times(1 / float(op.saved("other")))


def _broadcast(op: Op, state: Rows, shape: tuple[int, ...]) -> Rows:
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
            found.append(_broadcast(op, state, shape))
    if len({state.where() for state in found}) != 1:
        raise NotRowWise(f"{op.name} pairs rows with other rows")
    return found


def _joined(found: list[Rows]) -> Rows:
    """A function of all of them."""
    return (
        found[0]
        .fixed()
        ._replace(
            numbers=tuple(n for state in found for n in state.fixed().numbers),
            lengths=tuple(n for state in found for n in state.lengths),
        )
    )


def _refuse_shared(op: Op, where: Rows, *names: str) -> None:
    for name in names:
        value = getattr(op.node, f"_saved_{name}", None)
        if isinstance(value, Tensor) and not is_number(value) and not _has_rows(value, where, op.shape):
            raise Shared(
                f"{op.name} takes a tensor of {value.dim()} dimensions that all rows share, and that may have been made from them"
            )


def add(op: Op) -> State:
    return _sum(op, (1.0, float(getattr(op.node, "_saved_alpha", 1))))


def subtract(op: Op) -> State:
    return _sum(op, (1.0, -float(getattr(op.node, "_saved_alpha", 1))))


def _sum(op: Op, factors: tuple[float, float]) -> State:
    given = [None if s is None else s.times(f) for s, f in zip(op.inputs, factors, strict=False)]
    present = [s for s in given if s is not None]
    if all(isinstance(s, Reduced) for s in present):
        _refuse_repeats(op)
        return Reduced(tuple(term for s in present for term in s.terms))  # type: ignore[union-attr]
    found = _aligned(Op(op.node, given, op.shapes, op.rows))
    if len(found) == 1 or (found[0].scale == found[1].scale and not found[0].suspect and not found[1].suspect):
        numbers = tuple(n for state in found for n in state.numbers)
        lengths = tuple(n for state in found for n in state.lengths)
        return found[0]._replace(numbers=numbers, tag=found[0].tag if len(found) == 1 else (), lengths=lengths)
    return _joined(found)


def _refuse_repeats(op: Op) -> None:
    """A sum over the batch that is broadcast would count several times."""
    if any(s is not None and prod(shape) != prod(op.shape) for s, shape in zip(op.inputs, op.shapes, strict=True)):
        raise Unknown(f"{op.name} repeats a sum over the batch")


def multiply(op: Op) -> State:
    first, second = op.inputs
    if first is not None and second is not None:
        if isinstance(first, Reduced) and isinstance(second, Reduced):
            raise NotRowWise("backward() was called on a product of two reduced losses")
        return _joined(_aligned(op))
    constant = op.saved("self" if first is None else "other")
    return _times_constant(op, constant, constant_of)


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
        _refuse_shared(op, found[0], "self")
    return _joined(found)


def _times_constant(op: Op, constant: Any, value: Callable[[Any], float]) -> State:
    state = op.only
    single = not isinstance(constant, Tensor) or constant.numel() == 1
    if isinstance(state, Reduced):
        if not single:
            raise Unknown(f"{op.name} weighs sums over the batch by a tensor")
        _refuse_repeats(op)
        return state.times(value(constant))
    [found] = _aligned(op)
    if single:  # rows are never one here
        return found.times(value(constant), suspect=not is_number(constant))
    if not _has_rows(constant, found, op.shape):
        raise Shared(
            f"{op.name} takes a tensor of {constant.dim()} dimensions that all rows share, and that may have been made from them"
        )
    return found.fixed()


def combined(*constants: str) -> Rule:
    """A function of several numbers in the same place; `constants` are what it keeps of those without gradient."""

    def rule(op: Op) -> State:
        if all(isinstance(s, Reduced) for s in op.inputs if s is not None):
            raise _of_the_whole(op)
        found = _aligned(op)
        _refuse_shared(op, found[0], *constants)
        return _joined(found)

    return rule


def masked_fill(op: Op) -> State:
    state = op.rows_only()
    [found] = _aligned(op)
    _refuse_shared(op, found, "mask")
    return found if state.tag else found.fixed()


# -- operations along dimensions ---------------------------------------------------------------------------------------


def along(op: Op) -> State:
    """A function of the numbers along a dimension that keeps the shape (softmax, cumsum)."""
    state = op.rows_only()
    if state.dim in op.dims():
        raise NotRowWise(f"{op.name} runs over the rows")
    return state.fixed()


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
    if getattr(op.node, "_saved_keepdim", False) or len(op.shape) == len(op.in_shape):
        return state
    return state.at(state.dim - sum(d < state.dim for d in dims))


def sum_over(op: Op) -> State:
    return _reduction(op, mean=False)


def mean_over(op: Op) -> State:
    return _reduction(op, mean=True)


def _reduction(op: Op, *, mean: bool) -> State:
    state, shape = op.only, op.in_shape
    dims = op.dims() if hasattr(op.node, "_saved_dim") else list(range(len(shape)))
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
        return _reduced(state, others, 1 / count if mean else 1.0)
    tag = (op.node.next_functions[0][0], count) if not mean and _is_log_softmax(op, dims) else ()
    if mean:
        lengths = (*state.lengths, *(shape[d] for d in dims))
        state = state._replace(numbers=(*state.numbers, 1 / count), lengths=lengths)
    return _without(op, state._replace(tag=tag), dims)


def _reduced(state: Rows, sizes: tuple[int, ...], factor: float) -> Reduced:
    tag = ("all", *state.tag) if state.tag else ()
    sizes = tuple(size for size in (state.outer, state.inner, *sizes) if size != 1)
    lengths = state.lengths if factor == 1 else (*state.lengths, *sizes)
    return Reduced((Term(factor, sizes, state.scale, state.suspect, state.numbers, tag, lengths),))


def reduce_all(state: State, shape: tuple[int, ...], gradient: float) -> Reduced:
    """What backward() with that gradient in all places makes of a root."""
    if isinstance(state, Reduced):
        return Reduced(tuple(t._replace(factor=t.factor * gradient, sizes=(*t.sizes, *shape)) for t in state.terms))
    return _reduced(state, tuple(size for d, size in enumerate(shape) if d != state.dim), gradient)


def _is_log_softmax(op: Op, dims: list[int]) -> bool:
    node = op.node.next_functions[0][0]
    return (
        node is not None
        and node.name() == "LogSoftmaxBackward0"
        and dims == [_signed(node._saved_dim) % len(op.in_shape)]
    )


# -- operations on shapes ----------------------------------------------------------------------------------------------


def view(op: Op) -> State:
    state, before, after = op.only, op.in_shape, op.shape
    if isinstance(state, Reduced):
        return state
    if not prod(before):
        raise Unknown("it has no numbers at all")
    step = state.inner * prod(before[state.dim + 1 :])  # from one row to the next, in the order of the numbers
    for dim, size in enumerate(after):
        small = prod(after[dim + 1 :])
        if step % small == 0 and (small * size) % (step * op.rows) == 0:
            return state._replace(dim=dim, inner=step // small, outer=small * size // (step * op.rows))
    raise NotRowWise("a view cuts across rows")


def permute(op: Op) -> State:
    state = op.only
    if isinstance(state, Reduced):
        return state
    rank = len(op.in_shape)
    return state.at([d % rank for d in map(_signed, op.saved("dims"))].index(state.dim))


def transpose(op: Op) -> State:
    state = op.only
    if isinstance(state, Reduced):
        return state
    rank = len(op.in_shape)
    a, b = (_signed(op.saved(name)) % rank for name in ("dim0", "dim1"))
    return state.at({a: b, b: a}.get(state.dim, state.dim))


def transpose_last(op: Op) -> State:
    state = op.only
    return state if isinstance(state, Reduced) else state.at(len(op.shape) - 1 - state.dim)


def _signed(dim: int) -> int:
    return dim - 2**64 if dim >= 2**63 else dim


def squeeze(op: Op) -> State:
    """Without dimensions of size 1, all of them or some; rows are never one here."""
    state = op.only
    if isinstance(state, Reduced) or len(op.shape) == len(op.in_shape):
        return state
    dims = op.dims() if hasattr(op.node, "_saved_dim") else range(len(op.in_shape))
    gone = [d for d in dims if op.in_shape[d] == 1]
    return state.at(state.dim - sum(d < state.dim for d in gone))


def unsqueeze(op: Op) -> State:
    state = op.only
    if isinstance(state, Reduced):
        return state
    new = _signed(op.saved("dim")) % len(op.shape)
    return state.at(state.dim + (new <= state.dim))


def expand(op: Op) -> State:
    state = op.only
    if isinstance(state, Reduced):
        _refuse_repeats(op)
        return state
    return _broadcast(op, state, op.in_shape)


def select(op: Op) -> State:
    state = op.only
    if isinstance(state, Reduced):
        return state
    dim = _signed(op.saved("dim")) % len(op.in_shape)
    if dim == state.dim:
        raise NotRowWise("some rows are picked out of the batch by their place")
    return state.at(state.dim - (dim < state.dim))


def part(op: Op) -> State:
    """A slice, or one of several pieces."""
    state = op.only
    if isinstance(state, Reduced):
        return state
    dim = _signed(op.saved("dim")) % len(op.in_shape)
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
    _refuse_shared(op, state, "weight", "bias")
    return state.fixed()


def gather(op: Op) -> State:
    state = op.rows_only()
    dim = _signed(op.saved("dim")) % len(op.in_shape)
    if dim == state.dim or op.shape[state.dim] != op.in_shape[state.dim]:
        raise NotRowWise("rows are picked out of the batch by a tensor")
    return state.fixed()


def index(op: Op) -> State:
    """`x[a, b, ...]`: rows only by arange, each in its place."""
    state = op.rows_only()
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
    return _joined(found)


def cat(op: Op) -> State:
    state = _several(op)
    if isinstance(state, Reduced):
        return state
    if _signed(op.saved("dim")) % len(op.shape) != state.dim:
        return state
    if any(s is None for s in op.inputs):
        raise Unknown("rows of the batch are joined with others")
    return state._replace(outer=sum(s.outer for s in op.inputs if isinstance(s, Rows)))


def stack(op: Op) -> State:
    state = _several(op)
    if isinstance(state, Reduced):
        return state
    dim = _signed(op.saved("dim")) % len(op.shape)
    return state.at(state.dim + (dim <= state.dim))


def batch_product(op: Op) -> State:
    """A product of matrices for each place of the first dimension."""
    found = [s for s in op.inputs if isinstance(s, Rows) and s.dim == 0]
    if len(found) != sum(s is not None for s in op.inputs) or len({s.where() for s in found}) != 1:
        raise NotRowWise("a product of matrices combines rows with one another")
    return _joined(found)


def matrix_product(op: Op) -> State:
    if None not in op.inputs:
        raise NotRowWise("a product of matrices combines rows with one another")
    op.rows_only()
    raise Unknown("a product with a matrix that all rows share, and that may have been made from them")


# -- torch's own losses ------------------------------------------------------------------------------------------------

_NONE, _MEAN = 0, 1  # torch's codes of a reduction; 2 is a sum


def loss_of_numbers(op: Op) -> State:
    """A loss of each number: of shape (rows, ...) before it is reduced."""
    found = _aligned_inputs(op)
    for name in ("weight", "pos_weight"):
        value = getattr(op.node, f"_saved_{name}", None)
        if value is not None and not _has_rows(value, found, op.shapes[0]):
            raise ClassWeights(f"{op.name} was given {name}, a tensor that all rows share")
    return _by_code(found, op.shapes[0], op.saved("reduction"))


def loss_of_rows(op: Op) -> State:
    """A loss of each row of (rows, classes)."""
    found = _aligned_inputs(op)
    if getattr(op.node, "_saved_weight", None) is not None:
        raise ClassWeights(f"{op.name} was given class weights")
    if found.dim != 0 or len(op.shapes[0]) != 2:
        raise NotRowWise(f"{op.name} takes the rows for classes")
    return _by_code(found, op.shapes[0][:1], op.saved("reduction"))


def _aligned_inputs(op: Op) -> Rows:
    found = [s for s in op.inputs if s is not None]
    if any(isinstance(s, Reduced) for s in found):
        raise _of_the_whole(op)
    if len({s.where() for s in found}) != 1 or len({x for s, x in zip(op.inputs, op.shapes, strict=True) if s}) != 1:  # type: ignore[union-attr]
        raise NotRowWise(f"{op.name} pairs rows with other rows")
    return _joined(found)  # type: ignore[arg-type]


def _by_code(state: Rows, shape: tuple[int, ...], code: int) -> State:
    if code == _NONE:
        return state
    others = tuple(size for d, size in enumerate(shape) if d != state.dim)
    return _reduced(state, others, 1 / prod(shape) if code == _MEAN else 1.0)


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
    if code == _MEAN and float(op.saved("total_weight")) != prod(places):
        raise ClassWeights(
            "cross entropy leaves out targets that are ignore_index, and its mean divides by how many the whole batch has"
        )
    source = op.node.next_functions[0][0]
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


# -- the table ---------------------------------------------------------------------------------------------------------


def _named(rule: Rule, names: str) -> dict[str, Rule]:
    """`Name` stands for NameBackward0, `Name:1` for NameBackward1."""
    pairs = (name.partition(":") for name in names.split())
    return {f"{name}Backward{number or 0}": rule for name, _, number in pairs}


def leaf(op: Op) -> State:
    """A tensor of the user's own that asks for a gradient: the batch itself, or nothing that is known."""
    shape = tuple(op.node.variable.shape)
    if not shape or shape[0] != op.rows:
        raise Leaf(
            f"the loss takes a tensor of shape {shape} that asks for a gradient past the model's layers: a penalty on its weights (use "
            "the optimizer's weight_decay), or a parameter outside the model (put it into the model)"
        )
    return Rows(0)


RULES: dict[str, Rule] = {
    "torch::autograd::AccumulateGrad": leaf,
    **_named(
        elementwise,
        "Relu Sigmoid Tanh Exp Exp2 Expm1 Log Log1P Log2 Log10 Sqrt Rsqrt Abs Sgn Pow Pow:2 Clamp:1 ClampMin ClampMax Softplus LogSigmoid "
        "Gelu Silu Elu LeakyRelu Hardtanh Hardsigmoid Hardswish Mish Threshold Erf Erfc Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh "
        "Atanh Reciprocal NanToNum Lgamma Digamma Logit Sinc NativeDropout",
    ),
    **_named(linear, "ToCopy Clone Alias Add:1 Sub:1"),
    **_named(negative, "Neg Rsub:1"),
    **_named(scaled, "Mul:1"),
    **_named(divided, "Div:1"),
    **_named(add, "Add"),
    **_named(subtract, "Sub"),
    **_named(multiply, "Mul"),
    **_named(divide, "Div"),
    **_named(combined("self", "other"), "Maximum Minimum Fmax Fmin Atan2 Xlogy Logaddexp Hypot"),
    **_named(combined("self", "exponent"), "Pow:1"),
    **_named(combined("condition"), "Where"),
    **_named(combined("min", "max"), "Clamp ClampMin:1 ClampMax:1"),
    **_named(masked_fill, "MaskedFill"),
    **_named(along, "LogSoftmax Softmax Cumsum Cumprod Logcumsumexp Sort Topk Kthvalue Glu"),
    **_named(over, "Logsumexp Max Min Amax Amin Norm:1 Norm:3 LinalgVectorNorm Var Std Prod:1 Median:1 Mode"),
    **_named(over_all, "Max:1 Min:1 Median Norm Norm:2 Prod"),
    **_named(sum_over, "Sum Sum:1"),
    **_named(mean_over, "Mean Mean:1"),
    **_named(view, "View UnsafeView ReshapeAlias"),
    **_named(permute, "Permute"),
    **_named(transpose, "Transpose"),
    **_named(transpose_last, "T"),
    **_named(squeeze, "Squeeze Squeeze:1 Squeeze:2"),
    **_named(unsqueeze, "Unsqueeze"),
    **_named(expand, "Expand"),
    **_named(select, "Select Unbind"),
    **_named(part, "Slice Split SplitWithSizes"),
    **_named(gather, "Gather IndexSelect"),
    **_named(layer_norm, "NativeLayerNorm"),
    **_named(index, "Index"),
    **_named(cat, "Cat"),
    **_named(stack, "Stack"),
    **_named(batch_product, "Bmm"),
    **_named(matrix_product, "Mm Addmm Mv Dot Addmv Linear"),
    **_named(
        loss_of_numbers,
        "MseLoss SmoothL1Loss HuberLoss BinaryCrossEntropy BinaryCrossEntropyWithLogits SoftMarginLoss",
    ),
    **_named(loss_of_rows, "MultiMarginLoss MultilabelMarginLoss"),
    **_named(nll, "NllLoss NllLoss2D"),
    **_named(ctc, "CtcLoss"),
}
