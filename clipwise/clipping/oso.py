"""OSO-DPSGD: threshold and learning rate learned online, by the signs of inner products of released vectors.

Beside the clipped sum, the sum of the unit vectors of the *clipped* gradients is released (v_i = 1[||g_i|| > C] / ||g_i||, l2 bound 1). Then

    C   <- C   exp(rate_c sign(g_t . q_{t-1}))         rho <- rho exp(rate_r sign(g_t . g_{t-1}))

from released vectors only, so both are post-processing. Guarantee: weight * norm <= C, one record moves the second sum by at most 1. Reference:
OSO-DPSGD (paper 003), with noise on the sums (its eq. 17 and 18 put it after averaging) and both queries on the same batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clipwise import validate
from clipwise.clipping.contract import Context, Method, bounded, option
from clipwise.types import Decision, Released, SideQuery

QUERY = 7.124  # times the total noise multiplier; the gradient then keeps 1.01 times it


class OsoState(NamedTuple):
    threshold: float
    learning_rate: float
    gradient: Tensor  # the last released gradient, and
    directions: Tensor  # the last released sum of unit vectors, flat; empty before the first step


@dataclass(frozen=True, kw_only=True)
class Oso(Method):
    name = "oso"
    summary = "learns threshold and learning rate online from released gradients"
    reference = "Galli et al., Online Sensitivity Optimization in Differentially Private Learning, AAAI 2024"
    adapts = "the threshold and the learning rate"
    tune = ("threshold",)  # its start: a step moves it by 0.25 %
    guarantee = "weight x norm <= C; one record moves the released sum of unit vectors by at most 1"

    threshold: float = option(0.1, "C, where it starts")
    threshold_rate: float = option(2.5e-3, "how fast the threshold moves, in log scale")
    lr_rate: float = option(2.5e-3, "how fast the learning rate moves, in log scale")

    def __post_init__(self) -> None:
        for name in ("threshold", "threshold_rate", "lr_rate"):
            validate.positive(name, getattr(self, name))

    def side_queries(self, context: Context) -> tuple[SideQuery, ...]:
        return (SideQuery("directions", 0, 1.0, QUERY * context.noise_multiplier),)

    def init(self, context: Context) -> OsoState:
        return OsoState(float(self.threshold), context.learning_rate, torch.zeros(0), torch.zeros(0))

    def l2_bound(self, state: OsoState) -> float:
        return state.threshold

    def learning_rate(self, state: OsoState) -> float:
        return state.learning_rate

    def decide(self, state: OsoState, norms: Tensor, groups: Tensor | None = None) -> Decision:  # noqa: ARG002
        units = bounded(torch.where(norms > state.threshold, 1.0 / norms, 0.0), norms, 1.0)
        return Decision(bounded(torch.ones_like(norms), norms, state.threshold), {}, {"directions": units})

    def update(self, state: OsoState, released: Released, context: Context, step: int) -> OsoState:  # noqa: ARG002
        gradient, directions = _flat(released.gradient), _flat(released.side_gradients["directions"])
        threshold, learning_rate = state.threshold, state.learning_rate
        if len(state.gradient):
            signs = (
                torch.stack([gradient @ state.directions, gradient @ state.gradient]).sign().cpu()
            )  # one read of a device
            threshold *= math.exp(self.threshold_rate * float(signs[0]))
            learning_rate *= math.exp(self.lr_rate * float(signs[1]))
        return OsoState(threshold, learning_rate, gradient, directions)


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])  # a copy, as the contract asks
