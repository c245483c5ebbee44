"""The plan: one frozen value from which sampler, noise and ledger event are made together.

The joint guarantee. A step releases the weighted gradient sum and the method's side queries, all on one Poisson
batch, each with Gaussian noise of std = (its multiplier) x (its l2 bound). Divide each by its std: one record moves
the stacked vector by at most sqrt(sum_k sigma_k^-2), so the step is one Gaussian release with multiplier sigma_eff =
(sum_k sigma_k^-2)^(-1/2), subsampled *once* at the plan's rate (Poisson, add/remove-one neighbours). The plan gives
each side query the multiplier it asks for and the gradient the rest, so that sigma_eff is the total that was stated
or calibrated. The event depends on the plan and on released state only, never on what was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from clipwise import validate
from clipwise.accounting import ACCOUNTANTS, StepEvent
from clipwise.accounting.calibrate import calibrate
from clipwise.accounting.joint import gradient_share
from clipwise.clipping import Context, Method
from clipwise.types import BadArgument, SideQuery


class Shares(NamedTuple):
    """Noise of one step: the joint multiplier, the gradient's, and the side queries with theirs."""

    total: float
    gradient: float
    sides: tuple[SideQuery, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    method: Method
    sample_rate: float
    expected_batch_size: float
    noise_multiplier: float  # the total, noise std / joint l2 bound
    parameters: int  # numbers that are trained
    steps: int | None = None  # planned; None where the user goes on as long as they like
    delta: float | None = None
    target_epsilon: float | None = None
    accountant: str = "best"
    size: int | None = None  # of the data set, where it is treated as public

    def __post_init__(self) -> None:
        validate.probability(
            "sample_rate", self.sample_rate, one_allowed=True, remedy="it is expected_batch_size / size of the data set"
        )
        validate.positive("expected_batch_size", self.expected_batch_size)
        validate.non_negative("noise_multiplier", self.noise_multiplier)
        validate.count("parameters", self.parameters)
        validate.choice("accountant", self.accountant, ACCOUNTANTS)
        if self.steps is not None:
            validate.count("steps", self.steps)
        if self.delta is not None:
            check_delta(self.delta, self.size)
        self.shares(self.method.init(self.context), 0)  # a side query that leaves no room is refused now

    @property
    def context(self) -> Context:
        return Context(
            self.expected_batch_size, self.noise_multiplier, self.parameters, self.steps or 0, self.sample_rate
        )

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(1 / self.sample_rate - 1e-9)

    def shares(self, method_state: Any, step: int) -> Shares:
        total = self.method.noise_multiplier(self.noise_multiplier, method_state, step)
        sides = self.method.side_queries(self.context)
        return Shares(total, gradient_share(total, [side.noise_multiplier for side in sides]), sides)

    def event(self, method_state: Any, step: int) -> StepEvent:
        """What this step costs, known before it is taken."""
        return StepEvent(self.sample_rate, self.shares(method_state, step).total)


def make_plan(
    *,
    method: Method,
    parameters: int,
    sample_rate: float,
    expected_batch_size: float,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float | None,
    epochs: float | None,
    accountant: str,
    size: int | None,
) -> Plan:
    """A plan from a target epsilon (the noise is calibrated) or from a noise multiplier. Checks before anything is
    spent."""
    validate.choice("accountant", accountant, ACCOUNTANTS)
    validate.probability(
        "sample_rate", sample_rate, one_allowed=True, remedy="it is expected_batch_size / size of the data set"
    )
    validate.positive("expected_batch_size", expected_batch_size)
    if (epsilon is None) == (noise_multiplier is None):
        raise BadArgument(f"epsilon={epsilon!r} and noise_multiplier={noise_multiplier!r}: give exactly one of the two")
    if epochs is not None:
        validate.positive("epochs", epochs, "give the number of passes over the data that are planned")
    if delta is not None:
        check_delta(delta, size)
    steps = None if epochs is None else max(1, round(epochs * math.ceil(1 / sample_rate - 1e-9)))
    if epsilon is not None:
        validate.positive("epsilon", epsilon, "give a finite target above 0, such as 3.0")
        if delta is None:
            raise BadArgument(
                "delta=None: a target epsilon holds at some delta; give one well below 1 / size of the data set, such as 1e-5"
            )
        if steps is None:
            raise BadArgument(
                "epochs=None: the noise for a target epsilon depends on the number of steps; give the epochs that are planned"
            )
        noise_multiplier = calibrate(epsilon, delta, sample_rate, steps, accountant=accountant)
    return Plan(
        method=method,
        sample_rate=sample_rate,
        expected_batch_size=expected_batch_size,
        noise_multiplier=noise_multiplier,  # type: ignore[arg-type]  # one of the two is given
        parameters=parameters,
        steps=steps,
        delta=delta,
        target_epsilon=epsilon,
        accountant=accountant,
        size=size,
    )


def check_delta(delta: float, size: int | None) -> float:
    validate.probability("delta", delta, one_allowed=False, remedy="give a small probability such as 1e-5")
    if size is not None and delta >= 1 / size:
        raise BadArgument(
            f"delta={delta!r} is not below 1 / {size}, the size of the data set: publishing one random record would satisfy it; "
            f"give at most {1 / (10 * size):.1g}"
        )
    return delta
