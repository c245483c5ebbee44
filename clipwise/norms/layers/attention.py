"""nn.MultiheadAttention: its projections are linear layers, tapped inside.

torch packs the three input projections into one parameter, used once for self-attention (one tap) or in pieces for
attention to something else (one tap for each piece); `out_proj` is a child whose forward is never called, so its
parameters are tapped here too. The key and value that `add_bias_kv` puts behind the others are one copy a row of a parameter,
so that the gradient of a copy is the row's own. What lies between has no parameters and is left to autograd: the fused
`scaled_dot_product_attention`, or the plain formula softmax(q k^T / sqrt(d) + mask) v where the weights are wanted.

The same function as torch's own, to rounding: masks (bool or float, for all or for each head), padding masks, the
causal hint, dropout, and NaN where torch gives NaN for a query that may look at nothing.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.devices import policy
from clipwise.norms.kernels.kernel import PER_EXAMPLE
from clipwise.norms.layers.linear import LINEAR
from clipwise.norms.layers.registry import Tap, layer
from clipwise.types import Unsupported


def _supported(module: nn.MultiheadAttention) -> bool:
    plain_out = type(module.out_proj).forward is nn.Linear.forward and not hasattr(module.out_proj, "parametrizations")
    hooked = module.out_proj._forward_pre_hooks  # torch reads out_proj.weight and runs no hook; weight norm lives there
    return plain_out and not hooked


@layer(nn.MultiheadAttention, supports=_supported)
def attention(
    module: nn.MultiheadAttention,
    tap: Tap,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    if query.dim() != 3:
        raise Unsupported("MultiheadAttention was given one example without a batch dimension; give it a batch")
    if is_causal and attn_mask is None:
        raise RuntimeError("is_causal is only a hint about attn_mask; give the mask too")
    rows_dim = 0 if module.batch_first else 1
    q, k, v = _project_in(module, tap, query, key, value, rows_dim)
    q, k, v = (
        _heads(x, module)
        for x in (q, _with_more(module, tap, k, rows_dim, "bias_k"), _with_more(module, tap, v, rows_dim, "bias_v"))
    )
    more = k.shape[2] - key.shape[1 - rows_dim]
    causal = is_causal and key_padding_mask is None and not need_weights
    mask = _merged(_open(None if causal else attn_mask, more), _open(key_padding_mask, more), q, k.shape[2])
    dropout = module.dropout if module.training else 0.0
    if need_weights or (dropout and policy(q.device).plain_attention):
        # Plain matrix products follow, which would copy tensors of these strides in both passes.
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    weights = None
    if need_weights:
        scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.mT
        weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
        out = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal)
    out = (out.transpose(1, 2) if module.batch_first else out.permute(2, 0, 1, 3)).flatten(2)
    return _linear(tap, out, module.out_proj.weight, module.out_proj.bias, rows_dim), weights


def _linear(
    tap: Tap, x: Tensor, weight: Tensor, bias: Tensor | None, rows_dim: int, piece: slice | None = None
) -> Tensor:
    """x @ weight^T + bias for the rows `piece` of a packed weight and bias, or for the whole."""
    w, b = weight.detach(), None if bias is None else bias.detach()
    if piece is not None:
        w, b = w[piece], None if b is None else b[piece]
    pieces = {} if piece is None else {"weight": piece, "bias": piece}
    return tap(F.linear(x, w, b), LINEAR, {"weight": weight, "bias": bias}, (x,), rows_dim=rows_dim, pieces=pieces)


def _project_in(
    module: nn.MultiheadAttention, tap: Tap, query: Tensor, key: Tensor, value: Tensor, rows_dim: int
) -> tuple[Tensor, ...]:
    width, bias = module.embed_dim, module.in_proj_bias
    if module.in_proj_weight is None:
        given = zip(
            (query, key, value), (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight), strict=True
        )
        return tuple(_separate(tap, x, w, bias, rows_dim, i) for i, (x, w) in enumerate(given))
    if query is key and key is value:
        packed = _linear(tap, query, module.in_proj_weight, bias, rows_dim)
        query, key, value = packed.unflatten(2, (3, width)).unbind(2)
        return query, key, value
    parts = [slice(i * width, (i + 1) * width) for i in range(3)]
    return tuple(
        _linear(tap, x, module.in_proj_weight, bias, rows_dim, part)
        for x, part in zip((query, key, value), parts, strict=True)
    )


def _with_more(module: nn.MultiheadAttention, tap: Tap, x: Tensor, rows_dim: int, name: str) -> Tensor:
    """Keys or values with those behind them that no token has: of `add_bias_kv`, and zeros of `add_zero_attn`."""
    shape = list(x.shape)
    shape[1 - rows_dim] = 1
    if (bias := getattr(module, name)) is not None:
        copies = bias.detach().view(1, 1, -1).expand(shape).contiguous()
        x = torch.cat([x, tap(copies, PER_EXAMPLE, {name: bias}, (), rows_dim=rows_dim)], 1 - rows_dim)
    return torch.cat([x, x.new_zeros(shape)], 1 - rows_dim) if module.add_zero_attn else x


def _open(mask: Tensor | None, more: int) -> Tensor | None:
    """A mask that lets everybody look at so many keys more."""
    return mask if mask is None or not more else F.pad(mask, (0, more))


def _separate(tap: Tap, x: Tensor, weight: Tensor, bias: Tensor | None, rows_dim: int, i: int) -> Tensor:
    """A projection with a weight of its own and the i-th third of the packed bias."""
    piece = slice(i * weight.shape[0], (i + 1) * weight.shape[0])
    b = None if bias is None else bias.detach()[piece]
    out = F.linear(x, weight.detach(), b)
    return tap(out, LINEAR, {"weight": weight, "bias": bias}, (x,), rows_dim=rows_dim, pieces={"bias": piece})


def _heads(x: Tensor, module: nn.MultiheadAttention) -> Tensor:
    """(rows, T, d) or (T, rows, d) -> (rows, heads, T, d / heads)."""
    x = x.unflatten(2, (module.num_heads, module.head_dim))
    return x.transpose(1, 2) if module.batch_first else x.permute(1, 2, 0, 3)


def _merged(mask: Tensor | None, padding: Tensor | None, q: Tensor, length: int) -> Tensor | None:
    """Both masks as one to be added to scores (rows, heads, T, length)."""
    rows, heads = q.shape[:2]
    total = None
    if mask is not None:
        total = _additive(mask, q)
        total = total.view(rows, heads, *mask.shape[1:]) if mask.dim() == 3 else total
    if padding is not None:
        blocked = _additive(padding, q).view(rows, 1, 1, length)
        total = blocked if total is None else total + blocked
    return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)
