"""Peak memory of a step, from Linux' own books.

In a fresh process, after the imports and one step of another, tiny model (so that libraries and thread pools are
there), the model, its optimizer and the batch are made; from here on is counted. The figure is by how much the
resident memory *grew* at its peak: gradients, activations and whatever the method stores; not the weights, which all
methods need alike and which would flatter every ratio. Pages of program files that were touched for the first time
are taken off: they are code, not memory that the step needs.

glibc is told (MALLOC_MMAP_THRESHOLD_, worker.py) to give freed buffers back at once, so that the peak is what was in
use, and not what was once in use and kept for later.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clipwise.bench.timing import Stepper

STEPS_AFTER_FIRST = 1
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def can_measure() -> bool:
    return _STATUS.exists()


def _read() -> dict[str, float]:
    """VmHWM, VmRSS and RssFile in MB."""
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


def measure(warm: Callable[[], Stepper], make: Callable[[], Any]) -> dict[str, float]:
    """MB by which memory grew at the peak of the first step (kernel choice included) and of later ones."""
    tiny = warm()
    _run(tiny)
    del tiny
    stepper = make()
    _reset_peak()
    before = _read()
    _run(stepper)
    first = _growth(before)
    _reset_peak()
    for _ in range(STEPS_AFTER_FIRST):
        _run(stepper)
    later = _growth(before)
    return {
        "first_step_memory_mb": first,
        "later_memory_mb": later,
        "memory_mb": max(first, later),
        "peak_rss_mb": _read()["VmHWM"],
    }


def _run(stepper: Stepper) -> None:
    stepper.prepare()
    stepper.step()
    stepper.tidy()


def _growth(before: dict[str, float]) -> float:
    now = _read()
    code = now["RssFile"] - before["RssFile"]
    return max(0.0, now["VmHWM"] - before["VmRSS"] - code)
