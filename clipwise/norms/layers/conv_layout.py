"""How a convolution's input is laid out for matrix products: as patches, or as strips; and before that, perhaps, folded.

*Patches*: every output place with all that the kernel sees there, (rows, places, taps * channels), a copy of every pixel for
each tap. *Strips* unfold all dimensions but the first, so that a copy is larger than the image only by the taps of the others:
those of the first are found by beginning some lines later. For many channels the copy, not the product, takes the time.

*Folded*: a convolution with stride 2 is one with stride 1 and half the kernel over blocks of 2x2 pixels, taken as channels. Strips
of grey images, too narrow to be worth a product each, become wide enough by it.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clipwise.devices import policy

SHORT_RUN = 16  # numbers; copies of shorter runs take longer than the memory they move: tried, the figures not kept


class Geometry(NamedTuple):
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    # First tap, end and size of the parameter's own kernel, in each dimension, where this one is but a part of it.
    within: tuple[tuple[int, int, int], ...] | None = None
    folded: bool = False  # the channels are the four pixels of a block


def folds(x: Tensor, geo: Geometry) -> bool:
    """Grey images, a kernel of whole blocks: where the copy that folding is takes less time than it saves."""
    grey = x.dim() == 4 and x.shape[1] == 1 and x.dtype in (torch.float32, torch.float64) and policy(x.device).patches
    return grey and geo.stride == (2, 2) and geo.dilation == (1, 1) and all(k % 2 == 0 and k > 2 for k in geo.kernel)


def fold(x: Tensor, geo: Geometry, places: torch.Size) -> tuple[Tensor, Geometry]:
    """The same convolution with stride 1: x as (rows, 4, *blocks), where the kernel meets it, and the geometry."""
    blocks = [n + k // 2 - 1 for n, k in zip(places, geo.kernel, strict=True)]
    margins: list[int] = []
    for count, n, p in zip(blocks, x.shape[2:], geo.padding, strict=True):
        margins = [p, 2 * count - n - p, *margins]  # F.pad begins with the last dimension; less than zero cuts off
    image = F.pad(x, margins)
    # A copy of single numbers is faster than one of short runs: the two pixels of a block that lie together as one.
    pairs = torch.view_as_complex(image.view(-1, blocks[0], 2, blocks[1], 2))
    pixels = torch.view_as_real(pairs.transpose(2, 3).contiguous()).flatten(3)
    half = tuple(k // 2 for k in geo.kernel)
    return pixels.movedim(-1, 1), geo._replace(kernel=half, stride=(1, 1), padding=(0, 0), folded=True)


def unfold_kernel(grads: Tensor) -> Tensor:
    """(..., 4, *taps) of a folded convolution -> (..., 1, *taps) of the one that it stands for."""
    *_, lines, across = grads.shape
    apart = grads.unflatten(-3, (2, 2)).movedim((-4, -3), (-3, -1))  # line, its half, place in the line, its half
    whole: Tensor = apart.reshape(*grads.shape[:-3], 1, 2 * lines, 2 * across)
    return whole


def _image(x: Tensor, geo: Geometry, multiple: int = 1) -> Tensor:
    """(rows, *padded, channels): x with its padding, its lines (the first dimension) filled up to a multiple."""
    padded = [n + 2 * p for n, p in zip(x.shape[2:], geo.padding, strict=True)]
    missing = -padded[0] % multiple
    if not any(geo.padding) and not missing:
        return x.movedim(1, -1).contiguous()
    padded[0] += missing
    inside = tuple(slice(p, p + n) for n, p in zip(x.shape[2:], geo.padding, strict=True))
    image = x.new_zeros(x.shape[0], *padded, x.shape[1])
    image[(slice(None), *inside)] = x.movedim(1, -1)
    return image


def patches(x: Tensor, geo: Geometry, places: torch.Size) -> Tensor:
    """(rows, places, taps * channels) for x (rows, channels, *size)."""
    if prod(geo.kernel) == 1 and not any(geo.padding):
        every = tuple(slice(None, None, s) for s in geo.stride)
        return x[(slice(None), slice(None), *every)].flatten(2).mT
    rows, channels = x.shape[:2]
    image = _image(x, geo)
    padded = image.shape[1:-1]
    row, *steps, _ = image.stride()
    by_place = [a * s for a, s in zip(steps, geo.stride, strict=True)]
    by_tap = [a * d for a, d in zip(steps, geo.dilation, strict=True)]
    taps, run = geo.kernel, channels
    if len(taps) > 1 and taps[-1] * channels <= SHORT_RUN and geo.dilation[-1] == 1:
        # Short runs are slow to copy. So first unfold the last dimension alone; then whole patches lie together.
        taps, run = taps[:-1], taps[-1] * channels
        image = image.as_strided(
            (rows, places[-1], *padded[:-1], run), (row, by_place[-1], *steps[:-1], 1)
        ).contiguous()
        row, across, *steps, _ = image.stride()
        by_place = [*(a * s for a, s in zip(steps, geo.stride[:-1], strict=True)), across]
        by_tap = [a * d for a, d in zip(steps, geo.dilation[:-1], strict=True)]
    view = image.as_strided((rows, *places, *taps, run), (row, *by_place, *by_tap, 1))
    return view.reshape(rows, places.numel(), -1)


def strips(x: Tensor, geo: Geometry, places: torch.Size, *, rows_inside: bool) -> list[Tensor]:
    """For each tap of the first dimension, what the others and the channels see from there: (rows, places, the rest).

    These are views that overlap, matrices without a copy. `rows_inside` gives (places of the first dimension, rows, other
    places, the rest) instead, so that all but the last are one long dimension.
    """
    stride = geo.stride[0]
    image = _image(x, geo, stride)
    (rows, lines), channels = image.shape[:2], image.shape[-1]
    row, line, *steps, one = image.stride()
    by_place = (a * s for a, s in zip(steps, geo.stride[1:], strict=True))
    by_tap = (a * d for a, d in zip(steps, geo.dilation[1:], strict=True))
    # Lines are sorted by what is left over from the stride: those that a tap meets, place by place, then lie together.
    view = image.as_strided(
        (stride, rows, lines // stride, *places[1:], *geo.kernel[1:], channels),
        (line, row, stride * line, *by_place, *by_tap, one),
    )
    if rows_inside:
        view = view.transpose(1, 2)
    # (stride, rows, lines, places, rest) or (stride, lines, rows, places, rest)
    unfolded = view.reshape(*view.shape[:3], prod(places[1:]), -1).contiguous()  # one copy here, none for the taps
    found = []
    for tap in range(geo.kernel[0]):
        begin, left = divmod(tap * geo.dilation[0], stride)
        if rows_inside:
            found.append(unfolded[left, begin : begin + places[0]])
        else:
            found.append(unfolded[left, :, begin : begin + places[0]].flatten(1, 2))
    return found


def strip_bytes(x: Tensor, geo: Geometry, places: torch.Size) -> int:
    """Of the unfolded image of one row."""
    lines = x.shape[2] + 2 * geo.padding[0]
    return lines * prod(places[1:]) * prod(geo.kernel[1:]) * x.shape[1] * x.element_size()
