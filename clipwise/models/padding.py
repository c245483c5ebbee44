"""Padding as TensorFlow does it, for weights that were trained so."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def same_padded(x: Tensor, kernel: int, stride: int) -> Tensor:
    """As many zeros around x as give ceil(size / stride) places; of an odd number, one more at the end."""
    pads: list[int] = []
    for size in (x.shape[-1], x.shape[-2]):
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads) if any(pads) else x
