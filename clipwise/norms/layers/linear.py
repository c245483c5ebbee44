"""Linear layers: inputs of two, three or four dimensions.

For a = inputs (rows, T, p), b = output gradients (rows, T, d): g_i = b_i^T a_i. With T = 1 the norm is |a_i||b_i| and
nothing need be formed; otherwise the choice is between g_i itself and the T x T Gram matrices (Li et al. 2021,
"ghost" norms).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.norms.kernel import Call, Ghost, Kernel, Part, Way, gram_squared_norms, scale_rows, sum_of_squares
from clipwise.norms.layers.registry import Tap, layer


def _flat(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, T, p) and (rows, T, d) whatever the number of dimensions between."""
    return a.reshape(a.shape[0], -1, a.shape[-1]), b.reshape(b.shape[0], -1, b.shape[-1])


def _finish(call: Call, weights: Tensor, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    scaled = scale_rows(b, weights).flatten(0, 1)
    sums = {}
    if "weight" in call.params:
        sums["weight"] = scaled.T @ a.flatten(0, 1)
    if "bias" in call.params:
        sums["bias"] = scaled.sum(0)
    return sums


class LinearKernel(Kernel):
    def direct(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Tensor]:
        a, b = _flat(saved[0], b)
        grads = {}
        if "weight" in call.params:
            grads["weight"] = torch.bmm(b.mT, a)
        if "bias" in call.params:
            grads["bias"] = b.sum(1)
        return grads

    def ghost(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        a, b = _flat(saved[0], b)
        squares = torch.zeros(a.shape[0], dtype=b.dtype, device=b.device)
        if "weight" in call.params:
            squares = squares + (sum_of_squares(a) * sum_of_squares(b) if a.shape[1] == 1 else gram_squared_norms(a, b))
        if "bias" in call.params:
            squares = squares + sum_of_squares(b.sum(1))
        return Ghost(squares, (a, b), lambda w, a, b: _finish(call, w, a, b))

    def candidates(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Way]:  # noqa: ARG002
        a, b = _flat(saved[0], b)
        if a.shape[1] == 1:
            return {"ghost": self.ghost}
        ways: dict[str, Way] = {"direct": self.direct_part, "ghost": self.ghost}
        ghost_first = 2 * a.shape[1] ** 2 < a.shape[2] * b.shape[2]
        return dict(reversed(ways.items())) if ghost_first else ways


LINEAR = LinearKernel()


@layer(nn.Linear)
def forward(module: nn.Linear, tap: Tap, x: Tensor) -> Tensor:
    out = F.linear(x, module.weight.detach(), None if module.bias is None else module.bias.detach())
    return tap(out, LINEAR, {"weight": module.weight, "bias": module.bias}, (x,))
