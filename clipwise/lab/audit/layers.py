"""Every kind of layer over a grid of shapes and options: do norms and weighted sums agree with a loop over single records?

    for found in survey(): print(found.kind, found.case, found.verdict)

The ranges are those of Opacus' per-layer tests (opacus/tests/grad_samples in its repository, from hypothesis to a fixed grid with a
stride over its options), with batches of one record, texts of one word and lists with offsets among them; and, beyond these,
options of torch's own layers that Opacus does not have. "fast" and "generic" are said only where both agree; a refusal is
said by its first words. Where the records are is declared (`batch_dim`), as a user has to where a batch may be as large as its texts
are long; with `declared=False` it is left to the engine to tell, or to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from clipwise.lab.audit.architectures import FAST, GENERIC, REFUSED, WRONG
from clipwise.norms import Bookkeeping
from clipwise.norms.loop import squared_output, sums_and_norms
from clipwise.types import ClipwiseError

_TOLERANCE = 1e-6  # relative, in double precision


class Case(NamedTuple):
    kind: str
    words: str
    model: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    rows: int
    row: Callable[[tuple[Any, ...], int], tuple[Any, ...]]  # one record's own inputs
    batch_dim: int = 0


class Found(NamedTuple):
    kind: str
    case: str
    verdict: str
    why: str


def survey(only: Callable[[str], bool] = lambda _: True, *, declared: bool = True) -> Iterator[Found]:
    for case in cases():
        if only(case.kind):
            yield look_at(case, declared=declared)


def look_at(case: Case, *, declared: bool = True) -> Found:
    torch.manual_seed(0)
    model = case.model().double()
    inputs = case.inputs()
    notices: list[str] = []
    try:
        error = _disagreement(model, case, inputs, case.batch_dim if declared else None, notices.append)
    except ClipwiseError as refusal:
        return Found(case.kind, case.words, REFUSED, str(refusal)[:160])
    except Exception as problem:
        return Found(case.kind, case.words, WRONG, f"{type(problem).__name__}: {problem}"[:160])
    if error > _TOLERANCE:
        return Found(case.kind, case.words, WRONG, f"off by {error:.1e}")
    return Found(case.kind, case.words, GENERIC if notices else FAST, "")


def _disagreement(
    model: nn.Module, case: Case, inputs: tuple[Any, ...], batch_dim: int | None, notify: Callable[[str], None]
) -> float:
    """The largest relative error of norms and of a weighted sum, against the loop over single records."""
    named = dict(model.named_parameters())
    each = []
    for i in range(case.rows):
        loss = _loss(model(*case.row(inputs, i)), case.batch_dim)
        grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        each.append([torch.zeros_like(p) if g is None else g for p, g in zip(named.values(), grads, strict=True)])
    engine = Bookkeeping(model, named, loss_reduction="sum", batch_dim=batch_dim, notify=notify)
    engine.install()
    try:
        engine.open(case.rows)
        _loss(model(*inputs), case.batch_dim).backward()
        tape = engine.close()
    finally:
        engine.remove()
    weights = torch.linspace(0.3, 1.7, case.rows, dtype=torch.float64)
    sums, norms = sums_and_norms(tape, weights)
    truth = torch.stack([torch.stack([g.square().sum() for g in row]).sum().sqrt() for row in each])
    wanted = [sum(w * g for w, g in zip(weights, column, strict=True)) for column in zip(*each, strict=True)]
    scale = max(float(torch.stack([s.square().sum() for s in wanted]).sum().sqrt()), 1e-300)
    off = [float((a - b).norm()) / scale for a, b in zip(sums, wanted, strict=True)]
    return max([*off, float(((norms - truth).abs() / truth.clamp_min(1e-12)).max())])


def _loss(out: Tensor, batch_dim: int) -> Tensor:
    return squared_output(out.movedim(batch_dim, 0))


# -- the grid ------------------------------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    for make in (_linear, _convolutions, _norms, _embeddings, _bags, _recurrent, _packed, _attention):
        yield from make()


def _case(
    kind: str, words: str, model: Callable[[], nn.Module], *shape: int, batch_dim: int = 0, words_of: int = 0
) -> Case:
    """Of one tensor of this shape: numbers, or (`words_of` > 0) words of a vocabulary."""

    def inputs() -> tuple[Tensor]:
        generator = torch.Generator().manual_seed(1)
        if words_of:
            return (torch.randint(0, words_of, shape, generator=generator),)
        return (torch.randn(*shape, generator=generator, dtype=torch.float64),)

    def row(given: tuple[Any, ...], i: int) -> tuple[Any, ...]:
        return (given[0].narrow(batch_dim, i, 1),)

    return Case(kind, f"{words}, {'x'.join(map(str, shape))}", model, inputs, shape[batch_dim], row, batch_dim)


def _some(every: int, *ranges: Any) -> Iterator[tuple[Any, ...]]:
    """Each `every`-th of the product: a stride without a factor in common with the ranges meets every value of each."""
    for i, each in enumerate(product(*ranges)):
        if i % every == 0:
            yield each


def _linear() -> Iterator[Case]:
    for n, z, h, bias, first in _some(2, (1, 2, 3, 4), (1, 2, 3, 4), (0, 1, 2), (True, False), (True, False)):
        shape = [n, z, *([h] if h else []), 10]
        if not first:
            shape[:2] = z, n
        words = f"bias={bias}, {'records' if first else 'time'} first"
        yield _case("Linear", words, partial(nn.Linear, 10, 12, bias=bias), *shape, batch_dim=0 if first else 1)


def _convolutions() -> Iterator[Case]:
    kinds = {"Conv1d": (nn.Conv1d, (8,)), "Conv2d": (nn.Conv2d, (11, 13)), "Conv3d": (nn.Conv3d, (4, 6, 7))}
    options = ((1, 2, 4), (1, 3, 32), (2, 3), (1, 2), (0, 2, "same", "valid"), (1, 2), (1, 3, 16), (True, False))
    for kind, (cls, size) in kinds.items():
        for n, c, kernel, stride, padding, dilation, groups, wider in _some(7, *options):
            out = c * 2 if wider else max(1, c // 2)
            too_wide = dilation * (kernel - 1) + 1 > min(size) and padding in (0, "valid")
            if c % groups or out % groups or (padding == "same" and stride > 1) or too_wide:
                continue
            given = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
            words = f"to {out}, kernel={kernel}, " + ", ".join(f"{k}={v}" for k, v in given.items())
            yield _case(kind, words, partial(cls, c, out, kernel, **given), n, c, *size)


def _norms() -> Iterator[Case]:
    for cls in (nn.LayerNorm, nn.RMSNorm):
        for n, z, h, dims, normed in _some(2, (1, 2, 3, 4), (1, 2, 4), (1, 3), (2, 3, 4), (1, 2, 3)):
            shape = [n, z, h, 5] if dims == 4 else [n, z, 5] if dims == 3 else [n, 5]
            if normed < dims:
                yield _case(cls.__name__, "", partial(cls, shape[dims - normed :]), *shape)
    for n, groups in product((1, 4, 32), (1, 4, 16)):
        yield _case("GroupNorm", f"groups={groups}", partial(nn.GroupNorm, groups, 16), n, 16, 8, 10)
    sizes: dict[Any, tuple[int, ...]] = {
        nn.InstanceNorm1d: (6,),
        nn.InstanceNorm2d: (4, 6),
        nn.InstanceNorm3d: (3, 4, 5),
    }
    for (kind, size), n, c in product(sizes.items(), (1, 20), (1, 3)):
        yield _case(kind.__name__, "affine", partial(kind, c, affine=True), n, c, *size)


def _embeddings() -> Iterator[Case]:
    for n, dims, v in product((1, 2, 20), (1, 2, 3, 4), (3, 32)):
        yield _case("Embedding", f"{v} words", partial(nn.Embedding, v, 10), *(n, 5, 4, 2)[:dims], words_of=v)
    for n, t, mode in product((1, 4), (1, 3), ("sum", "mean", "max")):
        yield _case("EmbeddingBag", f"rows, {mode}", partial(nn.EmbeddingBag, 9, 5, mode=mode), n, t, words_of=9)


def _bags() -> Iterator[Case]:
    for n, longest, mode, last, weighted in product(
        (1, 4, 8), (1, 3, 7), ("sum", "mean", "max"), (False, True), (False, True)
    ):
        if weighted and mode != "sum":
            continue

        def inputs(n: int = n, longest: int = longest, last: bool = last, weighted: bool = weighted) -> tuple[Any, ...]:
            generator = torch.Generator().manual_seed(1)
            sizes = torch.randint(1, longest + 1, (n,), generator=generator)
            ends, total = sizes.cumsum(0), int(sizes.sum())
            starts = torch.cat([torch.zeros(1, dtype=torch.long), ends if last else ends[:-1]])
            factors = torch.rand(total, generator=generator, dtype=torch.float64) if weighted else None
            return torch.randint(0, 20, (total,), generator=generator), starts, factors

        def row(given: tuple[Any, ...], i: int, last: bool = last) -> tuple[Any, ...]:
            tokens, starts, factors = given
            ends = [*starts.tolist(), len(tokens)]
            own = slice(ends[i], ends[i + 1])
            where = torch.tensor([0, ends[i + 1] - ends[i]] if last else [0])
            return tokens[own], where, None if factors is None else factors[own]

        words = (
            f"offsets, {mode}{', with their end' if last else ''}{', weighted' if weighted else ''}, {n} to {longest}"
        )
        yield Case(
            "EmbeddingBag",
            words,
            partial(nn.EmbeddingBag, 20, 10, mode=mode, include_last_offset=last),
            inputs,
            n,
            row,
        )


class _Outputs(nn.Module):
    """A recurrent layer's outputs without its states."""

    def __init__(self, kind: Callable[..., nn.RNNBase], **options: Any):
        super().__init__()
        self.inner = kind(4, 8, **options)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.inner(x)[0])


_CELLS: dict[str, Callable[..., nn.RNNBase]] = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}


def _recurrent() -> Iterator[Case]:
    options = ((1, 2, 3), (1, 2, 3), (1, 2), (True, False), (True, False), (True, False))
    for kind, cls in _CELLS.items():
        for n, t, layers, bias, first, both in _some(1 if kind == "LSTM" else 3, *options):
            given = {"num_layers": layers, "bias": bias, "batch_first": first, "bidirectional": both}
            words = (
                f"layers={layers}, bias={bias}, {'records' if first else 'time'} first{', both ways' if both else ''}"
            )
            shape = (n, t, 4) if first else (t, n, 4)
            yield _case(kind, words, partial(_Outputs, cls, **given), *shape, batch_dim=0 if first else 1)
    for n, t, both in product((1, 3), (1, 3), (True, False)):
        model = partial(_Outputs, nn.LSTM, proj_size=3, batch_first=True, bidirectional=both)
        yield _case("LSTM", f"proj_size=3{', both ways' if both else ''}", model, n, t, 4)


def _packed() -> Iterator[Case]:
    options = ((1, 2, 3), (1, 2, 3), (1, 2), (True, False), (True, False), (True, False))
    for (kind, cls), (n, t, layers, both, first, ordered) in product(_CELLS.items(), list(_some(3, *options))):

        def inputs(n: int = n, t: int = t, ordered: bool = ordered) -> tuple[Any, ...]:
            generator = torch.Generator().manual_seed(1)
            x = torch.randn(n, t, 4, generator=generator, dtype=torch.float64)
            lengths = torch.cat([torch.tensor([t]), torch.randint(1, t + 1, (n - 1,), generator=generator)])
            lengths = lengths.sort(descending=True).values if ordered else lengths.flip(0)
            return (pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=ordered),)

        def row(given: tuple[Any, ...], i: int) -> tuple[Any, ...]:
            x, lengths = pad_packed_sequence(given[0], batch_first=True)
            return (pack_padded_sequence(x[i : i + 1], lengths[i : i + 1], batch_first=True),)

        given = {"num_layers": layers, "batch_first": first, "bidirectional": both}
        words = f"packed, {'in order' if ordered else 'in any order'}, layers={layers}{', both ways' if both else ''}, {n}x{t}"
        yield Case(kind, words, partial(_Last, cls, **given), inputs, n, row)


class _Last(nn.Module):
    """The last states, and the sum of each record's own outputs."""

    def __init__(self, kind: Callable[..., nn.RNNBase], **options: Any):
        super().__init__()
        self.inner = kind(4, 8, **options)

    def forward(self, x: PackedSequence) -> Tensor:
        out, states = self.inner(x)
        states = states[0] if isinstance(states, tuple) else states
        sums = pad_packed_sequence(out, batch_first=True)[0].square().sum(1)
        return torch.cat([sums, states.transpose(0, 1).flatten(1)], 1)


class _Attends(nn.Module):
    def __init__(self, **options: Any):
        super().__init__()
        self.inner = nn.MultiheadAttention(4, **options)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = x.unbind(-1)
        return torch.as_tensor(self.inner(q, k, v)[0])


def _attention() -> Iterator[Case]:
    options = ((1, 2, 4), (1, 2, 16), (1, 2), *[(True, False)] * 5)
    for n, t, heads, bias, more, zero, wide, first in _some(3, *options):
        given = {"num_heads": heads, "bias": bias, "add_bias_kv": more, "add_zero_attn": zero, "batch_first": first}
        given |= {"kdim": 4, "vdim": 4} if wide else {}
        words = ", ".join(f"{k}={v}" for k, v in given.items())
        shape = (n, t, 4, 3) if first else (t, n, 4, 3)
        yield _case("MultiheadAttention", words, partial(_Attends, **given), *shape, batch_dim=0 if first else 1)
