"""Losses, by name or as text: `cross-entropy`, `focal:gamma=2,alpha=0.25`, `squared-error`.

    cross-entropy   -w_y log p_y                     w: one weight a class, `weights=1/1/5`; 1 by default
    focal           -a_y (1 - p_y)^gamma log p_y     gamma = 2; a: one number, or one a class, `alpha=0.25/0.75`
    squared-error   mean over the record's numbers of (output - target)^2

Guarantee: the loss of a batch is the mean of its records' own losses, and a record's loss depends on that record alone.
(torch's own weighted cross entropy divides by the weights of the whole batch, so that one record changes the others'
shares; it is not used.) Class weights are public numbers that the user states: weights counted from the protected
records would be outside the guarantee, which `note` says in the privacy statement.

References: Lin et al., "Focal Loss for Dense Object Detection" (2017); DP-SGD-Global-Adapt-V2 (paper 001), equation 6.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clipwise import named_text, validate
from clipwise.types import BadArgument

LOSSES = ("cross-entropy", "focal", "squared-error")
_OPTIONS = {"cross-entropy": ("weights",), "focal": ("gamma", "alpha"), "squared-error": ()}
_GAMMA = 2.0


@dataclass(frozen=True)
class Loss:
    """`loss(output, target)` is the mean over the rows; `each` gives one loss a row."""

    name: str = "cross-entropy"
    weights: tuple[float, ...] = ()  # one a class, or a single one for all; empty: 1
    gamma: float = 0.0  # of the focal loss

    def __post_init__(self) -> None:
        validate.choice("loss", self.name, LOSSES)
        validate.non_negative("gamma", self.gamma)
        for weight in self.weights:
            validate.non_negative("alpha" if self.name == "focal" else "weights", weight)
        if self.weights and not any(self.weights):
            raise BadArgument(f"loss={self.name!r}: every weight is 0, so that nothing is learned; give one above 0")

    @property
    def wants_classes(self) -> bool:
        """Whether targets are class numbers; otherwise they have the shape of the outputs."""
        return self.name != "squared-error"

    @property
    def note(self) -> str | None:
        if len(self.weights) < 2:
            return None
        return (
            f"loss {self}: its class weights are stated by the user as public; weights counted from the protected records "
            "would be outside the guarantee"
        )

    def check_classes(self, classes: int) -> None:
        if len(self.weights) > 1 and len(self.weights) != classes:
            raise BadArgument(
                f"loss={str(self)!r} has {len(self.weights)} weights for {classes} classes; give {classes}"
            )

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return self.each(output, target).mean()

    def each(self, output: Tensor, target: Tensor) -> Tensor:
        if self.name == "squared-error":
            if output.shape != target.shape:
                raise BadArgument(
                    f"loss='squared-error': outputs of shape {tuple(output.shape)} and targets of shape "
                    f"{tuple(target.shape)} cannot be compared; give targets of the outputs' shape"
                )
            return (output - target).square().flatten(1).mean(1)
        log_p = output.log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
        each = -log_p
        if self.gamma:
            # 1 - p kept above 0: the slope of x^gamma there is infinite for gamma < 1, and would void the record.
            rest = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).tiny)
            each = each * rest.pow(self.gamma)
        if len(self.weights) == 1:
            each = each * self.weights[0]
        elif self.weights:
            each = each * output.new_tensor(self.weights)[target]
        return each

    def __str__(self) -> str:
        words = [f"gamma={self.gamma!r}"] if self.name == "focal" else []
        if self.weights:
            key = "alpha" if self.name == "focal" else "weights"
            words.append(f"{key}={'/'.join(map(repr, self.weights))}")
        return f"{self.name}:{','.join(words)}" if words else self.name


def make_loss(value: Loss | str) -> Loss:
    """A loss from its text."""
    if isinstance(value, Loss):
        return value
    name, options = named_text.split_text("loss", value, "focal:gamma=2,alpha=0.25")
    validate.choice("loss", name, LOSSES)
    named_text.refuse_unknown("loss", name, options, _OPTIONS[name])
    weights: tuple[float, ...] = ()
    for key in ("weights", "alpha"):
        if key in options:
            weights = named_text.numbers(f"loss={name!r}", key, options[key])
    gamma = _GAMMA if name == "focal" else 0.0
    if "gamma" in options:
        gamma = named_text.number(f"loss={name!r}", "gamma", options["gamma"])
    return Loss(name, weights, gamma)
