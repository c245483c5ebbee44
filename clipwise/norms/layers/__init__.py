"""Layer kinds, one file each. Importing this package fills the registry."""

from clipwise.norms.layers import linear
from clipwise.norms.layers.registry import LAYERS, Layer, Tap, find_layer, layer

__all__ = ["LAYERS", "Layer", "Tap", "find_layer", "layer", "linear"]
