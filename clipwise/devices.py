"""What differs from device to device, by name, in one place."""

from __future__ import annotations

import torch

from clipwise.types import BadArgument


def in_host_memory(device: torch.device) -> bool:
    """Whether a cipher of the host's can write to a tensor's memory."""
    return device.type == "cpu"


def usable(name: str) -> torch.device:
    """The device of that name, or an error where this machine has none."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).split("\n")[0].split(". ")[0]
        raise BadArgument(
            f"device={name!r}: torch {torch.__version__} cannot compute there ({why}); name another"
        ) from None
    return device


def described(device: torch.device) -> str:
    """Its name as its maker gives it, where torch knows it."""
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(device) if in_host_memory(device) or name is None else f"{device} ({name(device)})"


def wait_for(device: torch.device) -> None:
    """Return once the device has done what it was asked for."""
    if not in_host_memory(device):
        torch.get_device_module(device).synchronize()


def held_bytes(device: torch.device) -> int:
    """In use now, by torch's own allocator of a device that is not the host."""
    return int(torch.get_device_module(device).memory_allocated(device))


def peak_bytes(device: torch.device) -> int:
    """The most in use since this was last asked."""
    module = torch.get_device_module(device)
    peak = int(module.max_memory_allocated(device))
    module.reset_peak_memory_stats(device)
    return peak
