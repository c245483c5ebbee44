"""Kernels: how per-example gradients of one call are measured and summed, and which way is taken for which shape."""
