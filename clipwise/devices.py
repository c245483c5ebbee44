"""What differs from device to device, by name, in one place: no other room of the engine knows a device by its name.

What was measured was measured on a CPU. What is said of other devices was reasoned, and never timed (docs/gpu.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from clipwise.types import BadArgument, Unsupported


@dataclass(frozen=True)
class Policy:
    """How the engine works on one kind of device."""

    # Whether it computes in the host's memory: the host's cipher can write there, and a look at a value costs nothing. Elsewhere it
    # would wait for everything that was asked for before, so that operations are masked instead.
    host: bool
    # Bytes of a layer and physical batch: beyond it gradients are not stored where there is a choice. glibc takes blocks above
    # 32 MB from the system every time anew; 24 stood here before 28, and no timing of either was kept.
    direct_bytes: int
    # Bytes of the gradients of one block, all layers together, but one row at least: below what glibc takes from the system anew,
    # and small beside a step's memory (the transformer of `clipwise bench` went from 1.40 to 1.19 times a plain step's).
    block_bytes: int
    # Bytes of the parts of a split batch that wait to be measured together: as much as a step's other small memory, and enough for
    # 512 rows of 784-256-10 (2.7 MB), whose parts of 16 take half the time so.
    deferred_bytes: int
    # Threads that each add up, in a sum of its own, the rows that it formed: chosen; measured with 2 alone.
    most_lanes: int
    # Whether our products of patches are quicker than torch's own gradient of a convolution where images are small, and whether
    # grey images are folded for it: so on an EPYC.
    patches: bool
    # Whether attention with dropout is made of plain products, which copy tensors of odd strides.
    plain_attention: bool
    # Where torch keeps the precision of float32 products there (torch.backends.mkldnn.matmul.fp32_precision, say).
    precision: tuple[tuple[str, str], ...]


_MB = 2**20  # bytes
_PRODUCTS = ("matmul", "conv", "rnn")
_HOST = Policy(
    host=True,
    direct_bytes=28 * _MB,
    block_bytes=24 * _MB,
    deferred_bytes=4 * _MB,
    most_lanes=4,
    patches=True,
    plain_attention=True,
    precision=tuple(("mkldnn", product) for product in _PRODUCTS),
)
_ACCELERATOR = Policy(
    host=False,
    direct_bytes=28 * _MB,
    block_bytes=24 * _MB,
    deferred_bytes=4 * _MB,
    most_lanes=1,
    patches=False,
    plain_attention=False,
    precision=tuple(("cuda", product) for product in _PRODUCTS),
)
_WITHOUT_FLOAT64 = ("mps",)


def policy(device: torch.device) -> Policy:
    return _HOST if device.type == "cpu" else _ACCELERATOR


def in_host_memory(device: torch.device) -> bool:
    """Whether a cipher of the host's can write to a tensor's memory."""
    return policy(device).host


def refuse_without_wide_type(parameters: Iterable[torch.Tensor]) -> None:
    """Raise where norms could not be added up in float64, and so not be trusted to the last digits."""
    for p in parameters:
        if p.device.type in _WITHOUT_FLOAT64:
            raise Unsupported(
                f"model: its parameters are on {str(p.device)!r}, which has no float64, and norms are added up in float64; train on the CPU or on "
                "a device that has it"
            )


def with_generators(tensors: Iterable[torch.Tensor]) -> set[torch.device]:
    """The devices of these whose random numbers come from a generator that is not the host's."""
    return {t.device for t in tensors if t.is_cuda}


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
