"""Layer kinds, one file each. Importing this package fills the registry."""

from clipwise.norms.layers import attention, conv, embedding, hugging_face, linear, norm, recurrent
from clipwise.norms.layers.registry import LAYERS, NAMED, Layer, Tap, find_layer, layer

__all__ = [
    "LAYERS",
    "NAMED",
    "Layer",
    "Tap",
    "attention",
    "conv",
    "embedding",
    "find_layer",
    "hugging_face",
    "layer",
    "linear",
    "norm",
    "recurrent",
]
