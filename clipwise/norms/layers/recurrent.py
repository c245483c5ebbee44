"""Recurrent layers: nn.LSTM, nn.GRU, nn.RNN.

With x_t the inputs of a layer, h_{t-1} the states before each step and b_t the gradients of its gates (before their
activation),

    grad W_ih = sum_t b_t x_t^T,   grad W_hh = sum_t b_t h_{t-1}^T,   grad b_ih = grad b_hh = sum_t b_t:

linear layers over the sequence that share their output gradients. So one Gram matrix of b serves all four parameters:
the squared norm is the sum over s, t of <b_s, b_t> (<x_s, x_t> + <h_{s-1}, h_{t-1}> + 2). Only a GRU's gate n differs:
what it gives to W_hh and b_hh comes from the gradient of m = h W_hn^T + b_hn, which is r times that of n.

The forward pass gives what torch's own does, to rounding; recurrence.py has the loops over time. A PackedSequence is run
padded, each row to its own end, and packed again: its rows are those of the batch, in order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from clipwise.norms.kernels import kernel
from clipwise.norms.kernels.kernel import Call, Ghost, Kernel, Part, Way
from clipwise.norms.layers.recurrence import GRU, LSTM, RNN, Lengths, turned
from clipwise.norms.layers.registry import Tap, layer
from clipwise.types import Unsupported

DIRECTIONS = ("", "_reverse")
KINDS = ("ih", "hh")  # what meets the input, what meets the state before


class _Term(NamedTuple):
    """Gradients b (rows, T, d) of some gates in one direction, and the inputs (rows, T, p) that they meet, by kind."""

    b: Tensor
    inputs: dict[str, Tensor]


def _terms(saved: tuple[Tensor, ...], b: Tensor, direction: int) -> list[_Term]:
    """saved: x, h_{t-1} and, for a GRU, r; all (rows, directions, T, width)."""
    x, h, *r = (s[:, direction] for s in saved)
    b = b[:, direction]
    if not r:
        return [_Term(b, {"ih": x, "hh": h})]
    of_rz, of_n = b.tensor_split([2 * h.shape[-1]], -1)
    return [_Term(of_rz, {"ih": x, "hh": h}), _Term(of_n, {"ih": x}), _Term(of_n * r[0], {"hh": h})]


class RecurrentKernel(Kernel):
    def direct(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Tensor]:
        grads = {}
        for direction, suffix in enumerate(DIRECTIONS[: b.shape[1]]):
            terms = _terms(saved, b, direction)
            for kind in KINDS:
                met = [term for term in terms if kind in term.inputs]
                if (role := f"weight_{kind}{suffix}") in call.params:
                    grads[role] = _cat([torch.bmm(term.b.mT, term.inputs[kind]) for term in met], 1)
                if (role := f"bias_{kind}{suffix}") in call.params:
                    grads[role] = _cat([term.b.sum(1) for term in met], 1)
        return grads

    def ghost(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        squares = torch.zeros(b.shape[0], dtype=torch.float64, device=b.device)
        for direction, suffix in enumerate(DIRECTIONS[: b.shape[1]]):
            for term in _terms(saved, b, direction):
                inputs = [a for kind, a in term.inputs.items() if f"weight_{kind}{suffix}" in call.params]
                ones = sum(f"bias_{kind}{suffix}" in call.params for kind in term.inputs)
                if inputs or ones:
                    squares += _squared_norms(inputs, ones, term.b)
        return Ghost(squares, (b, *saved), lambda weights, b, *saved: _finish(call, weights, saved, b))

    def candidates(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Way]:  # noqa: ARG002
        # Storing pays where the Gram matrices cost at least half as much as the product itself: this is also where
        # the per-example gradients take at most twice the memory of what they are made from.
        width, gates = saved[0].shape[-1] + saved[1].shape[-1], b.shape[-1]
        worth_storing = width * gates <= 2 * b.shape[2] * (width + gates)
        return {"direct": self.direct_part, "ghost": self.ghost} if worth_storing else {"ghost": self.ghost}


RECURRENT = RecurrentKernel()


def _squared_norms(inputs: list[Tensor], ones: int, b: Tensor) -> Tensor:
    """Of the gradients of the weights that meet `inputs`, and of `ones` biases, together."""
    *inputs, b = (kernel.widened(t) for t in (*inputs, b))
    gram_a = b.new_full((b.shape[0], b.shape[1], b.shape[1]), float(ones))
    for a in inputs:
        gram_a.baddbmm_(a, a.mT)
    return kernel.paired_grams(gram_a, torch.bmm(b, b.mT), sum(a.shape[-1] for a in [*inputs, b]))


def _finish(call: Call, weights: Tensor, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Tensor]:
    sums = {}
    weights = weights.to(b.dtype)
    each = weights.repeat(b.shape[2])
    for direction, suffix in enumerate(DIRECTIONS[: b.shape[1]]):
        terms = _terms(saved, b, direction)
        for kind, a in zip(KINDS, saved, strict=False):
            met = [_by_time(term.b) for term in terms if kind in term.inputs]
            if (role := f"weight_{kind}{suffix}") in call.params:
                scaled = _by_time(kernel.scale_rows(a[:, direction], weights))  # narrower than b
                sums[role] = _cat([b.T @ scaled for b in met], 0)
            if (role := f"bias_{kind}{suffix}") in call.params:
                sums[role] = _cat([each @ b for b in met], 0)
    return sums


def _by_time(t: Tensor) -> Tensor:
    """(rows, T, p) as (T * rows, p): no copy where the recurrence laid it out by time."""
    return t.transpose(0, 1).flatten(0, 1)


def _cat(tensors: list[Tensor], dim: int) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim)


# -- the layers -------------------------------------------------------------------------------------------------------


@layer(nn.LSTM, nn.GRU, nn.RNN, supports=lambda module: module.proj_size == 0)
def forward(
    module: nn.RNNBase,
    tap: Tap,
    x: Tensor | PackedSequence,
    hx: Tensor | tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor | PackedSequence, Tensor | tuple[Tensor, ...]]:
    if isinstance(x, PackedSequence):
        padded, lengths = pad_packed_sequence(x)
        out, ends = _run(module, tap, padded, hx, Lengths(lengths.to(padded.device), len(padded)))
        return _packed(out, lengths, x), ends
    if x.dim() != 3:
        raise Unsupported(
            f"{type(module).__name__} got a single sequence, without a batch dimension; pass (rows, T, features) with batch_first=True, "
            "or (T, rows, features)"
        )
    out, ends = _run(module, tap, x.transpose(0, 1) if module.batch_first else x, hx, None)
    return out.transpose(0, 1) if module.batch_first else out, ends


def _packed(out: Tensor, lengths: Tensor, like: PackedSequence) -> PackedSequence:
    """(T, rows, p) packed in the order of `like`."""
    if like.sorted_indices is not None:
        out, lengths = out.index_select(1, like.sorted_indices), lengths[like.sorted_indices.to(lengths.device)]
    data = pack_padded_sequence(out, lengths).data
    return PackedSequence(data, like.batch_sizes, like.sorted_indices, like.unsorted_indices)


def _run(
    module: nn.RNNBase,
    tap: Tap,
    x: Tensor,
    hx: Tensor | tuple[Tensor, Tensor] | None,
    lengths: Lengths | None,
) -> tuple[Tensor, Tensor | tuple[Tensor, ...]]:
    """All layers: (T, rows, p) to (T, rows, directions * H), and the last states."""
    is_lstm, directions = isinstance(module, nn.LSTM), 1 + module.bidirectional
    if hx is None:
        zeros = x.new_zeros(directions * module.num_layers, x.shape[1], module.hidden_size)
        hx = (zeros, zeros) if is_lstm else zeros
    module.check_forward_args(x.transpose(0, 1) if module.batch_first else x, hx, None)  # type: ignore[arg-type]

    # Under autocast too: in a lower precision, each step's rounding would add to that of the steps before.
    dtype = next(module.parameters()).dtype
    states = [s.to(dtype) for s in (hx if isinstance(hx, tuple) else (hx,))]
    x, lasts = x.to(dtype), []
    with torch.autocast(x.device.type, enabled=False):
        for level in range(module.num_layers):
            if level and module.dropout:
                x = F.dropout(x, module.dropout, module.training)
            own = [s[level * directions :][:directions] for s in states]
            x, *last = _run_level(module, tap, level, x, own, lengths)
            lasts.append(last)
    ends = tuple(torch.cat(column) for column in zip(*lasts, strict=True))
    return x, ends if is_lstm else ends[0]


def _run_level(
    module: nn.RNNBase, tap: Tap, level: int, x: Tensor, states: list[Tensor], lengths: Lengths | None
) -> tuple[Tensor, ...]:
    """One layer: (T, rows, p) and first states (directions, rows, H) to (T, rows, directions * H) and last states."""
    suffixes = DIRECTIONS[: 1 + module.bidirectional]
    kinds = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if module.bias else ()))
    params = {f"{kind}{suffix}": getattr(module, f"{kind}_l{level}{suffix}") for kind in kinds for suffix in suffixes}
    joint = {kind: torch.stack([params[f"{kind}{suffix}"].detach() for suffix in suffixes]) for kind in kinds}
    weight = joint["weight_hh"]
    zeros = weight.new_zeros(weight.shape[:2])
    b_ih, b_hh = joint.get("bias_ih", zeros).unsqueeze(1), joint.get("bias_hh", zeros).unsqueeze(1)

    own = x.contiguous().unsqueeze(0) if len(suffixes) == 1 else torch.stack([x, turned(x, lengths)])
    pre = torch.bmm(own.flatten(1, 2), joint["weight_ih"].mT)
    # Not a view: the tap tells autograd that it is changed in place, and a view's gradient would then be copied.
    pre = torch.ops.aten._unsafe_view(pre, (*own.shape[:3], weight.shape[1]))
    cell: type[LSTM | GRU | RNN]
    found: tuple[Any, ...]  # the states h, and what else the backward pass will need
    if isinstance(module, nn.LSTM):
        cell, found = LSTM, LSTM.run(pre.detach(), weight, b_ih + b_hh, *states)
    elif isinstance(module, nn.GRU):
        n = 2 * module.hidden_size
        joined = torch.cat([(b_ih + b_hh)[..., :n], b_hh[..., n:]], -1)
        cell, found = GRU, GRU.run(pre.detach(), weight, joined, b_ih[..., n:], *states)
    else:
        cell, found = RNN, RNN.run(pre.detach(), weight, b_ih + b_hh, module.nonlinearity == "relu", *states)
    saved = (found[0][:-1], *found[1:2]) if cell is GRU else (found[0][:-1],)
    pre = tap(pre, RECURRENT, params, (own, *(s.transpose(0, 1) for s in saved)), rows_dim=2)
    outputs: tuple[Tensor, ...] = cell.apply(pre, *states, weight, lengths, *found)  # type: ignore[no-untyped-call]
    return outputs
