"""Learning-rate schedules by name: the eleven of Auto DP-SGD's Table 11, as torch computes them.

    name              torch's class                  stepped    options, with what they are if left out
    step              StepLR                         epoch      step_size=30, gamma=0.1
    multi-step        MultiStepLR                    epoch      milestones=E/2 and 3E/4 (written 10/20), gamma=0.1
    constant          ConstantLR                     epoch      factor=1/3, total_iters=5
    linear            LinearLR                       epoch      start_factor=1/3, end_factor=1, total_iters=5
    exponential       ExponentialLR                  epoch      gamma=0.95
    polynomial        PolynomialLR                   epoch      total_iters=E, power=1
    cosine            CosineAnnealingLR              epoch      T_max=E, eta_min=0
    cosine-restarts   CosineAnnealingWarmRestarts    epoch      T_0=E/4, T_mult=1, eta_min=0
    cyclic            CyclicLR                       step       base_lr=lr/10, max_lr=lr, step_size_up=2 epochs
    one-cycle         OneCycleLR                     step       max_lr=lr, pct_start=0.3, div_factor=25, final_div_factor=1e4
    plateau           ReduceLROnPlateau              epoch      on=public-test (must be written), factor=0.1, patience=10

E are the planned epochs, lr the optimizer's rate. `none` leaves the rate alone. As text: `one-cycle:max_lr=0.01`.

All but `plateau` are public functions of the step, so they cost no privacy. `plateau` reads a figure after every epoch:
it is refused unless the user writes `on=public-test`, which states that the test records are public, not among the
protected ones. A loss on the training records would be a release without noise, and is not offered.

Reference: Auto DP-SGD (paper 000), Table 11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clipwise import named_text, validate
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from torch.optim import Optimizer

ON_PUBLIC_TEST = "public-test"


@dataclass(frozen=True)
class _Kind:
    torch_name: str
    by: str  # what it is stepped by
    options: Mapping[str, Callable[[str, str, str], Any]]
    defaults: Callable[[float, int, int], dict[str, Any]] = field(default=lambda *_: {})


def _milestones(argument: str, key: str, word: str) -> list[int]:
    return [named_text.whole(argument, key, part) for part in word.split("/")]


_NUMBER, _WHOLE = named_text.number, named_text.whole
_KINDS: dict[str, _Kind] = {
    "step": _Kind("StepLR", "epoch", {"step_size": _WHOLE, "gamma": _NUMBER}, lambda *_: {"step_size": 30}),
    "multi-step": _Kind(
        "MultiStepLR",
        "epoch",
        {"milestones": _milestones, "gamma": _NUMBER},
        lambda lr, epochs, per_epoch: {"milestones": sorted({max(1, epochs // 2), max(1, 3 * epochs // 4)})},  # noqa: ARG005
    ),
    "constant": _Kind("ConstantLR", "epoch", {"factor": _NUMBER, "total_iters": _WHOLE}),
    "linear": _Kind("LinearLR", "epoch", {"start_factor": _NUMBER, "end_factor": _NUMBER, "total_iters": _WHOLE}),
    "exponential": _Kind("ExponentialLR", "epoch", {"gamma": _NUMBER}, lambda *_: {"gamma": 0.95}),
    "polynomial": _Kind(
        "PolynomialLR",
        "epoch",
        {"total_iters": _WHOLE, "power": _NUMBER},
        lambda lr, epochs, per_epoch: {"total_iters": epochs},  # noqa: ARG005
    ),
    "cosine": _Kind(
        "CosineAnnealingLR",
        "epoch",
        {"T_max": _WHOLE, "eta_min": _NUMBER},
        lambda lr, epochs, per_epoch: {"T_max": epochs},  # noqa: ARG005
    ),
    "cosine-restarts": _Kind(
        "CosineAnnealingWarmRestarts",
        "epoch",
        {"T_0": _WHOLE, "T_mult": _WHOLE, "eta_min": _NUMBER},
        lambda lr, epochs, per_epoch: {"T_0": max(1, epochs // 4)},  # noqa: ARG005
    ),
    "cyclic": _Kind(
        "CyclicLR",
        "step",
        {"base_lr": _NUMBER, "max_lr": _NUMBER, "step_size_up": _WHOLE, "step_size_down": _WHOLE},
        lambda lr, epochs, per_epoch: {"base_lr": lr / 10, "max_lr": lr, "step_size_up": 2 * per_epoch},  # noqa: ARG005
    ),
    "one-cycle": _Kind(
        "OneCycleLR",
        "step",
        {"max_lr": _NUMBER, "pct_start": _NUMBER, "div_factor": _NUMBER, "final_div_factor": _NUMBER},
        lambda lr, epochs, per_epoch: {"max_lr": lr, "total_steps": epochs * per_epoch},
    ),
    "plateau": _Kind(
        "ReduceLROnPlateau",
        "epoch",
        {"on": lambda argument, key, word: word, "factor": _NUMBER, "patience": _WHOLE, "threshold": _NUMBER},  # noqa: ARG005
    ),
}
KINDS = ("none", *_KINDS)
_POSITIVE = ("max_lr", "base_lr", "div_factor", "final_div_factor", "gamma", "power", "factor", "start_factor")
_AT_MOST_ONE = ("factor", "start_factor", "end_factor", "pct_start")


@dataclass(frozen=True)
class LrSchedule:
    """A schedule as it was asked for; `start` sets it going on an optimizer."""

    kind: str = "none"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def note(self) -> str | None:
        """For the privacy statement."""
        if self.kind != "plateau":
            return None
        return (
            "the learning rate followed a figure on the test records after every epoch (plateau): the user states that "
            "these are public; the guarantee is about the training records alone"
        )

    def start(self, optimizer: Optimizer, epochs: int, steps_per_epoch: int, *, higher_is_better: bool = True) -> Rates:
        """`higher_is_better` is of the figure that `plateau` watches."""
        return Rates(self, optimizer, epochs, steps_per_epoch, higher_is_better)

    def __str__(self) -> str:
        words = [f"{key}={_written(value)}" for key, value in self.options.items()]
        return f"{self.kind}:{','.join(words)}" if words else self.kind


class Rates:
    """A schedule that runs: told after every logical step and after every epoch, in that order."""

    def __init__(
        self, schedule: LrSchedule, optimizer: Optimizer, epochs: int, steps_per_epoch: int, higher_is_better: bool
    ):
        self._by = ""
        self._plateau = schedule.kind == "plateau"
        self._scheduler: Any = None
        if schedule.kind == "none":
            return
        from torch.optim import lr_scheduler

        kind = _KINDS[schedule.kind]
        self._by = kind.by
        lr = float(optimizer.param_groups[0]["lr"])
        options = kind.defaults(lr, epochs, steps_per_epoch) | dict(schedule.options)
        if self._plateau:
            options.pop("on")
            options["mode"] = "max" if higher_is_better else "min"
        if schedule.kind == "cyclic" and not options["base_lr"] < options["max_lr"]:
            raise BadArgument(
                f"lr_schedule={str(schedule)!r}: base_lr={options['base_lr']:g} is not below max_lr={options['max_lr']:g}; "
                "give both"
            )
        if schedule.kind in ("cyclic", "one-cycle"):
            # torch moves the momentum against the rate, where the optimizer has one that is in use.
            defaults = optimizer.defaults
            options["cycle_momentum"] = bool(defaults.get("momentum")) or "betas" in defaults
        self._scheduler = getattr(lr_scheduler, kind.torch_name)(optimizer, **options)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._scheduler is None else dict(self._scheduler.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._scheduler is not None:
            self._scheduler.load_state_dict(dict(state))

    def after_step(self) -> None:
        if self._by == "step":
            self._scheduler.step()

    def after_epoch(self, figure: float | None = None) -> None:
        """`figure` is the one on public test records, for `plateau`."""
        if self._by != "epoch":
            return
        if not self._plateau:
            self._scheduler.step()
            return
        if figure is None:
            raise BadArgument("lr_schedule='plateau' watches a figure on public test records; give test data")
        self._scheduler.step(figure)


def make_lr_schedule(value: LrSchedule | str | None) -> LrSchedule:
    """A schedule from its text; None is `none`."""
    if value is None:
        return LrSchedule()
    if isinstance(value, LrSchedule):
        return value
    name, words = named_text.split_text("lr_schedule", value, "one-cycle:max_lr=0.01")
    validate.choice("lr_schedule", name, KINDS)
    known = {} if name == "none" else _KINDS[name].options
    named_text.refuse_unknown("lr_schedule", name, words, tuple(known))
    argument = f"lr_schedule={name!r}"
    options = {key: known[key](argument, key, word) for key, word in words.items()}
    for key, option in options.items():
        _check(argument, key, option)
    if name == "plateau" and options.get("on") != ON_PUBLIC_TEST:
        raise BadArgument(
            f"lr_schedule={value!r}: ReduceLROnPlateau reads a figure after every epoch, which must be public or released; "
            f"write plateau:on={ON_PUBLIC_TEST} if your test records are public (not part of the protected data), or take "
            "another schedule, such as cosine or one-cycle"
        )
    return LrSchedule(name, options)


def refuse_double_rate(schedule: LrSchedule, *, method: str | None, optimizer: str | None) -> None:
    """`method` or `optimizer`: the name of the one that sets the rate itself, if any does."""
    if schedule.kind == "none":
        return
    for what, name in (("method", method), ("optimizer", optimizer)):
        if name is not None:
            raise BadArgument(
                f"lr_schedule={str(schedule)!r} and {what}={name!r}: this {what} sets the learning rate itself; leave "
                f"lr_schedule out, or choose another {what}"
            )


def _check(argument: str, key: str, value: Any) -> None:
    if isinstance(value, list):
        for one in value:
            validate.count(f"{argument}: {key}", one)
    elif isinstance(value, int):
        validate.count(f"{argument}: {key}", value)
    elif isinstance(value, float):
        (validate.positive if key in _POSITIVE else validate.non_negative)(f"{argument}: {key}", value)
        if (key in _AT_MOST_ONE and value > 1) or (key == "factor" and "plateau" in argument and value == 1):
            raise BadArgument(
                f"{argument}: {key}={value!r} is too large; give a number of at most 1 (plateau: below 1)"
            )


def _written(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, list) else value if isinstance(value, str) else repr(value)
