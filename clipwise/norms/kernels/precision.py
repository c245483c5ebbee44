"""Products of ours in the precision of their tensors, whatever the user's own may be made in.

What is measured is not always what is summed: a Gram matrix gives the norm, the ordinary weight gradient the sum. Both are
exact to a few eps of float32, and the tape's slack covers that. In TF32 (10 bits, the default of convolutions on an
accelerator), in bfloat16 (`set_float32_matmul_precision("medium")`, on a CPU too) or under autocast, a record could exceed
the bound by 4e-4, while the slack is 1.6e-5.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from clipwise.devices import policy

_REDUCED = ("tf32", "bf16")
NOTHING = nullcontext()
# As torch.backends asks for them, without the way through Python's attributes.
_precision, _set_precision = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter


def exact_products(device: torch.device) -> AbstractContextManager[None]:
    """float32 is multiplied in float32 for the length of a block; the user's settings are given back. Nothing is done where
    nothing is reduced."""
    if nothing_is_reduced(device):
        return NOTHING
    reduced = [(each, was) for each in policy(device).precision if (was := _precision(*each)) in _REDUCED]
    return _restored(device.type, reduced)


def nothing_is_reduced(device: torch.device) -> bool:
    """In this thread, to which autocast belongs."""
    for backend, product in policy(device).precision:
        if _precision(backend, product) in _REDUCED:
            return False
    return not torch.is_autocast_enabled(device.type)


@contextmanager
def _restored(device_type: str, reduced: list[tuple[tuple[str, str], str]]) -> Iterator[None]:
    try:
        for each, _ in reduced:
            _set_precision(*each, "ieee")
        with torch.autocast(device_type, enabled=False):
            yield
    finally:
        for each, was in reduced:
            _set_precision(*each, was)
