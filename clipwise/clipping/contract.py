"""The clipping contract: all that the rest of the house knows of a method.

| name | sees | returns | rule |
| --- | --- | --- | --- |
| `side_queries(context)` | public facts | SideQuery... | known before training, so that the plan can split the noise |
| `init(context)` | public facts | state | a NamedTuple of numbers and tensors, serialisable |
| `l2_bound(state)` | state | float | bounds weights[i] * norms[i] for *any* norms |
| `decide(state, norms, groups)` | **private norms** | Decision | row i from row i alone; a non-finite norm gets
weight 0; no rows is allowed |
| `update(state, released, context, step)` | **noised sums only** | next state | post-processing: raw norms cannot
reach it |

Two functions where papers write one loop, on purpose: the next state can depend on the data only through `released`.
A method is a frozen dataclass whose fields are its options (public), in one file under 80 lines, joined by one line
in `clipwise/clipping/__init__.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from clipwise.schedules import Schedule, epoch_of
from clipwise.types import Decision, Released, SideQuery


class Context(NamedTuple):
    """Public facts of a run that a method may need."""

    expected_batch_size: float
    noise_multiplier: float  # the largest total of any step
    parameters: int  # numbers in the model that are trained
    steps: int  # planned; 0 where the run is open-ended
    sample_rate: float
    learning_rate: float = 0.0  # the optimizer's, at the start
    schedule: Schedule = Schedule()  # of the noise

    def epoch(self, step: int) -> int:
        """Whole passes over the data before this step."""
        return epoch_of(step, self.sample_rate)


def option(default: Any, help: str) -> Any:
    """A field of a method with the sentence that `clipwise methods NAME` prints for it."""
    return dataclasses.field(default=default, metadata={"help": help})


NORMALISE = "divide each update by the threshold, so that steps keep their length as it moves"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """Base of every clipping method. Options are checked in `__post_init__`, before any data is touched."""

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str]
    adapts: ClassVar[str] = ""  # what changes during the run
    tune: ClassVar[tuple[str, ...]] = ()  # options that good results may hang on
    guarantee: ClassVar[str] = ""  # why it is sound, or why not
    sound: ClassVar[bool] = True
    alternative: ClassVar[str | None] = None  # what to use instead of a method that is not sound
    automatic: ClassVar[bool] = False  # learning rate, length and average are found by the run (clipwise/automatic)
    needs_groups: ClassVar[bool] = (
        False  # `decide` wants the group of each record; then `number_of_groups` is an option
    )

    normalise: bool = option(False, NORMALISE)

    def side_queries(self, context: Context) -> tuple[SideQuery, ...]:  # noqa: ARG002
        return ()

    def init(self, context: Context) -> NamedTuple:
        raise NotImplementedError

    def l2_bound(self, state: Any) -> float:
        raise NotImplementedError

    def decide(self, state: Any, norms: Tensor, groups: Tensor | None = None) -> Decision:
        raise NotImplementedError

    def update(self, state: Any, released: Released, context: Context, step: int) -> Any:  # noqa: ARG002
        return state

    def unit(self, state: Any) -> float:
        """What the released gradient is divided by on its way to the optimizer, beside the expected batch size: 1, or with
        `normalise` the bound that it was clipped and noised at. Post-processing, since the bound is public."""
        return self.l2_bound(state) if self.normalise else 1.0

    def learning_rate(self, state: Any) -> float | None:  # noqa: ARG002
        """The rate for the next step, for a method that learns it; None leaves the user's own rate and scheduler
        alone."""
        return None

    def noise_factor(self, context: Context, step: int) -> float:  # noqa: ARG002
        """This step's noise over that of the schedule, for a method that changes it by a public rule: above 0, at most
        1, and known before training."""
        return 1.0

    def noise_scale(self, state: Any, sides: Mapping[str, Tensor], context: Context) -> float:  # noqa: ARG002
        """What the gradient's noise multiplier is multiplied by; it may use the noised side answers of the same step. A
        sound method never returns less than its l2_bound."""
        return self.l2_bound(state)

    def claimed_epsilon(self, state: Any, context: Context, delta: float) -> float | None:  # noqa: ARG002
        """The figure that the paper of a method without a valid guarantee would print: shown as *claimed*, never used."""
        return None


def bounded(weights: Tensor, norms: Tensor, l2_bound: float) -> Tensor:
    """Weights made safe: 0 for a non-finite norm or weight, and never more than l2_bound / norm.

    Every method ends its `decide` here, so that the bound holds by construction even where its own formula overflows
    or underflows.
    """
    smallest = torch.finfo(norms.dtype).tiny  # below it the ceiling stays where it is, which is lower than it need be
    ceiling = norms.clamp_min(smallest).reciprocal_().mul_(l2_bound)
    usable = weights.abs().add_(norms) < torch.inf  # both are finite where their sum is; NaN is below nothing
    return torch.where(usable, torch.minimum(weights, ceiling), 0.0)
