"""What a layer must offer so that its per-example gradients can be measured and summed without a second backward pass.

A layer records a `Call` (its inputs, its parameters) in the forward pass. When the output gradient `b` arrives in the
backward pass, a *kernel* turns (call, b) into a `Part`:

    squared_norms      (rows,)  ||g_i||^2 over the parameters of this call
    weighted_sum(w)    role -> sum_i w_i g_i; may be called several times, with other weights

`Direct` stores the per-example gradients; `Ghost` stores inputs and output gradients, and never forms them; `Split` is
one way for the first rows and another for the rest; `blocks.Unformed` forms them a few rows at a time. All must agree
with a loop over single examples to rounding; a part's row i depends on row i of its tensors alone, so that a record with
NaN in it can be taken out (`drop_rows`) without touching the others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

# Squares that are added up in float32, the runs then in float64: with equal numbers, the worst case, 2,048 of them stay
# within the slack of the weights (sensitivity_test.py); one run of 4 million was 0.2 % short.
RUN = 2048
# In eps: what a sum's terms come to, times this, is taken as its squared norm at least. Chosen above the rounding of a few
# additions; cancelling records of sensitivity_test.py hold with it, and fail without.
GUARD = 16
HALF = (torch.float16, torch.bfloat16)


class Part(Protocol):
    @property
    def squared_norms(self) -> Tensor: ...
    def drop_rows(self, bad: Tensor) -> None: ...
    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]: ...


class Direct:
    """Per-example gradients, formed: role -> (rows, *shape of the parameter)."""

    def __init__(self, grads: Mapping[str, Tensor]):
        self.grads = dict(grads)
        self.squared_norms = sum_of_squares(*self.grads.values())

    def drop_rows(self, bad: Tensor) -> None:
        for role, g in self.grads.items():
            self.grads[role] = without_rows(g, bad)

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        return {role: (weights @ as_rows(g)).view(g.shape[1:]) for role, g in self.grads.items()}


class Ghost:
    """Norms already known; `finish(weights, *tensors)` makes the weighted sums. Every tensor has rows first."""

    def __init__(self, squared_norms: Tensor, tensors: tuple[Tensor, ...], finish: Callable[..., dict[str, Tensor]]):
        self.squared_norms = squared_norms
        self._tensors = tensors
        self._finish = finish

    def drop_rows(self, bad: Tensor) -> None:
        self._tensors = tuple(without_rows(t, bad) for t in self._tensors)

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        return self._finish(weights, *self._tensors)


class Split:
    """The first rows of a call in one part, the others in another."""

    def __init__(self, first: Part, rest: Part):
        self._first, self._rest = first, rest
        self._at = len(first.squared_norms)
        self.squared_norms = torch.cat([first.squared_norms, rest.squared_norms])

    def drop_rows(self, bad: Tensor) -> None:
        self._first.drop_rows(bad[: self._at])
        self._rest.drop_rows(bad[self._at :])

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        rest = self._rest.weighted_sum(weights[self._at :])
        return {role: total.add_(rest[role]) for role, total in self._first.weighted_sum(weights[: self._at]).items()}


class Call(NamedTuple):
    """One use of some parameters in the forward pass. `params` holds the trainable ones only, by role ("weight",
    "bias").

    `pieces` says, for a role, which leading rows of its parameter it stands for (a packed projection); the whole if
    absent.
    """

    kernel: Kernel
    params: Mapping[str, nn.Parameter]
    config: Hashable = None
    pieces: Mapping[str, slice] = {}


class Kernel:
    """A way to per-example gradients for one kind of layer.

    `direct` is required: it serves parameters that are used more than once (tied weights, a module called twice), whose
    per-example gradients must be added before the norm is taken. `candidates` may offer faster ways, the fastest
    *first*: the engine takes that one, unless it would store too much (choice.py). Those
    named in `spares` do what direct does and store less: they take its place where it may not store all rows.
    """

    spares: frozenset[str] = frozenset()

    def direct(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Tensor]:
        raise NotImplementedError

    def candidates(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Way]:  # noqa: ARG002
        return {"direct": self.direct_part}

    def direct_part(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        return Direct(self.direct(call, saved, b))


Way = Callable[[Call, tuple[Tensor, ...], Tensor], Part]


def split(first: Way, rest: Way, at: int) -> Way:
    """`first` for the rows before `at`, `rest` from there on."""

    def way(call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        # Copies, because a slice that is kept would keep the whole tensor.
        others = rest(call, tuple(s[at:].clone() for s in saved), b[at:].clone())
        return Split(first(call, tuple(s[:at] for s in saved), b[:at]), others)

    return way


class PerExample(Kernel):
    """For outputs that *are* one copy of a parameter a row: b is its per-example gradient already."""

    def direct(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        [(role, p)] = call.params.items()
        return {role: b.reshape(b.shape[0], *p.shape)}


PER_EXAMPLE = PerExample()


def sum_of_squares(*tensors: Tensor) -> Tensor:
    """(rows,), in float64: the squared l2 norm of each row over all tensors, never less for squares that underflow."""
    total = None
    for t in tensors:
        flat = widened(as_rows(t))
        squares = lengths(flat).double().square_().add_(flat.shape[1] * torch.finfo(flat.dtype).smallest_normal)
        total = squares if total is None else total + squares
    if total is None:
        raise ValueError("sum_of_squares needs at least one tensor")
    return total


def as_rows(t: Tensor) -> Tensor:
    """(rows, numbers), also for a parameter that is one number."""
    return t.flatten(1) if t.dim() > 1 else t.unsqueeze(1)


def widened(t: Tensor) -> Tensor:
    """In float32 at least: half a dozen digits are too few to add up in."""
    return t.float() if t.dtype in HALF else t


def lengths(rows: Tensor) -> Tensor:
    """l2 norms along the last dimension, long rows in runs, because vector_norm adds a row up in a few lanes: over 4 million
    equal float32 numbers it is 0.2 % short."""
    width = rows.shape[-1]
    if width <= RUN:
        return cast(Tensor, torch.linalg.vector_norm(rows, dim=-1))
    rest = width % RUN
    runs = torch.linalg.vector_norm(rows[..., : width - rest].unflatten(-1, (-1, RUN)), dim=-1)
    if rest:
        runs = torch.cat([runs, torch.linalg.vector_norm(rows[..., -rest:], dim=-1, keepdim=True)], -1)
    return cast(Tensor, torch.linalg.vector_norm(runs, dim=-1, dtype=torch.float64))


@cache
def wide(dtype: torch.dtype) -> torch.dtype:
    """What sums for a parameter of this type are taken in: a sum that was rounded to half precision before its noise could
    jump by several bounds for one record."""
    return torch.promote_types(dtype, torch.float32)


def widened_for(p: Tensor, t: Tensor) -> Tensor:
    if t.dtype is p.dtype and t.dtype in (torch.float32, torch.float64):
        return t
    return t.to(wide(p.dtype)) if t.is_floating_point() else t


def against_cancellation(reach_squared: Tensor, dtype: torch.dtype) -> Tensor:
    """To be added to a squared norm where the weighted sum will not be made from the gradient that was measured, but from
    its terms; `reach` is what the terms' norms come to. Terms that cancel in the norm, which gets a large weight then, would
    not cancel in the sum to more than rounding, nor leave the other rows' terms as they are."""
    return GUARD * torch.finfo(dtype).eps * reach_squared


def without_rows(t: Tensor, bad: Tensor) -> Tensor:
    """A copy whose bad rows are zero. Never in place: t may be the user's own batch."""
    return t.masked_fill(bad.view(-1, *[1] * (t.dim() - 1)), 0)


def scale_rows(t: Tensor, weights: Tensor) -> Tensor:
    """t with row i multiplied by weights[i]."""
    if t.dim() == 2 and t.dtype is weights.dtype:
        return t * weights.unsqueeze(1)
    return t * weights.to(t.dtype).view(-1, *[1] * (t.dim() - 1))


def gram_squared_norms(a: Tensor, b: Tensor) -> Tensor:
    """||sum_t a_t b_t^T||_F^2 for each row of a (rows, T, p) and b (rows, T, d), from T x T Gram matrices."""
    a, b = widened(a), widened(b)
    return paired_grams(torch.bmm(a, a.mT), torch.bmm(b, b.mT), a.shape[-1] + b.shape[-1])


def paired_grams(gram_a: Tensor, gram_b: Tensor, width: int) -> Tensor:
    """The same from the Gram matrices (rows, T, T) themselves, for layers that share one between parameters; `width`
    numbers were added up for one product of their entries.

    Sound under rounding: where the T terms cancel, a Gram sum can read less than the truth, even below zero; and a matrix
    product adds long rows up one number after another. So the rounding error that the sum can carry, in eps of (sum_t
    |a_t||b_t|)^2, is added: the result is never below the true norm by more than that.
    """
    eps, tiny = torch.finfo(gram_a.dtype).eps, torch.finfo(gram_a.dtype).smallest_normal
    a, b = (g.diagonal(dim1=1, dim2=2).double().clamp_min(0).sqrt() for g in (gram_a, gram_b))  # |a_t|, |b_t|
    reach = (a * b).sum(1).square()
    # What may have underflowed: width products in each entry, and the products of the entries.
    lost = tiny * (width * (a.sum(1).square() + b.sum(1).square()) + gram_a.shape[1] ** 2)
    total = (gram_a.flatten(1) * gram_b.flatten(1)).sum(1)  # `sum` adds in pairs; a product of rows would not
    return total.double().clamp_min(0) + (GUARD + width / 16) * eps * reach + lost
