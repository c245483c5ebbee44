"""Automatic clipping: every gradient is normalised, so that no threshold is left to choose (it folds into the learning rate).

    auto-s   weight C / (||g|| + gamma)      Bu et al. 2023
    auto-v   weight C / ||g||                Bu et al. 2023, the vanilla form
    nsgd     weight C / (||g|| + r)          Yang et al. 2022, normalised SGD: auto-s under another name

Guarantee: weight * norm <= C, strictly below it for auto-s and nsgd. No side query, no state that moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clipwise import validate
from clipwise.clipping.contract import bounded, option
from clipwise.clipping.fixed import Fixed, FixedState
from clipwise.types import Decision


@dataclass(frozen=True, kw_only=True)
class AutoS(Fixed):
    name = "auto-s"
    summary = "normalises every gradient; small ones keep a little of their size"
    reference = (
        "Bu et al., Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger, NeurIPS 2023"
    )
    adapts = "nothing"
    tune = ()
    guarantee = "weight x norm < C for every norm"

    threshold: float = option(1.0, "the length that gradients are scaled to; it only rescales the learning rate")
    gamma: float = option(0.01, "added to the norm: gradients much shorter than this are not blown up")

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.positive("gamma", self.gamma, "give a small number above 0, such as 0.01")

    def decide(self, state: FixedState, norms: Tensor, groups: Tensor | None = None) -> Decision:  # noqa: ARG002
        return Decision(bounded(state.threshold / (norms + self.gamma), norms, state.threshold))


@dataclass(frozen=True, kw_only=True)
class AutoV(Fixed):
    name = "auto-v"
    summary = "normalises every gradient to exactly the threshold"
    reference = AutoS.reference
    adapts = "nothing"
    tune = ()
    guarantee = "weight x norm <= C for every norm"

    threshold: float = option(1.0, "the length that gradients are scaled to; it only rescales the learning rate")

    def decide(self, state: FixedState, norms: Tensor, groups: Tensor | None = None) -> Decision:  # noqa: ARG002
        weights = torch.where(norms > 0, state.threshold / norms, 0.0)
        # Below the smallest normal number the quotient overflows; such a gradient is no direction worth its noise.
        return Decision(bounded(weights, norms, state.threshold))


@dataclass(frozen=True, kw_only=True)
class Nsgd(AutoS):
    name = "nsgd"
    summary = "normalised SGD: auto-s under its other name"
    reference = (
        "Yang et al., Normalized/Clipped SGD with Perturbation for Differentially Private Non-Convex Optimization, 2022"
    )
    adapts, tune, guarantee = AutoS.adapts, AutoS.tune, AutoS.guarantee
