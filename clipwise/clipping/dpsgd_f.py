"""DPSGD-F: a threshold for each group, larger where more gradients would be clipped, so that small groups are not clipped away.

Releases, with noise, how many gradients of each group lie above and below C0: one 1 in 2K numbers, so that one record moves them by 1. Then

    C_k = C0 (1 + r_k / r)      r_k = share of group k above C0, r = share of all

Guarantee: weight * norm <= max over *all* groups of C_k, known before the batch is seen. What groups cost: the label of a record's group is part of
the record, and the released counts are paid for from the noise. Thresholds come from the counts of the step before (start: C0). Reference: Xu et al.,
"Removing Disparate Impact of Differentially Private SGD", KDD 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clipwise import validate
from clipwise.clipping.contract import Context, Method, bounded, option
from clipwise.types import BadArgument, Decision, Released, SideQuery


class GroupState(NamedTuple):
    thresholds: Tensor  # one a group


@dataclass(frozen=True, kw_only=True)
class DpsgdF(Method):
    name = "dpsgd-f"
    summary = "a threshold for each group, from released counts; needs group labels"
    reference = "Xu et al., Removing Disparate Impact of Differentially Private SGD, KDD 2021"
    adapts = "a threshold for each group"
    tune = ("threshold",)
    guarantee = "weight x norm <= the largest C of all groups; one record moves the released counts by at most 1"
    needs_groups = True

    threshold: float = option(1.0, "C0, the base threshold")
    number_of_groups: int = option(2, "K; groups are numbered from 0")
    count_noise: float = option(10.0, "noise multiplier of the counts")
    most: float = option(10.0, "no threshold is taken above so many times C0, because the noise follows the largest")

    def __post_init__(self) -> None:
        for name in ("threshold", "count_noise", "most"):
            validate.positive(name, getattr(self, name))
        validate.count("number_of_groups", self.number_of_groups)
        if self.most < 1:
            raise BadArgument(f"most={self.most!r} is below 1; thresholds start at C0 and grow from there")

    def side_queries(self, context: Context) -> tuple[SideQuery, ...]:  # noqa: ARG002
        return (SideQuery("counts", 2 * self.number_of_groups, 1.0, float(self.count_noise)),)

    def init(self, context: Context) -> GroupState:  # noqa: ARG002
        return GroupState(torch.full((self.number_of_groups,), float(self.threshold), dtype=torch.float64))

    def l2_bound(self, state: GroupState) -> float:
        return float(state.thresholds.max())

    def decide(self, state: GroupState, norms: Tensor, groups: Tensor | None = None) -> Decision:
        if groups is None:
            raise BadArgument(
                "groups=None: dpsgd-f needs the group of each record; give groups=, a function of the batch"
            )
        group = groups.to(norms.device).long().clamp(0, self.number_of_groups - 1)  # a strange label joins a neighbour
        weights = torch.minimum(torch.ones_like(norms), state.thresholds.to(norms)[group] / norms.clamp_min(1e-300))
        place = group + self.number_of_groups * (norms > self.threshold).long()
        counts = torch.nn.functional.one_hot(place, 2 * self.number_of_groups).to(norms.dtype)
        return Decision(bounded(weights, norms, self.l2_bound(state)), {"counts": counts * norms.isfinite()[:, None]})

    def update(self, state: GroupState, released: Released, context: Context, step: int) -> GroupState:  # noqa: ARG002
        below, above = released.sides["counts"].double().cpu().clamp_min(0).split(self.number_of_groups)
        everyone = float((above + below).sum())
        if float(above.sum()) <= 0 or everyone <= 0:
            return self.init(context)
        share = torch.where(above + below > 0, above / (above + below).clamp_min(1e-300), 1.0)
        thresholds = self.threshold * (1 + share / (float(above.sum()) / everyone))
        return GroupState(thresholds.clamp(max=self.most * self.threshold))
