"""Convolutions in one, two or three dimensions, with stride, dilation, groups and every kind of padding.

For the patch a_p (kernel taps x channels) under output place p and the output gradient b_p there: g_i = sum_p b_p a_p^T. Three ways:

- *direct*: patches or strips (conv_layout.py), and one matrix product an example forms g_i, or one for each line of the kernel; or
  *as one image*: torch's own gradient of the weight, with the rows as groups of channels;
- *in blocks*: the same for a few rows at a time (blocks.py), where storing all g_i would need too much memory;
- *ghost*: ||g_i||^2 = sum_pq <a_p, a_q><b_p, b_q> (Li et al. 2021). The Gram matrix of the patches is a sum of shifted copies of the
  Gram matrix of the *pixels*, and the shifts separate by dimension, so that no patch is formed: for small images, many channels.
  The weighted sum is then one large product, ours or torch's.

Taps of the kernel that meet nothing but padding at every place (the outer ones of a 3x3 kernel on a 1x1 image) are left out of
all of it, the forward pass included: their gradient is zero.

With groups, every gradient is formed as one image. Buffers are bounded by working on a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.devices import policy
from clipwise.norms.kernels.blocks import Unformed
from clipwise.norms.kernels.kernel import (
    Call,
    Direct,
    Ghost,
    Kernel,
    Part,
    Way,
    paired_grams,
    scale_rows,
    sum_of_squares,
    widened,
)
from clipwise.norms.layers.conv_layout import Geometry, fold, folds, patches, strip_bytes, strips, unfold_kernel
from clipwise.norms.layers.registry import Tap, layer
from clipwise.types import Unsupported

# Bytes formed at a time, of patches, strips and Gram matrices: more would no longer be in the cache, fewer pays for more
# calls. Tried on the convolutions of `clipwise bench`; the figures of those runs were not kept.
PATCH_BYTES, STRIP_BYTES, GRAM_BYTES = 8 * 2**20, 16 * 2**20, 16 * 2**20
LONG_STRIP, MANY_PLACES = 160, 32  # numbers: from here on products of strips are large enough; tried in the same way
MANY_PLACES_AS_ONE_IMAGE, MANY_CHANNELS = (
    256,
    16,
)  # from here on torch's kernels for groups are quicker: 64 channels at 32 x 32 took 60 ms against 90, 128 of 64 43 against 54
# Places, squared, times this, against the numbers of a weight: from there on torch's own sum is quicker than ours. Of the 14 convolutions
# of two ResNets with Gram norms, none is then slower than the other way by 10 % (one thread of an EPYC).
SUM_BY_TORCH = 4096


def _spans(rows: int, bytes_per_row: int, most: int) -> Iterator[slice]:
    """Slices of about the same size, each of `most` bytes or of one row."""
    pieces = -(-rows // max(1, most // max(1, bytes_per_row)))
    step = -(-rows // max(1, pieces))
    for start in range(0, max(1, rows), max(1, step)):
        yield slice(start, start + step)


def _ordinary_gradient(x: Tensor, b: Tensor, geo: Geometry, groups: int) -> Tensor:
    """(out channels, in channels / groups, *kernel): torch's own gradient of the weight, summed over the rows."""
    like = x.new_zeros(()).expand(b.shape[1], x.shape[1] // groups, *geo.kernel)  # only its shape is read
    lists = [list(option) for option in (geo.stride, geo.padding, geo.dilation)]
    rest = (False, [0] * len(geo.kernel), groups, [False, True, False])
    weight: Tensor = torch.ops.aten.convolution_backward(b, x, like, None, *lists, *rest)[1]
    return weight


def _by_strips(x: Tensor, b: Tensor, geo: Geometry) -> bool:
    return (
        geo.groups == 1
        and geo.kernel[0] > 1
        and (geo.folded or prod(geo.kernel[1:]) * x.shape[1] >= LONG_STRIP)
        and b.shape[2:].numel() >= MANY_PLACES
    )


def _as_one_image(x: Tensor, b: Tensor, geo: Geometry) -> Tensor:
    """(rows, out channels, in channels / groups, *kernel): the per-example gradients of the weight, by torch."""
    (rows, channels), groups = b.shape[:2], b.shape[0] * geo.groups
    grads = _ordinary_gradient(x.reshape(1, -1, *x.shape[2:]), b.reshape(1, -1, *b.shape[2:]), geo, groups)
    return grads.view(rows, channels, *grads.shape[1:])


def _shapes(x: Tensor, b: Tensor, geo: Geometry) -> list[tuple[int, int]]:
    """(out channels, the rest): of one row's gradient of the weight, whole, or by the taps of its first dimension;
    `_as_weight` gives it the parameter's shape."""
    lines = geo.kernel[0] if _by_strips(x, b, geo) else 1
    return [(b.shape[1], prod(geo.kernel) // lines * x.shape[1] // geo.groups)] * lines


def _form(space: Sequence[Tensor], x: Tensor, b: Tensor, geo: Geometry) -> None:
    """The per-example gradients of the weight, into `space`: (rows, *shape) for the `_shapes`."""
    rows, places = b.shape[0], b.shape[2:]
    if geo.groups > 1:
        space[0].copy_(_as_one_image(x, b, geo).flatten(2))
    elif _by_strips(x, b, geo):
        for part in _spans(rows, strip_bytes(x, geo, places), STRIP_BYTES):
            for grads, seen in zip(space, strips(x[part], geo, places, rows_inside=False), strict=True):
                torch.bmm(b[part].flatten(2), seen, out=grads[part])
    else:
        for part in _spans(rows, _patch_bytes(x, b, geo), PATCH_BYTES):
            torch.bmm(b[part].flatten(2), patches(x[part], geo, places), out=space[0][part])


def _gradients(x: Tensor, b: Tensor, geo: Geometry) -> list[Tensor]:
    if geo.groups > 1:
        return [_as_one_image(x, b, geo).flatten(2)]
    space = [b.new_empty(b.shape[0], *shape) for shape in _shapes(x, b, geo)]
    _form(space, x, b, geo)
    return space


def _as_weight(parts: Sequence[Tensor], geo: Geometry) -> Tensor:
    """(..., out channels, the rest) -> (..., out channels, in channels, *kernel), the shape of the parameter."""
    if geo.groups > 1:
        return _whole(parts[0].unflatten(-1, (-1, *geo.kernel)), geo)
    lines = (geo.kernel[0] // len(parts), *geo.kernel[1:])
    shaped = [part.unflatten(-1, (*lines, -1)).movedim(-1, -1 - len(lines)) for part in parts]
    joined = shaped[0] if len(shaped) == 1 else torch.cat(shaped, -len(lines))
    return _whole(joined, geo)


def _whole(shaped: Tensor, geo: Geometry) -> Tensor:
    """(..., *kernel) of the parameter: blocks of pixels unfolded, zeros for the taps that were left out."""
    if geo.folded:
        shaped = unfold_kernel(shaped)
    if geo.within is None:
        return shaped
    whole = shaped.new_zeros(*shaped.shape[: -len(geo.kernel)], *(size for _, _, size in geo.within))
    before = [slice(None)] * (shaped.dim() - len(geo.kernel))
    whole[(*before, *(slice(first, end) for first, end, _ in geo.within))] = shaped
    return whole


def _patch_bytes(x: Tensor, b: Tensor, geo: Geometry) -> int:
    return b.shape[2:].numel() * prod(geo.kernel) * x.shape[1] * x.element_size()


def _patch_gram(x: Tensor, geo: Geometry, places: torch.Size) -> Tensor:
    """(rows, places, places): inner products of the patches of x (rows, channels, *size), no patch being formed."""
    rows, _, *size = x.shape
    flat = x.flatten(2)
    gram = torch.bmm(flat.mT, flat).view(rows, *size, *size)
    for i, (taps, stride, padding, dilation) in enumerate(zip(*geo[:4], strict=True)):
        here = (1 + i, 1 + len(size) + i)  # one dimension of the image: its place in the first and in the second pixel
        total = gram.new_zeros([places[i] if d in here else n for d, n in enumerate(gram.shape)])
        for tap in range(taps):
            shift = tap * dilation - padding
            first = max(0, -(shift // stride))  # the places whose pixel at this tap is inside the image
            end = min(places[i], (size[i] - 1 - shift) // stride + 1)
            if first < end:
                pixels = slice(first * stride + shift, (end - 1) * stride + shift + 1, stride)
                _both(total, here, slice(first, end)).add_(_both(gram, here, pixels))
        gram = total
    return gram.view(rows, places.numel(), places.numel())


def _both(t: Tensor, dims: tuple[int, int], where: slice) -> Tensor:
    return t[tuple(where if d in dims else slice(None) for d in range(t.dim()))]


def _gram_squared_norms(x: Tensor, b: Tensor, geo: Geometry) -> Tensor:
    """(rows,): squared norms of the weight's gradients."""
    flat = widened(b.flatten(2))
    gram_a, gram_b = _patch_gram(widened(x), geo, b.shape[2:]), torch.bmm(flat.mT, flat)
    return paired_grams(gram_a, gram_b, prod(geo.kernel) * x.shape[1] + b.shape[1])


def _gram_bytes(x: Tensor, b: Tensor) -> int:
    return 2 * (x.shape[2:].numel() ** 2 + b.shape[2:].numel() ** 2) * x.element_size()


def _weighted_gradient(weights: Tensor, x: Tensor, b: Tensor, geo: Geometry) -> Tensor:
    """sum_i weights_i g_i, as one gradient."""
    if _by_strips(x, b, geo):
        return _weighted_by_strips(weights, x, b, geo)
    scaled = b.new_empty(b.shape[1], b.shape[0], b.shape[2:].numel())
    torch.mul(b.flatten(2).transpose(0, 1), weights.view(1, -1, 1), out=scaled)
    total = b.new_empty(b.shape[1], prod(geo.kernel) * x.shape[1])
    for part in _spans(b.shape[0], _patch_bytes(x, b, geo), PATCH_BYTES):
        seen = patches(x[part], geo, b.shape[2:]).flatten(0, 1)
        total.addmm_(scaled[:, part].flatten(1), seen, beta=0 if part.start == 0 else 1)
    return _as_weight([total], geo).contiguous()


def _weighted_by_torch(weights: Tensor, x: Tensor, b: Tensor, geo: Geometry) -> Tensor:
    return _whole(_ordinary_gradient(x, scale_rows(b, weights), geo, geo.groups), geo)


def _weighted_by_strips(weights: Tensor, x: Tensor, b: Tensor, geo: Geometry) -> Tensor:
    places = b.shape[2:]
    totals = [b.new_empty(b.shape[1], prod(geo.kernel[1:]) * x.shape[1]) for _ in range(geo.kernel[0])]
    for part in _spans(b.shape[0], strip_bytes(x, geo, places), STRIP_BYTES):
        turned = (
            b[part].reshape(-1, *b.shape[1:3], prod(places[1:])).permute(1, 2, 0, 3)
        )  # out channels, first places, rows, other places: as the strips
        scaled = torch.mul(turned, weights[part].view(1, 1, -1, 1), out=b.new_empty(turned.shape)).flatten(1)
        for total, seen in zip(totals, strips(x[part], geo, places, rows_inside=True), strict=True):
            total.addmm_(scaled, seen.flatten(0, 2), beta=0 if part.start == 0 else 1)
    return _as_weight(totals, geo).contiguous()


def _arranged(call: Call, saved: tuple[Tensor, ...], b: Tensor) -> tuple[Tensor, Tensor, Geometry]:
    """Input, output gradient, geometry; folded where that helps."""
    if not isinstance(call.config, Geometry):
        raise TypeError("a convolution's call carries its Geometry")
    x, geo = saved[0], call.config
    if folds(x, geo):
        x, geo = fold(x, geo, b.shape[2:])
    return x, b, geo


def _bias(b: Tensor) -> Tensor:
    """(rows, channels): the per-example gradients of the bias."""
    return b.flatten(2).sum(2)


class ConvKernel(Kernel):
    spares = frozenset({"in blocks"})

    def direct(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Tensor]:
        x, b, geo = _arranged(call, saved, b)
        grads = {}
        if "weight" in call.params:
            grads["weight"] = _as_weight(_gradients(x, b, geo), geo)
        if "bias" in call.params:
            grads["bias"] = _bias(b)
        return grads

    def direct_part(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        """As kernel.Direct, but the gradients stay channels-last; only their sum is put in the parameter's order."""
        x, b, geo = _arranged(call, saved, b)
        bias = [_bias(b)] if "bias" in call.params else []
        weight = _gradients(x, b, geo) if "weight" in call.params else []

        def finish(weights: Tensor, *formed: Tensor) -> dict[str, Tensor]:
            totals = [(weights.to(g.dtype) @ g.flatten(1)).view(g.shape[1:]) for g in formed]
            sums = {"bias": totals[0]} if bias else {}
            if weight:
                sums["weight"] = _as_weight(totals[len(bias) :], geo).contiguous()
            return sums

        return Ghost(sum_of_squares(*bias, *weight), (*bias, *weight), finish)

    def as_one_image(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        """As direct_part, for layers without groups."""
        x, b, geo = _arranged(call, saved, b)
        bias = {"bias": _bias(b)} if "bias" in call.params else {}
        return Direct({"weight": _whole(_as_one_image(x, b, geo), geo)} | bias)

    def in_blocks(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        x, b, geo = _arranged(call, saved, b)
        return Unformed(
            (x, b),
            _shapes(x, b, geo),
            partial(_form, geo=geo),
            lambda totals: {"weight": _as_weight(totals, geo).contiguous()},
            Direct({"bias": _bias(b)}) if "bias" in call.params else None,
        )

    def ghost(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        return self._by_gram_matrices(call, saved, b, _weighted_gradient)

    def ghost_by_torch(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        return self._by_gram_matrices(call, saved, b, _weighted_by_torch)

    def _by_gram_matrices(
        self,
        call: Call,
        saved: tuple[Tensor, ...],
        b: Tensor,
        weighted: Callable[[Tensor, Tensor, Tensor, Geometry], Tensor],
    ) -> Part:
        x, b, geo = _arranged(call, saved, b)
        spans = _spans(b.shape[0], _gram_bytes(x, b), GRAM_BYTES)
        squares = torch.cat([_gram_squared_norms(x[part], b[part], geo) for part in spans])
        bias = [_bias(b)] if "bias" in call.params else []
        if bias:
            squares = squares + sum_of_squares(*bias)

        def finish(weights: Tensor, x: Tensor, b: Tensor, *bias: Tensor) -> dict[str, Tensor]:
            weights = weights.to(b.dtype)
            sums = {"weight": weighted(weights, x, b, geo)}
            if bias:
                sums["bias"] = weights @ bias[0]
            return sums

        return Ghost(squares, (x, b, *bias), finish)

    def candidates(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> dict[str, Way]:
        direct: dict[str, Way] = {"direct": self.direct_part}
        if "weight" not in call.params or not isinstance(call.config, Geometry):
            return direct
        blocks: dict[str, Way] = {"in blocks": self.in_blocks}
        pixels, places, size = saved[0].shape[2:].numel(), b.shape[2:].numel(), call.params["weight"].numel()
        # In multiply-adds for an example; the factors, measured on a CPU, stand for passes over memory.
        gram = (16 * sum(call.config.kernel) + saved[0].shape[1]) * pixels**2 + b.shape[1] * places**2
        storing, forming = 32 * size, places * size
        if call.config.groups > 1:
            return direct | blocks
        if places >= MANY_PLACES_AS_ONE_IMAGE and saved[0].shape[1] >= MANY_CHANNELS:
            direct = {"direct as one image": self.as_one_image}
        if gram > storing + forming:
            return direct | blocks
        ghost: dict[str, Way] = {"ghost": self.ghost, "ghost, summed by torch": self.ghost_by_torch}
        if SUM_BY_TORCH * places**2 >= size or not policy(b.device).patches:
            ghost = dict(reversed(ghost.items()))
        return ghost | direct | blocks if gram < storing else direct | blocks | ghost


CONV = ConvKernel()

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
FUNCTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def _supports(module: Conv) -> bool:
    own = type(module)._conv_forward  # a subclass may change the function here, and keep `forward`
    known = own in (nn.Conv1d._conv_forward, nn.Conv2d._conv_forward, nn.Conv3d._conv_forward)
    return known and module.weight.is_floating_point()


def _each(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """One number a dimension: torch takes a single one too, if a user sets the attribute after construction."""
    return tuple(value) if isinstance(value, Sequence) else (value,) * dims


def _padded(module: Conv, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """x, and the zeros that the convolution itself puts on both sides of it. Other padding is done here, outside the tap."""
    dims = len(module.kernel_size)
    if module.padding_mode != "zeros":
        return F.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode), (0,) * dims
    if isinstance(module.padding, str):
        reach = [d * (k - 1) for d, k in zip(_each(module.dilation, dims), module.kernel_size, strict=True)]
        total = reach if module.padding == "same" else [0] * dims
        if any(t % 2 for t in total):  # an even kernel: one zero more on the far side
            return F.pad(x, [n for t in reversed(total) for n in (t // 2, t - t // 2)]), (0,) * dims
        return x, tuple(t // 2 for t in total)
    return x, _each(module.padding, dims)


@layer(nn.Conv1d, nn.Conv2d, nn.Conv3d, supports=_supports)
def forward(module: Conv, tap: Tap, input: Tensor) -> Tensor:
    dims = len(module.kernel_size)
    if input.dim() != dims + 2:
        raise Unsupported(
            f"a convolution got an input of shape {tuple(input.shape)}, without a batch dimension; call it on a batch"
        )
    x, padding = _padded(module, input)
    geo = Geometry(module.kernel_size, _each(module.stride, dims), padding, _each(module.dilation, dims), module.groups)
    weight = module.weight.detach()
    if (live := _live(geo, x.shape[2:])) is not None:
        x, geo = _trimmed(x, geo, live)
        weight = weight[(slice(None), slice(None), *live)].contiguous()
    bias = None if module.bias is None else module.bias.detach()
    out = FUNCTIONS[dims](x, weight, bias, *geo[1:5])
    return tap(out, CONV, {"weight": module.weight, "bias": module.bias}, (x,), geo, rows_dim=0)


def _places(geo: Geometry, size: Sequence[int]) -> list[int]:
    """The size of the output."""
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(size, *geo[:4], strict=True)]


@lru_cache(maxsize=1024)
def _live(geo: Geometry, size: torch.Size) -> tuple[slice, ...] | None:
    """From the first to the last tap, in each dimension, that meets the image at any place; None if these are all."""
    live = []
    for n, k, s, p, d, places in zip(size, *geo[:4], _places(geo, size), strict=True):
        # The first place at which a tap is not before the image: is it a place, and is the tap not behind the image?
        first = [max(0, -((tap * d - p) // s)) for tap in range(k)]
        taps = [tap for tap, at in enumerate(first) if at < places and at * s + tap * d - p < n]
        if not taps:
            return None
        live.append(slice(taps[0], taps[-1] + 1))
    whole = all(taps == slice(0, k) for taps, k in zip(live, geo.kernel, strict=True))
    return None if whole else tuple(live)


def _trimmed(x: Tensor, geo: Geometry, live: tuple[slice, ...]) -> tuple[Tensor, Geometry]:
    """The same convolution by the live taps alone: the part of the padded image that they meet, and their geometry."""
    margins: list[int] = []
    for taps, n, s, p, d, places in zip(live, x.shape[2:], *geo[1:4], _places(geo, x.shape[2:]), strict=True):
        before = p - taps.start * d
        met = (places - 1) * s + (taps.stop - 1 - taps.start) * d + 1
        margins = [before, met - n - before, *margins]  # F.pad begins with the last dimension; less than zero cuts off
    kernel = tuple(taps.stop - taps.start for taps in live)
    whole = tuple((taps.start, taps.stop, size) for taps, size in zip(live, geo.kernel, strict=True))
    return F.pad(x, margins) if any(margins) else x, geo._replace(kernel=kernel, padding=(0,) * len(live), within=whole)
