"""What each clipping method adds to a private step, beside `fixed`, interleaved in one process.

Every method runs through the public drop-in on the same model and batch. Kernels are chosen by rule (a seed is set),
so that all methods run the very same engine and only the method differs. Each method is timed alone against a `fixed` of
its own, in turning order, so that the two steps of a ratio lie next to each other: a few per cent are asked for, and the
machine drifts by more than that within seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from clipwise.clipping import METHODS, Context, make_method
from clipwise.lab.bench import timing
from clipwise.lab.bench.peers import Clipwise
from clipwise.lab.bench.workloads import WORKLOADS, Workload

BASE = "fixed"
MODELS = ("cnn-b512", "small-cnn-b256")
TARGET, VECTOR_TARGET = 1.05, 1.25  # the second for a method that releases a second vector as large as the model
_CONTEXT = Context(expected_batch_size=256.0, noise_multiplier=1.0, parameters=1, steps=100, sample_rate=0.1)


def time_clipping(
    model: str, names: Sequence[str], *, rounds: int, progress: Callable[[int, int], None]
) -> dict[str, dict[str, Any]]:
    """Method -> ratio of its step to that of `fixed`, with quartiles."""
    workload = WORKLOADS[model]
    others = [name for name in names if name != BASE]
    figures: dict[str, dict[str, Any]] = {}
    for place, name in enumerate(others):

        def show(done: int, total: int, place: int = place) -> None:
            progress(place * total + done, len(others) * total)

        times, alive = timing.time_interleaved(
            {one: partial(_stepper, workload, one) for one in (BASE, name)},
            rounds=rounds,
            seconds=0.0,
            most=rounds,
            least=rounds,
            progress=show,
        )
        figures[name] = times.summary(name, base=BASE) | {"target": target(name)}
        for stepper in alive.values():
            if isinstance(stepper, Clipwise):
                stepper.close()
    return figures


def target(name: str) -> float:
    vector = any(query.width == 0 for query in make_method(name).side_queries(_CONTEXT))
    return VECTOR_TARGET if vector else TARGET


def _stepper(workload: Workload, name: str) -> Clipwise:
    groups = {"groups": lambda batch: batch[1] % 2} if METHODS[name].needs_groups else {}
    return Clipwise(workload, method=name, seed=0, allow_unsound=True, **groups)
