"""Does one record change another's output, or what the forward pass leaves in the model's buffers?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from clipwise.norms.small_batch import is_float
from clipwise.types import Unsupported


def grown(two: torch.Size, three: torch.Size) -> int | None:
    """The dimension that grew from 2 to 3; None if none did; -1 if it is not that simple."""
    if len(two) != len(three):
        return -1
    changed = [i for i, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    if not changed:
        return None
    return changed[0] if len(changed) == 1 and (two[changed[0]], three[changed[0]]) == (2, 3) else -1


def first_and_last_differ(out: Any, other: Any, small: Any) -> bool:
    """Between two outputs for three rows; `small` is that for two. Values show what is mixed where no gradient is watched:
    before the first layer, behind a detach, inside a unit that runs generically."""
    for x, y, two in zip(*(tree_flatten(tree)[0] for tree in (out, other, small)), strict=True):
        dim = grown(two.shape, x.shape) if is_float(x) else None
        if dim is None or dim < 0:
            continue
        x, y = (t.detach().index_select(dim, torch.tensor([0, 2], device=t.device)) for t in (x, y))
        if not torch.allclose(x, y, rtol=1e-3, atol=1e-4 * float(x.abs().max().nan_to_num(0)), equal_nan=True):
            return True
    return False


def mixing(how: str) -> Unsupported:
    return Unsupported(
        f"the model mixes examples: {how}. No example's influence can then be bounded. Replace what mixes or reorders them (batch "
        "statistics, batch-wise attention, sorting by length); clipwise.fix(model) replaces BatchNorm"
    )


class Buffers:
    """What a forward pass leaves in the model's buffers: it must not depend on the records, or it would stand in
    state_dict() without noise."""

    def __init__(self, model: nn.Module):
        self._model = model
        self._start = {name: b.clone() for name, b in model.named_buffers()}
        self._left: list[dict[str, Tensor]] = []

    def after(self, run: Callable[[], Any]) -> Any:
        with torch.no_grad():
            for name, b in self._model.named_buffers():
                if name in self._start:
                    b.copy_(self._start[name])
        torch.manual_seed(3)
        out = run()
        self._left.append({name: b.clone() for name, b in self._model.named_buffers()})
        return out

    def refuse_differences(self) -> None:
        first, *others = self._left
        for name, value in first.items():
            if any(name in other and not _alike(value, other[name]) for other in others):
                raise Unsupported(
                    f"the forward pass writes values of the records into the buffer {name!r} (a running statistic?): it would be saved "
                    "with the model, without noise. Keep it fixed while training, or leave it out"
                )


def _alike(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or not (is_float(a) and is_float(b)):
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-7, equal_nan=True)
