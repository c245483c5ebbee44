"""Global scaling: every gradient is scaled by one factor C / Z, where Z should lie above them all.

    global         weight (C / Z) 1[||g|| <= Z]                       Bu et al. 2021; longer gradients are dropped
    global-adapt   weight (C / Z) min(1, Z / ||g||), Z learned        Esipova et al. 2023

global-adapt releases how many gradients exceed tau Z, with noise, and moves Z <- Z exp(-eta + count / B): it grows where more than a share
eta exceeds, and shrinks otherwise. Guarantee: weight * norm <= C; one record moves the count by at most 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from clipwise import validate
from clipwise.clipping.contract import Context, Method, bounded, option
from clipwise.types import BadArgument, Decision, Released, SideQuery


class GlobalState(NamedTuple):
    upper: float


@dataclass(frozen=True, kw_only=True)
class Global(Method):
    name = "global"
    summary = "one scale for all gradients up to Z; longer ones are dropped"
    reference = "Bu et al., On the Convergence and Calibration of Deep Learning with Differential Privacy, TMLR 2023"
    adapts = "nothing"
    tune: ClassVar[tuple[str, ...]] = ("upper",)
    guarantee = "weight x norm <= C: a gradient longer than Z is dropped"

    threshold: float = option(1.0, "C, the largest contribution of one example")
    upper: float = option(
        100.0, "Z, above which gradients are dropped (global) or clipped (global-adapt: where it starts)"
    )

    def __post_init__(self) -> None:
        validate.positive("threshold", self.threshold)
        validate.positive("upper", self.upper)
        if self.upper < self.threshold:
            raise BadArgument(
                f"upper={self.upper!r} lies below threshold={self.threshold!r}; give an upper bound of at least that"
            )

    def init(self, context: Context) -> GlobalState:  # noqa: ARG002
        return GlobalState(float(self.upper))

    def l2_bound(self, state: GlobalState) -> float:  # noqa: ARG002
        return float(self.threshold)

    def decide(self, state: GlobalState, norms: Tensor, groups: Tensor | None = None) -> Decision:  # noqa: ARG002
        weights = torch.where(norms <= state.upper, self.threshold / state.upper, 0.0)
        return Decision(bounded(weights, norms, self.threshold))


@dataclass(frozen=True, kw_only=True)
class GlobalAdapt(Global):
    name = "global-adapt"
    summary = "one scale for all gradients up to Z, which follows them; longer ones are clipped"
    reference = "Esipova et al., Disparate Impact in Differential Privacy from Gradient Misalignment, ICLR 2023"
    adapts = "the upper bound Z"
    tune = ("exceeding", "tau")
    guarantee = "weight x norm <= C; one record moves the released count by at most 1"

    upper: float = option(50.0, "Z, where it starts")
    exceeding: float = option(0.1, "the share of gradients that may exceed tau Z before Z grows")
    tau: float = option(1.0, "exceeding is counted above tau Z")
    count_std: float = option(10.0, "std of the noise on the count")

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.positive("exceeding", self.exceeding)
        validate.positive("tau", self.tau)
        validate.positive("count_std", self.count_std)

    def side_queries(self, context: Context) -> tuple[SideQuery, ...]:  # noqa: ARG002
        return (SideQuery("exceeding", 1, 1.0, float(self.count_std)),)

    def decide(self, state: GlobalState, norms: Tensor, groups: Tensor | None = None) -> Decision:  # noqa: ARG002
        weights = bounded(torch.full_like(norms, self.threshold / state.upper), norms, self.threshold)
        return Decision(weights, {"exceeding": (norms > self.tau * state.upper).to(norms.dtype)[:, None]})

    def update(self, state: GlobalState, released: Released, context: Context, step: int) -> GlobalState:  # noqa: ARG002
        share = float(released.sides["exceeding"]) / context.expected_batch_size
        upper = state.upper * math.exp(min(50.0, share - self.exceeding))
        return GlobalState(min(max(upper, float(self.threshold)), 1e6 * self.upper))
