"""Peak memory of training, from Linux' own books.

In a fresh process, once the libraries are imported, counting begins: then the model, its optimizer and the batch are made
and two steps are taken. `memory_mb` is by how much the peak of the resident memory (VmHWM) exceeds the resident memory
after the imports: weights, gradients, activations, whatever the method stores, and what the libraries load or allocate on
first use, which is nearly the same for all. `growth_mb` is the stricter figure beside it: by how much the *second* step
alone grew beyond the state before it, so that weights and libraries, which all methods need alike, do not dilute it.

On another device the figures are those of torch's own allocator there, which begins at nothing.

glibc is told (MALLOC_MMAP_THRESHOLD_, worker.py) to give freed buffers back at once, so that the peak is what was in
use, and not what was once in use and kept for later.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import torch

from clipwise.devices import held_bytes, in_host_memory, peak_bytes
from clipwise.lab.bench.timing import Stepper, whole_step

_HOST = torch.device("cpu")
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def can_measure(device: torch.device = _HOST) -> bool:
    return not in_host_memory(device) or _STATUS.exists()


def _read() -> dict[str, float]:
    """VmHWM, VmRSS and others in MB."""
    lines = (line.split() for line in _STATUS.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) / 1024 for words in lines if len(words) == 3 and words[2] == "kB"}


def _reset_peak() -> None:
    """VmHWM = VmRSS. Where the system forbids it, the peak of the imports stays, which the steps then have to
    exceed."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text("5")
    except (OSError, AttributeError):
        return


def measure(make: Callable[[], Stepper], device: torch.device = _HOST) -> dict[str, float]:
    """MB at the peak of two steps (the first includes the choice of kernels) over the state after the imports."""
    if not in_host_memory(device):
        return _measure_on(device, make)
    _reset_peak()
    imported = _read()["VmRSS"]
    stepper = make()
    whole_step(stepper)
    peak = _read()["VmHWM"]
    _reset_peak()
    before = _read()["VmRSS"]
    whole_step(stepper)
    later = _read()["VmHWM"]
    return {
        "memory_mb": max(0.0, max(peak, later) - imported),
        "growth_mb": max(0.0, later - before),
        "peak_rss_mb": max(peak, later),
    }


def _measure_on(device: torch.device, make: Callable[[], Stepper]) -> dict[str, float]:
    peak_bytes(device)
    stepper = make()
    whole_step(stepper)
    first, before = peak_bytes(device), held_bytes(device)
    whole_step(stepper)
    later = peak_bytes(device)
    peak = max(first, later) / 2**20
    return {"memory_mb": peak, "growth_mb": max(0, later - before) / 2**20, "peak_rss_mb": peak}
