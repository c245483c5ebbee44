"""What differs from device to device, by name, in one place."""

from __future__ import annotations

import torch


def in_host_memory(device: torch.device) -> bool:
    """Whether a cipher of the host's can write to a tensor's memory."""
    return device.type == "cpu"
