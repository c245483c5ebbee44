"""Nothing to tune: every gradient is scaled to length 1, and what else a run needs is found by the run itself.

    weight 1 / (||g|| + gamma), as auto-s;   with a threshold C, weight min(1, C / ||g||), as fixed

The learning rate is found before training (a histogram of norms and a short race, both with noise and charged in the same
budget), corrected late in the run from released values, and the average of the weights is what is released: see
clipwise/automatic. Where the model learns values instead of classes and leaves most of their losses, gamma is up to twice the released median of
the norms, because normalised gradients of a squared loss fit the median of the targets and not their mean.

Guarantee: weight * norm <= C (1 without a threshold) for every norm. No side query, no state that moves. What was found is
released before it comes here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clipwise import validate
from clipwise.clipping.contract import Context, Method, bounded, option
from clipwise.types import Decision

_GAMMA = 0.01  # as auto-s: gradients much shorter than this are not blown up


class AutoState(NamedTuple):
    threshold: float  # l2 bound of one example's part
    median_norm: float | None  # as it was released; None where it was not measured


@dataclass(frozen=True, kw_only=True)
class Auto(Method):
    name = "auto"
    summary = "nothing to tune: normalised gradients, and a learning rate that the run finds and pays for"
    reference = "this library (docs/methods/auto.md), after Bu et al., Automatic Clipping, NeurIPS 2023"
    adapts = "the learning rate, by a short race before training and by released gradients late in it"
    tune = ()
    guarantee = "weight x norm <= C for every norm; what is measured before training is noised and charged"
    automatic = True

    threshold: float | None = option(None, "clip at this norm; by default gradients are scaled to length 1")
    gamma: float | None = option(
        None, "added to the norm; by default 0.01, and for values 0.01 to 2 times the median norm that was found"
    )
    rate: float | None = option(None, "found: Adam's learning rate at the start; lr= states one")
    median_norm: float | None = option(None, "found: median of the gradients' norms at the first weights")
    input_scale: float | None = option(None, "found: what the first layer's inputs are multiplied by in training")
    input_layer: str | None = option(
        None, "found: the name of that layer; at the end its weights are multiplied instead"
    )

    def __post_init__(self) -> None:
        for name in ("threshold", "gamma", "rate", "median_norm", "input_scale"):
            if getattr(self, name) is not None:
                validate.positive(name, getattr(self, name), "give a finite number above 0, or leave it out")

    def init(self, context: Context) -> AutoState:  # noqa: ARG002
        return AutoState(1.0 if self.threshold is None else float(self.threshold), self.median_norm)

    def l2_bound(self, state: AutoState) -> float:
        return state.threshold

    def decide(self, state: AutoState, norms: Tensor, groups: Tensor | None = None) -> Decision:  # noqa: ARG002
        weights = (
            torch.ones_like(norms)
            if self.threshold is not None
            else 1.0 / (norms + (_GAMMA if self.gamma is None else self.gamma))
        )
        return Decision(bounded(weights, norms, state.threshold))
