"""Modes of torch's, in this thread: whether something stands between a call and torch's functions, and may do something else than they do."""

from __future__ import annotations

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def of_functions() -> bool:
    return bool(torch._C._len_torch_function_stack())


def of_operations() -> bool:
    """Under one of these the backward pass may do something else too."""
    return bool(torch._C._len_torch_dispatch_stack())


def kinds() -> list[type]:
    return [type(mode) for mode in (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack())]
