"""What the loop does with its 1st, 2nd, 4th ... batch between the loader and the backward pass, on record, and done again with other
records in the place of some.

The graph holds what was differentiated. Targets, masks, weights and whatever was detached enter it as constants, and may
have been computed from several records: a mask of the batch's hardest rows, weights that are normalised over the batch, a
baseline that was detached, inputs that were centred or mixed. So torch's functions are watched for such a batch, from the
records that the loader gave and the outputs of the model to the loss; then they run again, on the same values and with
half of the rows replaced by others. What arrives at the outputs of the rows that stayed, and what the model was given for
them, must stay too.

What the loop has compiled (`torch.compile`) runs step by step meanwhile, so that the steps are seen and nothing is compiled anew.

It sees what is computed by torch's functions on tensors of the batch. A number that is read from them (`.item()`) is
remembered, so that a loop that computes with it is refused. A loop that leaves torch in between (numpy, a function of one's own)
is followed only as far as that.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._pytree import tree_flatten, tree_map

from clipwise.norms.loss.roots import gradients_of
from clipwise.randomness import held, seed_all

# Operations of a loop between loader and backward; one that has more is not followed. Chosen, not measured.
MOST_STEPS = 5000
# Rows that the others are replaced by, time after time: many, which leaves the batch much as it was, and one, which moves its
# mean, its quantiles and its counts. A mask of the 4 hardest of 17 rows stays the same in about every fifth time.
DONORS = (1 << 30, 1, 1, 1, 1)
# Relative to the largest gradient: the same kernels on the same rows. Chosen far above float32's rounding, not measured.
_TOLERANCE = 1e-4

_READS = ("item", "tolist", "__float__", "__int__", "__index__")
_LEAVES = ("numpy", "__array__", "tolist", "__dlpack__", "grad")  # where torch's functions see no more
_NOT_AGAIN = ("backward", "register_hook", "retain_grad", "requires_grad_", "__repr__", "__format__", *_LEAVES)
# Functions that make values of a whole number; in others it may be a length or a place.
_ARITHMETIC = ("mul", "div", "add", "sub", "pow", "full", "tensor", "clamp", "where", "fill", "maximum", "minimum")
# Whole numbers up to it are in many losses (squares, class numbers), read from the batch or not. Chosen, not measured.
_SMALL_COUNT = 16
# Of torch's own: what they make of records on the way is in the graph, row by row.
_LOSSES = (
    F.cross_entropy,
    F.nll_loss,
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy_with_logits,
)


class _Slot(int):
    """The place of a tensor that is followed."""


class Witness(TorchFunctionMode):
    """Between `start` and `stop` it takes down what happens to the records, in this thread."""

    def __init__(self, rows: int, records: Any, batch_dim: int | None = None):
        """`batch_dim`: where the rows of the model's arguments are, if that was declared."""
        super().__init__()
        self.rows, self._batch_dim = rows, batch_dim
        self.used: float | None = None  # a number that was read from tensors of the batch and given to a function
        self._numbers: list[float] = []  # that were read
        self._left = False  # whether something was taken out of torch
        self._taking_down = True
        self._done = False
        self._count = 0  # of slots
        # Nothing of the loop's graph is held: it holds the engine, and a run that is given up must be free to go.
        self._known: dict[int, tuple[weakref.ref[Tensor], _Slot]] = {}  # by the tensor's id
        self._steps: list[tuple[Callable[..., Any], Any, Any, list[_Slot], bool]] = []
        self._start: dict[_Slot, Tensor] = {}  # values before the first step
        self._outputs: dict[_Slot, int] = {}  # dimension of its rows
        self._inputs: list[_Slot] = []  # that the model was given
        for x in tree_flatten(records)[0]:
            if isinstance(x, Tensor):
                self._follow(x)
        self._records = set(self._start)

    # -- while the loop runs -------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._take_place()

    def stop(self) -> None:
        """No more is taken down. (Who calls this from inside a torch function has to call `leave` later.)"""
        self._taking_down, self._done = False, True

    def leave(self) -> None:
        self.stop()
        self._step_aside()

    def _take_place(self) -> None:
        # Below the modes of the user (`with torch.device(...)` around the loop), who will take the topmost away for theirs.
        others = [m for m in _get_current_function_mode_stack() if not (isinstance(m, Witness) and m._done)]
        _set_modes([self, *(mode for mode in others if mode is not self)])
        if not _in_place and "torch._dynamo" in sys.modules:  # else nothing is compiled
            _stance.append(torch.compiler.set_stance("force_eager"))
        _in_place.add(self)

    def _step_aside(self) -> None:
        """torch's functions cost nothing more then."""
        modes = _get_current_function_mode_stack()
        if self in modes:
            _set_modes([mode for mode in modes if mode is not self])
        _in_place.discard(self)
        if not _in_place and _stance:
            _stance.pop().__exit__(None, None, None)

    def pause(self, given: Any, *, lost: bool = False) -> None:
        """The model runs: what it does with its input is looked at elsewhere. `lost`: what comes out will not be followed."""
        self._left |= lost
        if self._taking_down:
            self._step_aside()
            self._inputs += [
                n for x in tree_flatten(given)[0] if isinstance(x, Tensor) and (n := self._slot(x)) is not None
            ]
        self._taking_down = False

    def go_on(self, outputs: Sequence[tuple[Tensor, int]]) -> None:
        """`outputs` of the model, each with the dimension of its rows."""
        for x, dim in outputs:
            self._outputs[self._follow(x)] = dim
        self._taking_down = not self._done
        if self._taking_down:
            self._take_place()

    @torch._disable_dynamo  # and not torch.compiler.disable, which imports the compiler here and now: most of a second
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._taking_down:
            return func(*args, **kwargs)
        leaves = tree_flatten((args, kwargs))[0]
        given = [x for x in leaves if isinstance(x, Tensor)]
        name = getattr(func, "__name__", "")
        if self._numbers:
            self._look_for_numbers(name, leaves)
        if all(self._slot(x) is None for x in given):
            return func(*args, **kwargs)
        changes = name == "__set__" or (name.endswith("_") and not name.startswith("__"))
        changes = (
            changes
            or name == "__setitem__"
            or (name.startswith("__i") and name not in ("__index__", "__int__", "__invert__"))
        )
        if changes and self._slot(given[0]) is None:
            self._follow(given[0])
        out = func(*args, **kwargs)
        self._take_down(func, name, args, kwargs, out, changes)
        return out

    def _take_down(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        changes: bool,
    ) -> None:
        self._left |= name in _LEAVES
        if name in _READS:
            self._numbers += [float(x) for x in tree_flatten(out)[0] if isinstance(x, int | float)]
            return
        made = _tensors(out)
        if name in _NOT_AGAIN or not (made or changes):
            return
        frozen = tree_map(self._frozen, (args, kwargs))
        self._steps.append((func, *frozen, [self._new_slot(x) for x in made], torch.is_grad_enabled()))
        if len(self._steps) > MOST_STEPS:
            self._taking_down = False

    def _look_for_numbers(self, name: str, leaves: Sequence[Any]) -> None:
        whole_too = any(word in name for word in _ARITHMETIC)
        for x in leaves:
            if not isinstance(x, int | float) or isinstance(x, bool) or not x or not math.isfinite(x):
                continue
            if whole_too or x != int(x):
                known = (v for v in self._numbers if v != self.rows and (abs(v) > _SMALL_COUNT or v != int(v)))
                if any(math.isclose(x, v, rel_tol=1e-9) or math.isclose(x * v, 1, rel_tol=1e-9) for v in known):
                    self.used = x

    def _follow(self, x: Tensor) -> _Slot:
        slot = self._new_slot(x)
        if slot not in self._start:  # a copy that nobody needs would be taken down
            self._start[slot] = x.detach().clone()
        return slot

    def _slot(self, x: Tensor) -> _Slot | None:
        known = self._known.get(id(x))
        return known[1] if known is not None and known[0]() is x else None

    def _new_slot(self, x: Tensor) -> _Slot:
        slot = self._slot(x)
        if slot is None:
            slot, self._count = _Slot(self._count), self._count + 1
            self._known[id(x)] = weakref.ref(x), slot
        return slot

    def _frozen(self, x: Any) -> Any:
        """An argument as it is kept: the place of a tensor that is followed, the value of any other."""
        if not isinstance(x, Tensor):
            return x
        slot = self._slot(x)
        return x.detach() if slot is None else slot

    # -- once more -----------------------------------------------------------------------------------------------------

    def finds_mixing(self, roots: Sequence[Any], generator: torch.Generator, *, proved: bool) -> bool | None:
        """Whether gradients at the outputs, or inputs of the model, of some rows change with the values of others; None where
        the loop could not be followed, or not be done again. `proved`: whether the graph of the loss is known to keep rows apart.
        The record is used up."""
        self.stop()
        try:
            if proved and self._is_bare():
                return False
            ends = [self._slot(root) if isinstance(root, Tensor) else None for root in roots]
            if len(self._steps) > MOST_STEPS or None in ends:
                return None
            try:
                before = self._again(ends, None)
                for donors in DONORS:
                    stay, order = self._swap(donors, generator)
                    after = self._again(ends, order)
                    if any(_differ(a, b, dim, stay) for (a, dim), (b, _) in zip(before, after, strict=True)):
                        return True
            except Exception:  # what cannot be done again says nothing
                return None
            return None if self._left else False
        finally:
            self.forget()

    def _is_bare(self) -> bool:
        """Whether nothing was computed but one loss of torch's, from records and outputs as they came: then no value of
        the graph was made from several records."""
        if len(self._steps) != 1 or self._left or not self._records.issuperset(self._inputs):
            return False
        func, args, kwargs, _, _ = self._steps[0]
        given = tree_flatten((args, kwargs))[0]
        known = self._records | self._outputs.keys()
        return func in _LOSSES and all(x in known if isinstance(x, _Slot) else not isinstance(x, Tensor) for x in given)

    def forget(self) -> None:
        self._known, self._steps, self._start, self._inputs = {}, [], {}, []

    def _swap(self, donors: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Which rows stay, and what stands in the place of each: itself, or one of at most so many of those that stay."""
        stay = torch.zeros(self.rows, dtype=torch.bool)
        stay[torch.randperm(self.rows, generator=generator)[: (self.rows + 1) // 2]] = True
        places = torch.arange(self.rows)
        some = places[stay][torch.randint(int(stay.sum()), (min(donors, self.rows),), generator=generator)]
        others = some[torch.randint(len(some), (self.rows,), generator=generator)]
        return stay, torch.where(stay, places, others)

    def _again(self, ends: Sequence[Any], order: Tensor | None) -> list[tuple[Tensor, int]]:
        """Gradients at the outputs, and inputs of the model, with the rows in another order (`order[i]` in the place of i)."""
        now: dict[_Slot, Tensor] = {}
        leaves: dict[_Slot, Tensor] = {}
        for slot, value in self._start.items():
            x = value if order is None or not self._is_source(slot) else self._reordered(slot, value, order)
            if slot in self._outputs and x.is_floating_point():
                leaves[slot] = x.clone().requires_grad_()
                now[slot] = leaves[slot].clone()
            else:
                now[slot] = x.clone()

        def current(x: Any) -> Any:
            return now[x] if isinstance(x, _Slot) else x

        with held():
            seed_all(0)
            for func, args, kwargs, made, grad in self._steps:
                with torch.set_grad_enabled(grad):
                    result = func(*tree_map(current, args), **tree_map(current, kwargs))
                now.update(zip(made, _tensors(result), strict=True))
            total = sum(now[end].double().sum() for end in ends)
        found: list[tuple[Tensor, int]] = []
        if leaves and isinstance(total, Tensor) and total.requires_grad:
            grads = gradients_of(total, list(leaves.values()))
            dims = [self._outputs[slot] for slot in leaves]
            found += [(torch.zeros(()), -1) if g is None else (g, dim) for g, dim in zip(grads, dims, strict=True)]
        given = [now[slot].detach() for slot in self._inputs]
        return found + [(x, self._dim(x, self._batch_dim)) for x in given if x.is_floating_point()]

    def _is_source(self, slot: _Slot) -> bool:
        return slot in self._records or slot in self._outputs

    def _reordered(self, slot: _Slot, value: Tensor, order: Tensor) -> Tensor:
        dim = self._outputs.get(slot, self._dim(value))
        return value if dim < 0 else value.index_select(dim, order.to(value.device))

    def _dim(self, x: Tensor, declared: int | None = None) -> int:
        """Where the rows of a tensor of the batch are; -1: nowhere."""
        dims = [d for d in range(min(2, x.dim())) if x.shape[d] == self.rows]
        return declared if declared in dims else next(iter(dims), -1)


_in_place: set[Witness] = set()  # of all threads and runs
_stance: list[Any] = []  # of the compiler, while one is


def _set_modes(modes: list[TorchFunctionMode]) -> None:
    while _get_current_function_mode_stack():
        _pop_mode()
    for mode in modes:
        _push_mode(mode)


def _tensors(out: Any) -> list[Tensor]:
    """Of a result of torch's: a tensor, or several in a tuple (named or not), a list or a dictionary."""
    if isinstance(out, Tensor):
        return [out]
    parts = out.values() if isinstance(out, dict) else out if isinstance(out, tuple | list) else ()
    return [x for part in parts for x in _tensors(part)]


def _differ(before: Tensor, after: Tensor, dim: int, stay: Tensor) -> bool:
    if dim < 0 or before.shape != after.shape:
        return before.shape != after.shape
    a, b = (x.movedim(dim, 0)[stay.to(x.device)].double().nan_to_num(0, 0, 0) for x in (before, after))
    return bool(((a - b).abs() > _TOLERANCE * a.abs().max()).any())
