"""Embeddings and bags of embeddings.

A row of T tokens with output gradients b_t has the gradient sum of b_t over the places where token v stands, at row v
of the table: no more than T rows of it are not zero. So the tokens are sorted once by (token, example), and both
answers are sums over runs of that order, by the forward kernel of `embedding_bag`:

    ||g_i||^2      = sum over the distinct tokens of example i of |sum of b_t at this token|^2
    sum_i w_i g_i  = for each token, the sum of w_i b_t over all its places

which is faster than autograd's own dense gradient. Only tokens that an example repeats need be summed for the norms; where
looking for them would mean to wait for a device, all are (`devices.py`), and padding is no place left out but one of weight 0.
In a bag (a sum or mean over the tokens) every place has the same gradient up to a factor s_t: b_t = s_t b_i. Then

    ||g_i||^2      = |b_i|^2 * sum over distinct tokens of (sum of s_t)^2

and b is never spread over the places. Bags in one long list with offsets become rows of one length, with factors of 0 behind
their ends. A plain Embedding whose output is summed over the tokens is such a bag too: its
gradient arrives as an expanded tensor, of stride zero; and so is one whose output is averaged, though autograd then
writes the copies out.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.devices import in_host_memory
from clipwise.norms.kernels.kernel import (
    Call,
    Ghost,
    Kernel,
    Part,
    Way,
    against_cancellation,
    scale_rows,
    sum_of_squares,
)
from clipwise.norms.layers.registry import Tap, layer
from clipwise.types import Unsupported

# Places, times this: in a table with more tokens they are few, and those that are not there need no place in a sum's indices (of 10^6 tokens,
# 60 MB of them). Chosen, not measured.
FEW = 4
CACHED_BYTES = 2 * 2**20  # of gradients that are swept twice: about the cache of a core; chosen, not measured


class _Places(NamedTuple):
    """The places of a batch of tokens (rows, T), without padding, sorted by token, then by example."""

    masked: Tensor | None  # (rows, T) of places that count, where padding was not left out
    place: Tensor  # (n,) in the flattened (rows * T)
    row: Tensor  # (n,) the example it belongs to
    begins: Tensor  # (n,) bool: the first place of its (token, example)
    starts: Tensor  # where the places of a token begin: of each in the table, or of each in `there`
    there: Tensor | None  # the tokens that are there, where they are few
    size: int  # tokens in the table
    lengths: Tensor  # (rows,) how many places each example has


class Config(NamedTuple):
    padding: int | None
    mode: str = "sum"  # of a bag


def _config(call: Call) -> Config:
    return cast(Config, call.config)


def _sorted_places(tokens: Tensor, size: int, padding: int | None) -> _Places:
    rows, length = tokens.shape
    # Radix sort takes half the time on 32 bits.
    small = torch.int32 if size * rows < 2**31 else torch.int64
    row = torch.arange(rows, dtype=small, device=tokens.device).unsqueeze(1)
    key = torch.add(row, tokens.to(small), alpha=rows).flatten()
    flat, kept = tokens.flatten(), None
    lengths = torch.full((rows,), length, device=tokens.device)
    masked = None
    if padding is not None and not in_host_memory(tokens.device):
        masked = tokens != padding
        lengths = masked.sum(1)
    elif padding is not None:
        there = tokens != padding
        lengths, kept = there.sum(1), there.flatten().nonzero().squeeze(1)
        key, flat = key[kept], flat[kept]
    key, order = key.sort(stable=True)
    place = order if kept is None else kept[order]
    begins = torch.ones_like(key, dtype=torch.bool)
    torch.ne(key[1:], key[:-1], out=begins[1:])
    row = torch.div(place, length, rounding_mode="floor")
    if in_host_memory(tokens.device) and FEW * len(key) < size:
        found, counts = torch.unique_consecutive(torch.div(key, rows, rounding_mode="floor"), return_counts=True)
        return _Places(masked, place, row, begins, counts.cumsum(0) - counts, found.long(), size, lengths)
    counts = _counts(flat, size)
    return _Places(masked, place, row, begins, counts.cumsum(0) - counts, None, size, lengths)


def _table(source: Tensor, index: Tensor, places: _Places, factors: Tensor | None) -> Tensor:
    """(tokens in the table, d): for each token the sum of source[index] * factors over its places."""
    sums = _sums(source, index, places.starts, factors)
    if places.there is None:
        return sums
    return sums.new_zeros(places.size, sums.shape[1]).index_copy_(0, places.there, sums)


def _counts(numbers: Tensor, size: int) -> Tensor:
    """How often each of so many numbers is there; `bincount` looks at the largest."""
    if in_host_memory(numbers.device):
        return torch.bincount(numbers, minlength=size)
    found = torch.zeros(size, dtype=torch.int64, device=numbers.device)
    return found.scatter_add_(0, numbers.long(), torch.ones_like(numbers, dtype=torch.int64))


class _Runs(NamedTuple):
    """Of places in their order: those of one (token, example) are a run."""

    number: Tensor  # (n,) of each place's run
    starts: Tensor  # (runs,) where each begins; on a device as many as places, and n for those that there are not
    rows: Tensor  # (runs,)


def _runs(places: _Places) -> _Runs:
    begins, size = places.begins, len(places.begins)
    number = begins.cumsum(0) - 1
    if in_host_memory(begins.device):
        starts = begins.nonzero().squeeze(1)
        return _Runs(number, starts, places.row[starts])
    along = torch.arange(size, device=begins.device)
    starts = torch.full_like(along, size).scatter_reduce_(0, number, along, "amin")
    return _Runs(number, starts, places.row[starts.clamp_max(size - 1)] if size else starts)


def _sums(source: Tensor, index: Tensor, starts: Tensor, factors: Tensor | None = None) -> Tensor:
    """Sums of source[index] * factors over index[starts[k] : starts[k + 1]], one row each."""
    factors = None if factors is None else factors.to(source.dtype)
    return F.embedding_bag(index, source, starts, mode="sum", per_sample_weights=factors)


def _squares(t: Tensor) -> Tensor:
    return sum_of_squares(t) if len(t) else t.new_zeros(0, dtype=torch.float64)


class EmbeddingKernel(Kernel):
    """saved: tokens (rows, ...)."""

    def direct(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Tensor]:
        tokens = saved[0].flatten(1) if saved[0].dim() > 1 else saved[0].unsqueeze(1)
        return _dense(call, tokens, _config(call).padding, b.reshape(*tokens.shape, b.shape[-1]))

    def candidates(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Way]:  # noqa: ARG002
        return {"sorted": self.sorted}

    def sorted(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        rows = b.shape[0]
        tokens = saved[0].reshape(rows, -1)
        places = _sorted_places(tokens, call.params["weight"].shape[0], _config(call).padding)
        if b.dim() > 2 and _same_at_all_places(b):
            while b.dim() > 2:
                b = b.select(1, 0)
            return _bag(b.clone(), None, places)  # a copy, so that the large tensor can go
        return _apart(b.reshape(rows, -1, b.shape[-1]), places)


def _same_at_all_places(b: Tensor) -> bool:
    """Whether b (rows, ..., d) is constant over what lies between: by its strides, or, after a mean, by its values."""
    between = list(zip(b.shape[1:-1], b.stride()[1:-1], strict=True))
    if all(size == 1 or stride == 0 for size, stride in between):
        return True
    if not in_host_memory(b.device) or b.dim() > 3 or not torch.equal(b[:, 0], b[:, -1]):  # most gradients stop here
        return False
    # Two sweeps on all cores, where `equal` has one core; the second finds a few rows in the cache. NaN equals nothing.
    few = max(1, CACHED_BYTES // max(1, b[0].nbytes))
    return all(torch.equal(part.amax(1), part.amin(1)) for part in b.split(few))


class BagKernel(Kernel):
    """saved: tokens (rows, T) and, if given, a factor for each place (rows, T)."""

    def _parts(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        padding, mode = _config(call)
        tokens = saved[0]
        if mode == "mean":
            count = tokens.shape[1] if padding is None else (tokens != padding).sum(1, keepdim=True).clamp_min(1)
            b = b / count
        return tokens, saved[1] if len(saved) > 1 else None, b

    def direct(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Tensor]:
        tokens, factors, b = self._parts(call, saved, b)
        spread = b.unsqueeze(1).expand(*tokens.shape, b.shape[-1])
        return _dense(call, tokens, _config(call).padding, spread if factors is None else spread * factors.unsqueeze(2))

    def candidates(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Way]:  # noqa: ARG002
        return {"sorted": self.sorted}

    def sorted(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        tokens, factors, b = self._parts(call, saved, b)
        places = _sorted_places(tokens, call.params["weight"].shape[0], _config(call).padding)
        return _bag(b, factors, places)


def _dense(call: Call, tokens: Tensor, padding: int | None, b: Tensor) -> dict[str, Tensor]:
    """(rows, table): for tables that are tied to another layer."""
    size, width = call.params["weight"].shape
    rows = tokens.shape[0]
    if padding is not None:
        b = b.masked_fill(tokens.eq(padding).unsqueeze(2), 0)
    shifted = tokens + size * torch.arange(rows, device=tokens.device).unsqueeze(1)
    g = torch.ops.aten.embedding_dense_backward(b, shifted, rows * size, -1, False)
    return {"weight": g.view(rows, size, width)}


def _apart(b: Tensor, places: _Places) -> Part:
    """A gradient of its own at each place: b (rows, T, d)."""
    masked, place, row, begins, *_ = places
    if masked is not None:
        b = b.masked_fill(~masked.unsqueeze(2), 0)
    flat = b.flatten(0, 1)

    def finish(w: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"weight": _table(b.flatten(0, 1), place, places, w[row])}

    if not in_host_memory(b.device):
        return Ghost(_squares_of_all_runs(flat, places), (b,), finish)
    ends = torch.ones_like(begins)
    ends[:-1] = begins[1:]
    alone = begins & ends
    at_place = _squares(flat)
    squares = flat.new_zeros(b.shape[0], dtype=torch.float64).index_add_(0, row[alone], at_place[place[alone]])
    again = (~alone).nonzero().squeeze(1)
    if len(again):
        first = begins[again].nonzero().squeeze(1)
        run = begins[again].cumsum(0) - 1
        reach = at_place.new_zeros(len(first)).index_add_(0, run, at_place[place[again]].sqrt())
        of_runs = _squares(_sums(flat, place[again], first)) + against_cancellation(reach.square(), b.dtype)
        squares.index_add_(0, row[again][first], of_runs)
    return Ghost(squares, (b,), finish)


def _squares_of_all_runs(flat: Tensor, places: _Places) -> Tensor:
    """(rows,): as `_apart` has them, without a look at which runs have more places than one."""
    runs = _runs(places)
    at_place = _squares(flat)[places.place]
    of_runs = _squares(_sums(flat, places.place, runs.starts))
    reach, count = (
        torch.zeros_like(of_runs).index_add_(0, runs.number, t) for t in (at_place.sqrt(), torch.ones_like(at_place))
    )
    of_runs = of_runs + torch.where(count > 1, against_cancellation(reach.square(), flat.dtype), 0.0)
    return of_runs.new_zeros(len(places.lengths)).index_add_(0, runs.rows, of_runs)


def _repeats(places: _Places) -> Tensor:
    """(rows,): the sum over its tokens of how often each occurs, squared. c^2 = c + 2 (1 + 2 + ... + (c - 1)), so that only
    places of a token that was there before need be looked at."""
    squares = places.lengths.double()
    again = (~places.begins).nonzero().squeeze(1)
    if len(again):
        position = torch.arange(len(again), device=again.device)
        new = torch.ones_like(again, dtype=torch.bool)
        torch.ne(again[1:], again[:-1] + 1, out=new[1:])
        before = position - torch.where(new, position, 0).cummax(0).values + 1  # how often the token was there before
        squares.index_add_(0, places.row[again], 2 * before.double())
    return squares


def _bag(b: Tensor, factors: Tensor | None, places: _Places) -> Part:
    """The gradient b (rows, d), times a factor (rows, T), at each place."""
    masked, place, row, *_ = places
    if masked is not None:
        factors = masked.to(b.dtype) if factors is None else factors * masked
    if factors is None and in_host_memory(b.device):
        squares = _repeats(places)
    else:
        runs = _runs(places)
        given = torch.ones_like(place, dtype=torch.float64) if factors is None else factors.double().flatten()[place]
        each, reach = (given.new_zeros(len(runs.starts)).index_add_(0, runs.number, t) for t in (given, given.abs()))
        each = each.square() + against_cancellation(reach.square(), b.dtype)
        squares = each.new_zeros(b.shape[0]).index_add_(0, runs.rows, each)
    squares = sum_of_squares(b) * squares

    def finish(w: Tensor, b: Tensor, *factors: Tensor) -> dict[str, Tensor]:
        per_place = factors[0].flatten()[place] if factors else None
        return {"weight": _table(scale_rows(b, w).contiguous(), row, places, per_place)}

    return Ghost(squares, (b,) if factors is None else (b, factors), finish)


class LargestKernel(Kernel):
    """saved: which token gave each number of the output (rows, d), and whether one did. No two numbers of a row meet in the table:
    the norm is that of the output's gradient."""

    def direct(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Tensor]:
        token, there = saved
        g = b.new_zeros(len(b), *call.params["weight"].shape)
        return {"weight": g.scatter_(1, token.clamp_min(0).unsqueeze(1), (b * there).unsqueeze(1))}

    def candidates(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Way]:  # noqa: ARG002
        return {"scattered": self.scattered}

    def scattered(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        token, there = saved
        shape = call.params["weight"].shape

        def finish(w: Tensor, b: Tensor) -> dict[str, Tensor]:
            return {"weight": b.new_zeros(shape).scatter_add_(0, token.clamp_min(0), scale_rows(b, w))}

        b = b * there
        return Ghost(sum_of_squares(b), (b,), finish)


EMBEDDING, BAG, LARGEST = EmbeddingKernel(), BagKernel(), LargestKernel()


def _supported(module: nn.Embedding | nn.EmbeddingBag) -> bool:
    kind = type(module).__name__
    if module.max_norm is not None:
        raise Unsupported(
            f"{kind}(max_norm={module.max_norm}) rescales the rows that private data looks up, without noise; "
            "make it without max_norm"
        )
    if module.scale_grad_by_freq:
        raise Unsupported(
            f"{kind}(scale_grad_by_freq=True) divides gradients by counts over the whole batch, so that one example "
            "changes another's gradient; make it without scale_grad_by_freq"
        )
    return True  # sparse=True asks for a sparse gradient, but noise fills every row: ours is dense


@layer(nn.Embedding, supports=_supported)
def embedding(module: nn.Embedding, tap: Tap, input: Tensor) -> Tensor:
    out = F.embedding(input, module.weight.detach())
    return tap(out, EMBEDDING, {"weight": module.weight}, (input,), Config(module.padding_idx))


@layer(nn.EmbeddingBag, supports=_supported, through=True)
def embedding_bag(
    module: nn.EmbeddingBag,
    tap: Tap,
    input: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    weight, padding = module.weight.detach(), module.padding_idx
    if module.mode == "max":
        return _largest(module, tap, input, offsets)
    out = F.embedding_bag(
        input,
        weight,
        offsets,
        mode=module.mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=module.include_last_offset,
        padding_idx=padding,
    )
    if offsets is None:
        saved = (input,) if per_sample_weights is None else (input, per_sample_weights)
        return tap(out, BAG, {"weight": module.weight}, saved, Config(padding, module.mode), rows_dim=0)
    # As rows of one length: what is beyond a bag's end has the factor 0.
    places, there = _places_of_bags(input, offsets, len(out))
    tokens = F.pad(input, (0, 1))[places]
    factors = there.to(out.dtype) if per_sample_weights is None else F.pad(per_sample_weights.detach(), (0, 1))[places]
    if module.mode == "mean":
        real = there if padding is None else there & (tokens != padding)
        factors = factors / real.sum(1, keepdim=True).clamp_min(1)
    return tap(out, BAG, {"weight": module.weight}, (tokens, factors), Config(padding), rows_dim=0)


def _places_of_bags(tokens: Tensor, offsets: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """(rows, longest): where each bag's tokens stand in the list, and whether there is one (behind all others, if not)."""
    ends = torch.cat([offsets[1:rows], offsets.new_full((1,), len(tokens)) if len(offsets) == rows else offsets[rows:]])
    lengths = ends - offsets[:rows]
    along = torch.arange(max(1, int(lengths.max())), device=tokens.device)
    there = along < lengths.unsqueeze(1)
    return torch.where(there, offsets[:rows].unsqueeze(1) + along, len(tokens)), there


def _largest(module: nn.EmbeddingBag, tap: Tap, input: Tensor, offsets: Tensor | None) -> Tensor:
    if offsets is None:
        offsets = torch.arange(0, max(1, input.numel()), max(1, input.shape[1]), device=input.device)
        input, last = input.flatten(), False
    else:
        last = module.include_last_offset
    padding = -1 if module.padding_idx is None else module.padding_idx
    out, _, sizes, token = torch._embedding_bag(
        module.weight.detach(), input, offsets, False, 2, False, None, last, padding
    )
    saved = (token, (sizes > 0).view(-1, 1).expand(out.shape))
    return tap(out, LARGEST, {"weight": module.weight}, saved, rows_dim=0)
