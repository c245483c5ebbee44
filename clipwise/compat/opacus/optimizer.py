"""What Opacus' optimizer has beside torch's: noise and clipping norm that a script reads and sets (`DPOptimizer`).

The optimizer stays the object that it was; while the run lives it is of a class of its own, which has these properties.
Guarantee: what is set holds from the next logical step on, which is charged with the noise that it draws.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch.optim import Optimizer

from clipwise import validate
from clipwise.dropin import Private
from clipwise.run import Run
from clipwise.types import BadArgument, LoopMisuse, Unsupported

SET = (
    "noise multiplier or clipping norm were set by the script between steps. Each step is in the ledger with its noise; that no value was "
    "chosen by looking at training records is the script's word"
)


def as_dp_optimizer(optimizer: Optimizer, private: Private) -> Optimizer:
    """The same object, with `noise_multiplier`, `max_grad_norm` and `expected_batch_size` until the run ends."""
    run, kind = private.run, type(optimizer)

    def get_noise(_: Any) -> float:
        return run.plan.noise_multiplier

    def set_noise(_: Any, value: float) -> None:
        if run.plan.target_epsilon is not None:
            raise Unsupported(
                f"noise_multiplier={value!r}: the noise was calibrated for target_epsilon, which other noise would miss; use make_private with a "
                "noise_multiplier, or clipwise.attach(schedule=...), which calibrates the whole schedule"
            )
        _replan(run, noise_multiplier=validate.non_negative("noise_multiplier", value))

    def get_norm(_: Any) -> float:
        return float(run.state.method.threshold)

    def set_norm(_: Any, value: float) -> None:
        _replan(run, method=dataclasses.replace(run.plan.method, threshold=validate.positive("max_grad_norm", value)))  # type: ignore[call-arg]

    def set_size(_: Any, value: float) -> None:
        raise BadArgument(
            f"expected_batch_size={value!r}: it is sample rate x records ({run.plan.expected_batch_size:g}), a public number; a batch's own size "
            "would tell how many records were drawn. Make the DataLoader with another batch_size"
        )

    members = {
        "noise_multiplier": property(get_noise, set_noise),
        "max_grad_norm": property(get_norm, set_norm),
        "expected_batch_size": property(lambda _: run.plan.expected_batch_size, set_size),
        "original_optimizer": property(lambda self: self),
        "__module__": kind.__module__,
    }
    optimizer.__class__ = type(kind.__name__, (kind,), members)
    run.on_close(lambda: setattr(optimizer, "__class__", kind))
    return optimizer


def _replan(run: Run, **changes: Any) -> None:
    if all(getattr(run.plan, name) == value for name, value in changes.items()):
        return
    if run.stepper.waits or run.stepper.unfinished:
        raise LoopMisuse("noise or clipping norm were set in the middle of a batch; set them after optimizer.step()")
    plan = run.stepper.plan = dataclasses.replace(run.plan, **changes)
    run.stepper.state = run.state._replace(method=plan.method.init(plan.context))
    run.note(SET)
