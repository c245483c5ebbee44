"""Layers of transformers and peft that hold parameters themselves; they are known by name, so that neither need be installed.

Rules that need nothing from here: LoRA, prompts and prefixes are linear layers and embeddings; each RMSNorm is spread (units.py).

`Conv1D` (GPT-2) is a linear layer whose weight is stored the other way round, (inputs, outputs): g_i = a_i^T b_i. Norms and ways
are those of linear.py, and what is formed is turned round. IA3 scales the inputs or outputs of a frozen layer by a vector; here
each row has a copy of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from clipwise.norms.kernels.blocks import Unformed
from clipwise.norms.kernels.kernel import PER_EXAMPLE, Call
from clipwise.norms.layers.linear import LinearKernel
from clipwise.norms.layers.linear import forward as linear
from clipwise.norms.layers.registry import Tap, layer


class TurnedKernel(LinearKernel):
    """Of a linear layer with its weight turned round."""

    def finish(self, call: Call, weights: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> dict[str, Tensor]:
        return _turned(super().finish(call, weights, a, b, bias))

    def direct(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Tensor]:
        return _turned(super().direct(call, saved, b))

    def in_blocks(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Unformed:
        part = super().in_blocks(call, saved, b)
        part.finish = lambda totals: {"weight": totals[0].T}
        return part


def _turned(sums: dict[str, Tensor]) -> dict[str, Tensor]:
    return {role: g.mT if role == "weight" else g for role, g in sums.items()}


TURNED = TurnedKernel()
layer("transformers.models.falcon.modeling_falcon.FalconLinear")(linear)  # the same function, by a product and a sum


@layer("transformers.pytorch_utils.Conv1D")
def conv1d(module: nn.Module, tap: Tap, x: Tensor) -> Tensor:
    weight, bias = module.weight, module.bias
    out = torch.addmm(bias.detach(), x.reshape(-1, x.shape[-1]), weight.detach()).view(*x.shape[:-1], -1)  # type: ignore[operator]
    return tap(out, TURNED, {"weight": weight, "bias": bias}, (x,))  # type: ignore[dict-item]


def _active_vector(module: Any) -> Any:
    names = [name for name in module.active_adapters if name in module.ia3_l]
    plain = len(names) == 1 and not module.merged and not module.disable_adapters
    return module.ia3_l[names[0]] if plain else None


@layer("peft.tuners.ia3.layer.Linear", supports=lambda module: _active_vector(module) is not None)
def ia3(module: Any, tap: Tap, x: Tensor) -> Tensor:
    vector, rows = _active_vector(module), x.shape[0]
    copies = tap(vector.detach().flatten().expand(rows, -1).clone(), PER_EXAMPLE, {"weight": vector}, (), rows_dim=0)
    scaling = copies.view(rows, *[1] * (x.dim() - 2), -1)
    if module.is_feedforward:
        x = (x.to(vector.dtype) * scaling).to(x.dtype)
    out: Tensor = module.base_layer(x)
    return out if module.is_feedforward else (out * scaling).to(out.dtype)
