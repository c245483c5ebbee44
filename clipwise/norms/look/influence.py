"""Does one record change another's output, or what the forward pass leaves behind?

The model is run on small batches, always from the same state (state.py) and with all generators seeded alike, so that two
runs can differ by their records alone. A model that does not repeat itself then cannot be looked at, and is refused: a
check is never left out. What is shown for the rows and values that were tried:

- the output for a row is the same whatever stands in the other rows, short or long texts and overflowing values among
  them, and whether there are two rows or three;
- what is left in parameters and buffers is the same whatever the records and their number are;
- what is left in attributes does not reach the next call: neither its output, nor what it leaves itself;
- more padding changes no output (where batches are padded to the longest record), asked in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from clipwise.norms.kernels.kernel import HALF
from clipwise.norms.look.ragged import Cut, Row, leaves_of
from clipwise.norms.look.small_batch import broken, far, first, huge, is_float, second, short
from clipwise.norms.look.state import Leaf, State, alike
from clipwise.norms.look.widened import has_half, in_float32, widened
from clipwise.norms.record.units import Args, Kwargs
from clipwise.randomness import COINS, OF_TORCH, Calm, drawn_since, seed_all
from clipwise.types import Padding, Unsupported

_OF_VALUES = (ValueError, IndexError, RuntimeError, AssertionError)
_TRIES = 3  # of a model that does not repeat itself: what is set up in the first calls may need one or two; chosen
_DRAWS = 3  # in a look, two of them for a model that draws: a permutation of 8 rows leaves 4 among themselves once in 70 times

# Rows a, b, a: no sorting of them by anything in which a and b differ leaves all three in place. So with b, a, b and with
# short rows around a. Beside each base, what stands in the middle instead.
BASES: tuple[tuple[Row, tuple[Row, ...]], ...] = (
    (first, (first, far, huge, broken)),
    (second, (second,)),
    (short, (short,)),
)


def grown(two: torch.Size, three: torch.Size) -> int | None:
    """The dimension that grew from 2 to 3; None if none did; -1 if it is not that simple."""
    if len(two) != len(three):
        return -1
    changed = [i for i, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    if not changed:
        return None
    return changed[0] if len(changed) == 1 and (two[changed[0]], three[changed[0]]) == (2, 3) else -1


class Runs:
    """The model, run from the same state every time."""

    def __init__(self, model: nn.Module, attempt: Callable[..., Any], seed: int):
        """Another seed shows another draw."""
        self._model, self.state = model, State(model)
        self._at_rest = True  # whether nothing has run since the state was made, or put back
        self._attempt = attempt
        self.seed = seed
        self._drew_from: Callable[[], set[str]] = set
        self.left: dict[str, Leaf] = {}  # by the last run
        self.left_by: list[dict[str, Leaf]] = []  # every run that drew alike
        self.may_move: set[str] = set()  # parameters and buffers that some run has changed
        self.varies = False  # whether it may do something else later: it changes a number or a buffer, or draws
        self.half = False  # whether a wide run had anything to widen

    def __call__(
        self,
        batch: tuple[Args, Kwargs],
        *with_: Any,
        draw: int = 0,
        again: bool = False,
        calm: bool = False,
        wide: bool = False,
    ) -> Any:
        """The output. `again`: from the state that the last run has left, but for generators; `calm`: with constants for random
        numbers; `wide`: in float32, whatever the model computes in."""
        self.state.restore_generators() if again else self.put_back()
        self._at_rest = False
        seed = _DRAWS * self.seed + draw
        seed_all(seed)
        args, kwargs = widened(batch) if wide else batch
        with Calm() if calm else nullcontext() as mode, in_float32(self._model) if wide else nullcontext() as widening:
            out = self._attempt(*with_, *args, **kwargs)
        self.half |= widening is not None and (widening.found or has_half(batch))
        self._drew_from = partial(self._sources, seed, mode)
        out = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, out)  # a buffer may be put back in place
        self.left = self.state.moved()
        if not again and not calm and draw == 0:
            self.left_by.append(self.left)
        self.may_move |= {path for path, leaf in self.left.items() if leaf.kept}
        self.varies |= any(leaf.kept or leaf.is_number for leaf in self.left.values())
        return out

    @property
    def drawn(self) -> set[str]:
        """Generators drawn from in the last run; in a calm one, operations that would have."""
        return self._drew_from()

    def _sources(self, seed: int, mode: Calm | None) -> set[str]:
        drawn = drawn_since(seed) | ({"its own"} if self.state.has_generators else set())
        # A calm one knows better what torch's generators were asked for.
        return drawn if mode is None else drawn - OF_TORCH | mode.drawn

    def put_back(self) -> None:
        if not self._at_rest:
            self.state.restore()
        self._at_rest = True

    def have_written_unseen(self) -> bool:
        """Whether a large tensor was written to and no run told (state.py); all is put back."""
        found = self.state.was_written_unseen()
        self._at_rest = True
        if found:
            self.left_by.clear()
        return found


class Run(Protocol):
    """`Runs` with the model's units chosen."""

    def __call__(
        self, batch: Any, *, draw: int = 0, again: bool = False, calm: bool = False, wide: bool = False
    ) -> Any: ...


def refuse_influence(runs: Runs, run: Run, make: Callable[..., Any], small: Any, out: Any) -> None:
    """`make(*rows)` is a batch of these rows; `small` and `out` are the outputs for rows a, b and a, b, a."""
    aba = make(first, second, first)
    out = _repeated(run, aba, out)
    mixed = False
    whole = make(first)
    for base, middles in BASES:
        if base is short and _same(make(short), whole):  # a picture of one channel has no second half: run above
            continue
        with suppress(*_OF_VALUES):  # a model may not like all values
            start = out if base is first else run(make(base, first, base))
            others = _by_middles(run, make, base, middles, aba)
            mixed |= any(_differ(start, other, small, [0, 2]) for other in others)
    _refuse_left(runs.left_by)  # first: where it is this that mixes, its name says more
    if mixed:
        raise mixing("the output for one row changes with the values of another")
    if runs.drawn:
        small, out = (run(make(*rows), calm=True) for rows in ((first, second), (first, second, first)))
        if runs.drawn <= COINS:  # calm, they fall otherwise than they may have fallen so far
            mixed = _differ(out, run(make(first, first, first), calm=True), small, [0, 2])
        else:
            mixed, runs.varies = _differ_at_random(run, make, small), True
        if mixed:
            raise mixing("the output for one row changes with the values of another, by what is drawn at random")
    if _differ(out, small, small, [0, 1]):
        raise mixing("the output for one row changes with the number of rows")
    if any(runs.left_by):
        _refuse_carrying(runs, run, make)


def _same(batch: Any, other: Any) -> bool:
    return all(alike(a, b, exactly=True) for a, b in zip(*map(_tensors, (batch, other)), strict=True))


def _by_middles(run: Run, make: Callable[..., Any], base: Row, middles: tuple[Row, ...], aba: Any) -> Iterator[Any]:
    """The outputs with something else in the middle, where that is something else and the model likes it."""
    floats = any(is_float(x) for x in tree_flatten(aba)[0])
    for middle in middles:
        if floats or middle not in (far, huge, broken):
            with suppress(*_OF_VALUES):
                yield run(make(base, middle, base))


def _repeated(run: Run, batch: Any, out: Any) -> Any:
    """The output for a batch, once it comes out the same twice."""
    for _ in range(_TRIES):
        before, out = out, run(batch)
        if _outputs_alike(before, out):
            return out
    raise Unsupported(
        "the model does not repeat itself: its output for the same records changes from run to run, with its parameters, buffers and "
        "attributes put back, and the generators of torch, numpy and Python seeded alike. Whether it mixes examples cannot be told. Let it "
        "draw from one of these generators, or from one that is an attribute of a module; keep no state outside its modules, and read no "
        "clock"
    )


def _differ_at_random(run: Run, make: Callable[..., Any], small: Any) -> bool:
    """What is drawn may decide who is mixed with whom: more rows, several draws."""
    for draw in range(1, _DRAWS):
        one, other = (run(make(*[first, middle] * 4), draw=draw) for middle in (first, second))
        if _differ(one, other, small, [0, 2, 4, 6]):
            return True
    return False


def _refuse_left(left_by: list[dict[str, Leaf]]) -> None:
    """What is kept with the model must not depend on the records, nor on their number."""
    start, *others = left_by
    for other in others:
        for path in {**start, **other}:
            a, b = start.get(path), other.get(path)
            if not (a or b).kept:  # type: ignore[union-attr]
                continue
            if a is None or b is None or not alike(a.value, b.value):
                raise Unsupported(
                    f"the forward pass writes values of the records, or their number, into the buffer or parameter {path!r} (a running "
                    "statistic?): it would be saved with the model, without noise. Keep it fixed while training, or leave it out"
                )


def _refuse_carrying(runs: Runs, run: Run, make: Callable[..., Any]) -> None:
    """Two calls in a row: the second may not show what records the first had, nor how many."""

    def twice(*rows: Row) -> tuple[Any, dict[str, Leaf], dict[str, Leaf]]:
        run(make(*rows))
        after_one = runs.left
        return run(make(first, second, first), again=True), after_one, runs.left

    (out, one, two), (other_out, other_one, other_two) = twice(first, second, first), twice(far, short)
    carried = list(_depending(two, other_two))
    if carried:
        again = twice(first, second, first)[2]
        unsteady = set(_depending(two, again))  # a clock, say
        carried = [path for path in carried if path not in unsteady]
    used = not _outputs_alike(out, other_out)
    if carried or used:
        names = carried or list(_depending(one, other_one)) or ["what it keeps"]
        raise Unsupported(
            f"the model remembers records: what the forward pass leaves in {', '.join(map(repr, names[:3]))} changes "
            f"{'the output of' if used else 'what is left by'} the next call, so that a record would go on to act, without noise, in steps that "
            "it was not drawn for. Keep no running statistics, centres or code books of records"
        )


def _depending(left: Mapping[str, Leaf], other: Mapping[str, Leaf]) -> Iterator[str]:
    """Names of what two runs have left with different values. What only one has left may be a cache, by shape."""
    for path in left.keys() & other.keys():
        if not alike(left[path].value, other[path].value):
            yield path


# -- comparing outputs --------------------------------------------------------------------------------------------------


# Relative, of rounding through a deep network: of float32, and of half precision. Chosen, not measured.
_ROUNDING, _ROUNDING_OF_HALF = 1e-4, 3e-2


def _close(x: Tensor, y: Tensor, *, wide: bool = False) -> bool:
    """Up to rounding. `wide`: of two runs in float32, though under autocast."""
    half = x.dtype in HALF or (not wide and torch.is_autocast_enabled(x.device.type))
    tolerance = _ROUNDING_OF_HALF if half else _ROUNDING
    largest = float(x.abs().nan_to_num(0, 0, 0).max()) if x.numel() else 0.0
    return torch.allclose(x, y, rtol=tolerance, atol=0.1 * tolerance * largest, equal_nan=True)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, Tensor)]


def _floats(tree: Any) -> list[Tensor | None]:
    return [x.detach() if is_float(x) else None for x in tree_flatten(tree)[0]]


def _outputs_alike(out: Any, other: Any) -> bool:
    pairs = list(zip(_floats(out), _floats(other), strict=True))
    return all(x is None or y is None or (x.shape == y.shape and _close(x, y)) for x, y in pairs)


def _differ(out: Any, other: Any, small: Any, rows: list[int]) -> bool:
    """In these rows; `small` is the output for two. Values show what is mixed where no gradient is watched: before the first
    layer, behind a detach, inside a unit that runs generically."""
    for x, y, two in zip(_floats(out), _floats(other), _floats(small), strict=True):
        if x is None or y is None or two is None:
            continue
        dim = _rows_of(two.shape, x.shape)
        if dim is None:
            continue
        index = torch.tensor(rows, device=x.device)
        x, y = x.index_select(dim, index), y.index_select(dim, index)
        if x.shape != y.shape or not _close(x, y):
            return True
    return False


def _rows_of(two: torch.Size, more: torch.Size) -> int | None:
    """The dimension that is 2 for two rows and longer for more."""
    dims = [d for d, (a, b) in enumerate(zip(two, more, strict=False)) if a == 2 and b > 2]
    return dims[0] if len(two) == len(more) and dims else None


def mixing(how: str) -> Unsupported:
    return Unsupported(
        f"the model mixes examples: {how}. No example's influence can then be bounded. Replace what mixes or reorders them (batch "
        "statistics, batch-wise attention, sorting by length, cutting to the longest text); clipwise.fix(model) replaces BatchNorm"
    )


# -- padding ------------------------------------------------------------------------------------------------------------


def refuse_padding(run: Run, args: Args, kwargs: Kwargs, cuts: Sequence[Cut], padding: Padding) -> None:
    """The row that is padded most, with its padding and without: the same output, or the longest record of a batch would
    change all the others' gradients."""
    leaves, spec = leaves_of((args, kwargs))
    if any(cut is not None and not isinstance(cut, int) for cut in cuts):
        raise Unsupported(f"{_PADDED} The model is given packed or listed records beside it. {_PAD_TO}")

    def own(x: Any, dim: Any) -> Any:
        return x if dim is None else x.detach().index_select(dim, torch.tensor([padding.row] * 2, device=x.device))

    rows = [own(x, dim) for x, dim in zip(leaves, cuts, strict=True)]
    bare: list[Any] = [
        _without(x, padding, but=dim) if isinstance(x, Tensor) else x for x, dim in zip(rows, cuts, strict=True)
    ]
    if all(x is y for x, y in zip(rows, bare, strict=True)):
        raise Unsupported(
            f"{_PADDED} No argument of the model has that length, so that it cannot be asked whether it minds. {_PAD_TO}"
        )
    try:
        outs = [run(tree_unflatten(each, spec), calm=True, wide=True) for each in (rows, bare)]
    except _OF_VALUES as problem:
        raise Unsupported(
            f"{_PADDED} Whether the model minds cannot be asked: it does not run on one record twice, in float32, with its padding and without "
            f"({type(problem).__name__}). {_PAD_TO}"
        ) from problem
    for x, y in zip(*map(_floats, outs), strict=True):
        if x is not None and y is not None:
            x = x if x.shape == y.shape else _without(x, padding)
            if x.shape != y.shape or not _close(x, y, wide=True):
                raise Unsupported(
                    f"{_PADDED} The model's output for a record changes with the padding beside it. {_PAD_TO}"
                )


def _without(x: Tensor, padding: Padding, but: Cut = None) -> Tensor:
    """Without the padding, in every dimension (but the one of the rows) that is as long as the padded batch."""
    for dim, size in enumerate(x.shape):
        if dim != but and size in padding.own_length:
            real = padding.own_length[size]
            x = x.narrow(dim, size - real if padding.leading else 0, real)
    return x


_PADDED = "the collate function pads a batch to its longest record, so that one record decides how much padding all the others get."
_PAD_TO = (
    "Give attach(..., pad_to=LENGTH), a public number that every batch is padded or cut to (or make the loader with "
    "collate_fn=clipwise.pad_to(collate, LENGTH)); or let the model mask the padding"
)
