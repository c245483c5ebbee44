"""Sampling: how batches are drawn, and the loader that delivers them (stage 1 of the step)."""

from clipwise.sampling.collate import check_collate, pad_to, stacked
from clipwise.sampling.fixed_size import FixedSizeSampler
from clipwise.sampling.loader import PhysicalBatch, SampledLoader, check_loader
from clipwise.sampling.poisson import PoissonSampler
from clipwise.sampling.sampler import Sampler

__all__ = [
    "FixedSizeSampler",
    "PhysicalBatch",
    "PoissonSampler",
    "SampledLoader",
    "Sampler",
    "check_collate",
    "check_loader",
    "pad_to",
    "stacked",
]
