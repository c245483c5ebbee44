"""Sampling: Poisson batches, and the loader that delivers them (stage 1 of the step)."""

from clipwise.sampling.collate import check_collate, pad_to
from clipwise.sampling.loader import PhysicalBatch, PoissonLoader, check_loader
from clipwise.sampling.poisson import PoissonSampler

__all__ = ["PhysicalBatch", "PoissonLoader", "PoissonSampler", "check_collate", "check_loader", "pad_to"]
