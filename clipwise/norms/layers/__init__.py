"""Layer kinds, one file each. Importing this package fills the registry."""

from clipwise.norms.layers import attention, conv, embedding, linear, norm, recurrent
from clipwise.norms.layers.registry import LAYERS, Layer, Tap, find_layer, layer

__all__ = [
    "LAYERS",
    "Layer",
    "Tap",
    "attention",
    "conv",
    "embedding",
    "find_layer",
    "layer",
    "linear",
    "norm",
    "recurrent",
]
