"""The recurrences of nn.LSTM, nn.GRU and nn.RNN, written so that the gradients of the gates can be had.

Each cell has two parts, for a whole layer and all its directions at once. `run` goes forward from the input's part of
the gates before activation,

    pre = x W_ih^T          (directions, T, rows, gates * H),

and an autograd Function goes back: it gives the gradient of `pre` at every step, which is what a linear layer over the
sequence needs (recurrent.py). Torch's own fused layers sum it into weight gradients and keep it to themselves.
Between the two stands the tap, so that it can save the states that `run` has found.

For speed, memory is used again: `pre` becomes the gates' values, then the factors of their gradients, then these
gradients. What can be done for all steps at once is done outside of the loops; left inside are the product with W_hh
and a few operations in place. The reverse direction gets its input in reversed time, so that all directions run alike.

Rows may have lengths of their own (a packed sequence): see `Lengths`.

Gates and their order are torch's: LSTM i, f, g, o; GRU r, z, n with n = tanh(x_n + r * m), m = h W_hn^T + b_hn. States
are (T + 1, directions, rows, H): the first is the initial one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Grads = tuple[Tensor | None, ...]


class Lengths:
    """Rows that end before the last step. Each row's own time is turned within its length for the reverse direction, so that in
    all directions what comes after a row's end is padding: nothing of it reaches the row's own steps, and with outputs there
    that nobody uses, its gradients are exactly zero."""

    def __init__(self, lengths: Tensor, longest: int):
        time = torch.arange(longest, device=lengths.device).unsqueeze(1)
        self._turn = torch.where(time < lengths, lengths - 1 - time, time).unsqueeze(2)  # (T, rows, 1), its own inverse
        self.ends = (lengths - 1).unsqueeze(1)  # (rows, 1), of all directions

    def turned(self, x: Tensor) -> Tensor:
        """(T, rows, p) with each row's time reversed."""
        return x.gather(0, self._turn.expand(x.shape))

    def last(self, states: Tensor) -> Tensor:
        """(directions, rows, H) of (T, directions, rows, H): each row's state at its own end."""
        return states.gather(0, self.ends.expand(states.shape[1:]).unsqueeze(0)).squeeze(0)

    def at_the_end(self, gradient: Tensor, longest: int) -> tuple[Tensor, ...]:
        """The gradient of `last`, one tensor a step."""
        spread = gradient.new_zeros(longest, *gradient.shape)
        return spread.scatter_(0, self.ends.expand(gradient.shape).unsqueeze(0), gradient.unsqueeze(0)).unbind()


def turned(x: Tensor, lengths: Lengths | None) -> Tensor:
    """(T, rows, p) in reversed time."""
    return x.flip(0) if lengths is None else lengths.turned(x)


def _last(states: Tensor, lengths: Lengths | None) -> Tensor:
    return states[-1].clone() if lengths is None else lengths.last(states)


class LSTM(torch.autograd.Function):
    """(pre after `run`, h_0, c_0, W_hh, what `run` returned) -> (outputs, h_T, c_T)."""

    @staticmethod
    @torch.no_grad()
    def run(pre: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """States h and c, and tanh of the later c. The bias is b_ih + b_hh."""
        h, c = _states(pre, h0), _states(pre, c0)
        tanh_c, hidden = torch.empty_like(h[1:]), h.shape[-1]
        hs, cs, tanhs, steps = h.unbind(), c.unbind(), tanh_c.unbind(), pre.unbind(1)
        i, f, g, o = (gate.unbind(1) for gate in pre.split(hidden, 3))
        i_and_f = pre[..., : 2 * hidden].unbind(1)
        now = pre.new_empty(steps[0].shape)  # a batched product is slow unless its result is contiguous
        now_if, now_g, now_o = now.split([2 * hidden, hidden, hidden], 2)
        w = weight.mT
        for t in range(len(steps)):
            torch.add(steps[t], bias, out=now).baddbmm_(hs[t], w)
            torch.sigmoid(now_if, out=i_and_f[t])
            torch.tanh(now_g, out=g[t])
            torch.sigmoid(now_o, out=o[t])
            torch.mul(f[t], cs[t], out=cs[t + 1]).addcmul_(i[t], g[t])
            torch.mul(o[t], torch.tanh(cs[t + 1], out=tanhs[t]), out=hs[t + 1])
        return h, c, tanh_c

    @staticmethod
    def forward(
        ctx: Any,
        pre: Tensor,
        h0: Tensor,  # noqa: ARG004
        c0: Tensor,  # noqa: ARG004
        weight: Tensor,
        lengths: Lengths | None,
        h: Tensor,
        c: Tensor,
        tanh_c: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(weight, h, pre.detach(), c, tanh_c)
        ctx.lengths = lengths
        ctx.set_materialize_grads(False)
        return _joined(h[1:], lengths), _last(h[1:], lengths), _last(c[1:], lengths)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_h: Tensor | None, d_c: Tensor | None) -> Grads:
        weight, h, *ours = ctx.saved_tensors
        gates, c, tanh_c = _to_overwrite(ours)
        hidden = h.shape[-1]
        h, c_before = h[1:], c[:-1]
        i, f, g, o = (gate.transpose(0, 1) for gate in gates.split(hidden, 3))
        # All but dh and dc: dc / dh = o (1 - tanh^2), do / dh, then di / dc, dg / dc, dc_before / dc = f and df / dc.
        slope = torch.addcmul(o, h, tanh_c, value=-1, out=tanh_c)
        torch.addcmul(h, h, o, value=-1, out=o)
        product = torch.mul(i, g, out=torch.empty_like(slope))
        torch.addcmul(i, product, g, value=-1, out=g)
        torch.addcmul(product, product, i, value=-1, out=i)
        torch.mul(c_before, f, out=product)
        keep = c_before.copy_(f)
        torch.addcmul(product, product, f, value=-1, out=f)

        d_outs, d_h, d_c, d_cs = _at_ends(_parted(d_out, h, ctx.lengths), d_h, d_c, ctx.lengths)
        slopes, keeps, steps = slope.unbind(), keep.unbind(), gates.unbind(1)
        of_c, of_h = gates[..., : 3 * hidden].unflatten(3, (3, hidden)).unbind(1), o.unbind()
        dh = _sum(d_outs[-1], d_h)
        dc = torch.zeros_like(dh) if d_c is None else d_c.clone()
        dc_thrice = dc.unsqueeze(2)
        for t in reversed(range(len(steps))):
            if d_cs is not None:
                dc.add_(d_cs[t])
            dc.addcmul_(dh, slopes[t])
            of_c[t].mul_(dc_thrice)
            of_h[t].mul_(dh)
            dc.mul_(keeps[t])
            torch.baddbmm(d_outs[t - 1], steps[t], weight, out=dh) if t else torch.bmm(steps[0], weight, out=dh)
        return gates, dh, dc, None, None, None, None, None


class GRU(torch.autograd.Function):
    """(pre after `run`, h_0, W_hh, what `run` returned) -> (outputs, h_T)."""

    @staticmethod
    @torch.no_grad()
    def run(pre: Tensor, weight: Tensor, bias: Tensor, bias_n: Tensor, h0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """States h, a copy of r, and m. The bias is b_ih + b_hh for r and z, b_hn for m; bias_n is b_in."""
        h = _states(pre, h0)
        m, hidden = torch.empty_like(h[1:]), h.shape[-1]
        pre[..., 2 * hidden :] += bias_n.unsqueeze(1)
        hs, ms = h.unbind(), m.unbind()
        r, z, n = (gate.unbind(1) for gate in pre.split(hidden, 3))
        r_and_z = pre[..., : 2 * hidden].unbind(1)
        now = pre.new_empty(pre[:, 0].shape)
        now_rz, now_m = now.split([2 * hidden, hidden], 2)
        w = weight.mT
        for t in range(len(ms)):
            torch.baddbmm(bias, hs[t], w, out=now)
            r_and_z[t].add_(now_rz).sigmoid_()
            n[t].addcmul_(r[t], ms[t].copy_(now_m)).tanh_()
            torch.lerp(n[t], hs[t], z[t], out=hs[t + 1])
        return h, torch.empty_like(m).copy_(pre[..., :hidden].transpose(0, 1)), m

    @staticmethod
    def forward(
        ctx: Any,
        pre: Tensor,
        h0: Tensor,  # noqa: ARG004
        weight: Tensor,
        lengths: Lengths | None,
        h: Tensor,
        r: Tensor,
        m: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(weight, h, r, pre.detach(), m)
        ctx.lengths = lengths
        ctx.set_materialize_grads(False)
        return _joined(h[1:], lengths), _last(h[1:], lengths)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_h: Tensor | None) -> Grads:
        weight, h, reset, *ours = ctx.saved_tensors
        gates, m = _to_overwrite(ours)
        hidden = h.shape[-1]
        r, z, n = (gate.transpose(0, 1) for gate in gates.split(hidden, 3))
        # All but dh: dz / dh = (h_before - n) z (1 - z), dh_before / dh = z, dn / dh = (1 - z) (1 - n^2), dr / dn.
        product = torch.sub(h[:-1], n, out=torch.empty_like(m)).mul_(z)
        keep = torch.empty_like(m).copy_(z)
        torch.addcmul(product, product, z, value=-1, out=z)
        torch.sub(1, keep, out=product)
        torch.addcmul(product, product * n, n, value=-1, out=n)
        torch.mul(m, r, out=product)
        torch.addcmul(product, product, r, value=-1, out=r)

        d_outs, d_h, _, _ = _at_ends(_parted(d_out, h[1:], ctx.lengths), d_h, None, ctx.lengths)
        keeps, resets = keep.unbind(), reset.unbind()
        of_h, of_n = gates[..., hidden:].unflatten(3, (2, hidden)).unbind(1), r.unbind()
        r_and_z, ns, ms = gates[..., : 2 * hidden].unbind(1), n.unbind(), m.unbind()
        w_rz, w_n = weight[:, : 2 * hidden], weight[:, 2 * hidden :]
        dh = _sum(d_outs[-1], d_h)
        dh_twice = dh.unsqueeze(2)
        for t in reversed(range(len(ms))):
            of_h[t].mul_(dh_twice)
            of_n[t].mul_(ns[t])
            torch.mul(resets[t], ns[t], out=ms[t])
            dh.mul_(keeps[t]).baddbmm_(r_and_z[t], w_rz).baddbmm_(ms[t], w_n)
            if t:
                dh.add_(d_outs[t - 1])
        return gates, dh, None, None, None, None, None


class RNN(torch.autograd.Function):
    """(pre after `run`, h_0, W_hh, what `run` returned) -> (outputs, h_T)."""

    @staticmethod
    @torch.no_grad()
    def run(pre: Tensor, weight: Tensor, bias: Tensor, relu: bool, h0: Tensor) -> tuple[Tensor, bool]:
        """States h, and relu again. The bias is b_ih + b_hh."""
        h = _states(pre, h0)
        hs, steps, w = h.unbind(), pre.unbind(1), weight.mT
        activate = torch.relu_ if relu else torch.tanh_
        for t in range(len(steps)):
            activate(torch.add(steps[t], bias, out=hs[t + 1]).baddbmm_(hs[t], w))
        return h, relu

    @staticmethod
    def forward(
        ctx: Any,
        pre: Tensor,
        h0: Tensor,  # noqa: ARG004
        weight: Tensor,
        lengths: Lengths | None,
        h: Tensor,
        relu: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(weight, h, pre.detach())
        ctx.relu, ctx.lengths = relu, lengths
        ctx.set_materialize_grads(False)
        return _joined(h[1:], lengths), _last(h[1:], lengths)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_h: Tensor | None) -> Grads:
        weight, h, *ours = ctx.saved_tensors
        (gates,) = _to_overwrite(ours)
        h, steps = h[1:], gates.unbind(1)
        if ctx.relu:
            gates.copy_((h > 0).transpose(0, 1))
        else:
            torch.addcmul(h.new_ones(()), h, h, value=-1, out=gates.transpose(0, 1))
        d_outs, d_h, _, _ = _at_ends(_parted(d_out, h, ctx.lengths), d_h, None, ctx.lengths)
        dh = _sum(d_outs[-1], d_h)
        for t in reversed(range(len(steps))):
            steps[t].mul_(dh)
            torch.baddbmm(d_outs[t - 1], steps[t], weight, out=dh) if t else torch.bmm(steps[0], weight, out=dh)
        return gates, dh, None, None, None, None


def _states(pre: Tensor, first: Tensor) -> Tensor:
    """Space for the states at all times, with the first filled in."""
    states = pre.new_empty(pre.shape[1] + 1, *first.shape)
    states[0] = first
    return states


def _joined(h: Tensor, lengths: Lengths | None) -> Tensor:
    """(T, directions, rows, H), each direction in its own time, as (T, rows, directions * H).

    Always a copy: whoever gets the output may write to it, and h is needed again.
    """
    return h[:, 0].clone() if h.shape[1] == 1 else torch.cat([h[:, 0], turned(h[:, 1], lengths)], -1)


def _parted(d_out: Tensor | None, h: Tensor, lengths: Lengths | None) -> tuple[Tensor, ...]:
    """The gradient of `_joined(h)` as that of h, one tensor a step."""
    if d_out is None:
        return h.new_zeros(()).expand(h.shape).unbind()
    parts: tuple[Tensor, ...] = d_out.split(h.shape[-1], 2)
    if len(parts) == 1:
        return parts[0].unsqueeze(1).unbind()
    return torch.stack([parts[0], turned(parts[1], lengths)], 1).unbind()


def _at_ends(
    d_outs: tuple[Tensor, ...], d_h: Tensor | None, d_c: Tensor | None, lengths: Lengths | None
) -> tuple[tuple[Tensor, ...], Tensor | None, Tensor | None, tuple[Tensor, ...] | None]:
    """The gradients of the last states, brought to each row's own end: into those of the outputs, and one a step for c."""
    if lengths is None:
        return d_outs, d_h, d_c, None
    if d_h is not None:
        d_outs = tuple(a + b for a, b in zip(d_outs, lengths.at_the_end(d_h, len(d_outs)), strict=True))
    return d_outs, None, None, None if d_c is None else lengths.at_the_end(d_c, len(d_outs))


def _sum(a: Tensor, b: Tensor | None) -> Tensor:
    """A new, contiguous tensor."""
    return torch.add(a, 0 if b is None else b, out=a.new_empty(a.shape))


def _to_overwrite(tensors: list[Tensor]) -> list[Tensor]:
    """The saved tensors themselves, or copies where the graph is kept for another backward pass (as the probe does)."""
    kept = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)()
    return [t.clone() for t in tensors] if kept else tensors
