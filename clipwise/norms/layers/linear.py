"""Linear layers: inputs of two, three or four dimensions.

For a = inputs (rows, T, p), b = output gradients (rows, T, d): g_i = b_i^T a_i. With T = 1 the norm is |a_i||b_i| and
nothing need be formed; otherwise the choice is between g_i itself, stored whole or formed a few rows at a time, and the
T x T Gram matrices (Li et al. 2021, "ghost" norms).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.norms.kernels.blocks import Unformed
from clipwise.norms.kernels.kernel import (
    Call,
    Direct,
    Ghost,
    Kernel,
    Part,
    Way,
    gram_squared_norms,
    scale_rows,
    sum_of_squares,
)
from clipwise.norms.kernels.outer import Outer
from clipwise.norms.layers.registry import Tap, layer, own_parameter

# Places, squared, times this: below it, Gram matrices are less work than a layer's gradients. At 16 places of 128 x 128 and 128 x 512 they
# took 0.7 of the time, at 64 and 128 places of 128 x 512 and 256 x 1024 (16 times the places squared) 1.3 (one thread of an EPYC).
GRAMS = 32


def flat(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, T, p) and (rows, T, d) whatever the number of dimensions between."""
    return a.reshape(a.shape[0], -1, a.shape[-1]), b.reshape(b.shape[0], -1, b.shape[-1])


class LinearKernel(Kernel):
    def finish(self, call: Call, weights: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> dict[str, Tensor]:
        sums = {"bias": torch.mv(bias.T, weights.to(bias.dtype))} if "bias" in call.params else {}
        if "weight" in call.params:  # the narrower side is scaled, which makes the smaller copy
            left, right = (b, scale_rows(a, weights)) if b.shape[-1] > a.shape[-1] else (scale_rows(b, weights), a)
            if left.dim() > 2:
                left, right = left.flatten(0, -2), right.flatten(0, -2)
            sums["weight"] = torch.mm(left.T, right)
        return sums

    def direct(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Tensor]:
        a, b = flat(saved[0], b)
        grads = {}
        if "weight" in call.params:
            grads["weight"] = torch.bmm(b.mT, a)
        if "bias" in call.params:
            grads["bias"] = b.sum(1)
        return grads

    def ghost(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        if b.dim() == 2 or b.shape[1:-1].numel() == 1:
            a = saved[0]
            a, b = (a, b) if a.dim() == 2 else (a.flatten(1), b.flatten(1))
            return Outer(call, a, b, self.finish, stacks=type(self) is LinearKernel)
        a, b = flat(saved[0], b)
        bias = b.sum(1)  # as measured, so summed: terms that cancel are gone from both
        roles: dict[str, Callable[[], Tensor]] = {
            "weight": lambda: gram_squared_norms(a, b),
            "bias": lambda: sum_of_squares(bias),
        }
        squares = torch.stack([of() for role, of in roles.items() if role in call.params]).sum(0)
        return Ghost(squares, (a, b, bias), lambda w, a, b, bias: self.finish(call, w, a, b, bias))

    def in_blocks(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Unformed:
        a, b = flat(saved[0], b)
        return Unformed(
            (a, b),
            [(b.shape[-1], a.shape[-1])],
            lambda space, a, b: torch.bmm(b.mT, a, out=space[0]),
            lambda totals: {"weight": totals[0]},
            Direct({"bias": b.sum(1)}) if "bias" in call.params else None,
        )

    def candidates(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Way]:
        if b.dim() == 2:  # one place
            return {"ghost": self.ghost}
        places, d, p = b.shape[1:-1].numel(), b.shape[-1], saved[0].shape[-1]
        if places == 1:
            return {"ghost": self.ghost}
        ways: dict[str, Way] = {"direct": self.direct_part, "ghost": self.ghost}
        if p * d > places * (p + d) and "weight" in call.params:
            ways = {"in blocks": self.in_blocks, "ghost": self.ghost}  # direct's products, and less is kept
        return dict(reversed(ways.items())) if GRAMS * places**2 < p * d else ways


LINEAR = LinearKernel()


@layer(nn.Linear)
def forward(module: nn.Linear, tap: Tap, x: Tensor) -> Tensor:
    weight, bias = own_parameter(module, "weight"), own_parameter(module, "bias")
    out = F.linear(x, weight.detach(), None if bias is None else bias.detach())
    return tap(out, LINEAR, {"weight": weight, "bias": bias}, (x,))
