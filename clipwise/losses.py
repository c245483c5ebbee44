"""Losses of one number a row, sound under clipping: functions, and the same by name or as text for `fit`.

    losses = clipwise.losses.cross_entropy(model(x), y, weights=(1, 5), label_smoothing=0.1)   # (rows,)
    private.backward(losses)    # or losses.mean().backward()

    cross_entropy, focal   of classes; with weights, label smoothing, ignore_index
    squared_error, huber   of numbers
    per_row                any losses of words, pixels, ... of a row, and a mask, to one loss a row
    weights_from_priors    class weights from public shares of the classes

As text: `cross-entropy`, `cross-entropy:weights=1/1/5,label_smoothing=0.1`, `focal:gamma=2,alpha=0.25`, `squared-error`,
`huber:delta=0.5`.

    cross-entropy   -w_y log p_y                     w: one weight a class; 1 by default
    focal           -a_y (1 - p_y)^gamma log p_y     gamma = 2; a: one number, or one a class, `alpha=0.25/0.75`
    squared-error   mean over the record's numbers of (output - target)^2
    huber           the same of e^2 / 2 where |e| = |output - target| <= delta, of delta (|e| - delta / 2) beyond; delta = 1

Guarantee: a record's loss depends on that record alone. (torch's own weighted cross entropy divides by the weights of the
whole batch, and its mean over words by how many the whole batch has, so that one record changes the others' shares.) Class
weights and denominators are public numbers that the user states: weights counted from the protected records would be
outside the guarantee, which `note` says in the privacy statement.

References: Lin et al., "Focal Loss for Dense Object Detection" (2017); Szegedy et al., "Rethinking the Inception
Architecture" (2016), for label smoothing; DP-SGD-Global-Adapt-V2 (paper 001), equation 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clipwise import named_text, validate
from clipwise.types import BadArgument

LOSSES = ("cross-entropy", "focal", "squared-error", "huber")
_OF_NUMBERS = ("squared-error", "huber")
_OPTIONS = {
    "cross-entropy": ("weights", "label_smoothing"),
    "focal": ("gamma", "alpha"),
    "squared-error": (),
    "huber": ("delta",),
}
_GAMMA = 2.0  # as the focal loss was published


def cross_entropy(
    output: Tensor,
    target: Tensor,
    *,
    weights: Sequence[float] | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    divide_by: float | None = None,
) -> Tensor:
    """(rows,): the cross entropy of each row. `output` is (rows, classes) or (rows, classes, places...), `target` holds class
    numbers of shape (rows,) or (rows, places...).

    weights: one public number a class. A row of several places gets the mean over its own places that are not
    `ignore_index`, or, with `divide_by` (a public number, the usual length, say), their sum over that.
    """
    log_p, known, classes = _log_probabilities(output, target, ignore_index)
    each = -_of_class(log_p, known)
    if label_smoothing:
        _check_smoothing(label_smoothing)
        each = (1 - label_smoothing) * each - label_smoothing / classes * log_p.sum(1)
    return per_row(_weighted(each, known, weights, classes), _kept(target, ignore_index), divide_by=divide_by)


def focal(
    output: Tensor,
    target: Tensor,
    *,
    gamma: float = _GAMMA,
    alpha: float | Sequence[float] | None = None,
    ignore_index: int | None = None,
    divide_by: float | None = None,
) -> Tensor:
    """(rows,): the focal loss of each row; shapes, places and `divide_by` as in `cross_entropy`. alpha: a number, or one a
    class."""
    validate.non_negative("gamma", gamma)
    log_p, known, classes = _log_probabilities(output, target, ignore_index)
    own = _of_class(log_p, known)
    each = -own
    if gamma:
        # 1 - p kept above 0: the slope of x^gamma there is infinite for gamma < 1, and would void the record.
        each = each * (-torch.expm1(own)).clamp_min(torch.finfo(own.dtype).tiny).pow(gamma)
    alphas = [alpha] if isinstance(alpha, int | float) else alpha
    return per_row(_weighted(each, known, alphas, classes), _kept(target, ignore_index), divide_by=divide_by)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """(rows,): the mean over each row's numbers of (output - target)^2."""
    return per_row((output - _alike("squared-error", output, target)).square())


def huber(output: Tensor, target: Tensor, *, delta: float = 1.0) -> Tensor:
    """(rows,): the Huber loss of each row, mean over its numbers: an error beyond `delta` counts by its size, not its square."""
    validate.positive("delta", delta)
    return per_row(F.huber_loss(output, _alike("huber", output, target), reduction="none", delta=delta))


def _alike(name: str, output: Tensor, target: Tensor) -> Tensor:
    """The targets in the outputs' shape: as they are, or one number a row for a single output."""
    if output.shape == (*target.shape, 1):
        return target.unsqueeze(-1)
    if output.shape != target.shape:
        raise BadArgument(
            f"loss={name!r}: outputs of shape {tuple(output.shape)} and targets of shape "
            f"{tuple(target.shape)} cannot be compared; give targets of the outputs' shape"
        )
    return target


def per_row(values: Tensor, mask: Tensor | None = None, *, divide_by: float | None = None) -> Tensor:
    """(rows,): of losses (rows, places...), each row's mean over its own places (where `mask` is not 0), or, with `divide_by`,
    their sum over that public number. A row without any place has loss 0."""
    if mask is not None and mask.shape != values.shape:
        raise BadArgument(
            f"mask of shape {tuple(mask.shape)} for losses of shape {tuple(values.shape)}; give one value a place"
        )
    if values.dim() == 1 and mask is None and divide_by is None:
        return values
    if mask is not None:
        values = values * mask.to(values.dtype)
    total = values.flatten(1).sum(1) if values.dim() > 1 else values
    if divide_by is not None:
        return total / validate.positive("divide_by", divide_by)
    if mask is None:
        return total / (values.numel() // max(1, len(values)))
    places = (mask != 0).flatten(1).sum(1) if mask.dim() > 1 else mask != 0
    return total / places.clamp_min(1).to(total.dtype)


def weights_from_priors(priors: Sequence[float]) -> tuple[float, ...]:
    """Class weights 1 / (classes * share): 1 on average under these shares, which must be public (known of the population,
    not counted from the protected records)."""
    for share in priors:
        validate.positive("priors", share)
    total = sum(priors)
    return tuple(total / (len(priors) * share) for share in priors)


def _log_probabilities(output: Tensor, target: Tensor, ignore_index: int | None) -> tuple[Tensor, Tensor, int]:
    """With the classes in dimension 1; and the targets with a class in place of ignore_index."""
    if output.dim() < 2 or target.shape != (output.shape[0], *output.shape[2:]):
        raise BadArgument(
            f"outputs of shape {tuple(output.shape)} and targets of shape {tuple(target.shape)}: give outputs (rows, classes) or (rows, "
            "classes, places...), and class numbers of the same shape without the classes"
        )
    known = target if ignore_index is None else target.masked_fill(target == ignore_index, 0)
    return F.log_softmax(output, 1), known, output.shape[1]


def _of_class(log_p: Tensor, known: Tensor) -> Tensor:
    try:
        return log_p.gather(1, known.unsqueeze(1)).squeeze(1)
    except (RuntimeError, IndexError) as error:
        if "out of bounds" not in str(error):
            raise
    raise BadArgument(  # outside the handler: torch's own message tells the class of a record
        f"a target lies outside 0 ... {log_p.shape[1] - 1}, the outputs of the model; number the classes from 0, or widen the last layer"
    )


def _check_smoothing(value: float) -> None:
    if validate.non_negative("label_smoothing", value) >= 1:
        raise BadArgument(f"label_smoothing={value!r} must be below 1; give a share such as 0.1")


def _kept(target: Tensor, ignore_index: int | None) -> Tensor | None:
    return None if ignore_index is None else target != ignore_index


def _weighted(each: Tensor, target: Tensor, weights: Sequence[float] | None, classes: int) -> Tensor:
    if weights is None or not len(weights):
        return each
    if isinstance(weights, Tensor):
        raise BadArgument(
            "weights: a tensor may have been counted from the records; give public numbers, such as (1.0, 5.0), or "
            "clipwise.losses.weights_from_priors((0.8, 0.2))"
        )
    if len(weights) == 1:
        return each * float(weights[0])
    if len(weights) != classes:
        raise BadArgument(f"{len(weights)} weights for {classes} classes; give {classes}")
    return each * each.new_tensor(tuple(map(float, weights)))[target]


@dataclass(frozen=True)
class Loss:
    """`loss(output, target)` is the mean over the rows; `each` gives one loss a row."""

    name: str = "cross-entropy"
    weights: tuple[float, ...] = ()  # one a class, or a single one for all; empty: 1
    gamma: float = 0.0  # of the focal loss
    label_smoothing: float = 0.0  # of cross-entropy
    delta: float = 1.0  # of huber

    def __post_init__(self) -> None:
        validate.choice("loss", self.name, LOSSES)
        validate.non_negative("gamma", self.gamma)
        validate.positive("delta", self.delta)
        _check_smoothing(self.label_smoothing)
        for weight in self.weights:
            validate.non_negative("alpha" if self.name == "focal" else "weights", weight)
        if self.weights and not any(self.weights):
            raise BadArgument(f"loss={self.name!r}: every weight is 0, so that nothing is learned; give one above 0")

    @property
    def wants_classes(self) -> bool:
        """Whether targets are class numbers; otherwise they have the shape of the outputs."""
        return self.name not in _OF_NUMBERS

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
            return squared_error(output, target)
        if self.name == "huber":
            return huber(output, target, delta=self.delta)
        if self.name == "focal":
            return focal(output, target, gamma=self.gamma, alpha=self.weights)
        return cross_entropy(output, target, weights=self.weights, label_smoothing=self.label_smoothing)

    def __str__(self) -> str:
        words = [f"gamma={self.gamma!r}"] if self.name == "focal" else []
        if self.weights:
            key = "alpha" if self.name == "focal" else "weights"
            words.append(f"{key}={'/'.join(map(repr, self.weights))}")
        if self.label_smoothing:
            words.append(f"label_smoothing={self.label_smoothing!r}")
        if self.name == "huber":
            words.append(f"delta={self.delta!r}")
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
    smoothing = 0.0
    if "label_smoothing" in options:
        smoothing = named_text.number(f"loss={name!r}", "label_smoothing", options["label_smoothing"])
    delta = 1.0
    if "delta" in options:
        delta = named_text.number(f"loss={name!r}", "delta", options["delta"])
    return Loss(name, weights, gamma, smoothing, delta)
