"""Noise: Gaussian noise from a cryptographic keystream (stage 5 of the step)."""

from clipwise.noise.gaussian import GaussianNoise

__all__ = ["GaussianNoise"]
