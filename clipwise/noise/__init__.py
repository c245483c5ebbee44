"""Noise: what is added to sums before anyone may see them (stage 5 of the step)."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from clipwise.noise.gaussian import GaussianNoise
from clipwise.types import Cut


class Noise(Protocol):
    """All that the step knows of noise: N(0, std^2) on every number of the sums, in their own memory, independent of all
    other steps and queries; a query's noise is drawn once or an error is raised. With a `cut` the sums are a part of the
    query's, and get the numbers that they would get in the whole."""

    def add(self, sums: Sequence[Tensor], std: float, *, step: int, cut: Cut | None = None) -> tuple[Tensor, ...]: ...


__all__ = ["GaussianNoise", "Noise"]
