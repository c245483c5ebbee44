"""Scattering features (Bruna and Mallat 2013; Oyallon and Mallat 2015) and logistic regression on them.

Two rounds of wavelets and moduli, then an average over 4x4 pixels: 81 channels of fixed features, without a parameter and
without a look at any data. Tramèr and Boneh (2021) found that private training does better on them than end to end: few
parameters, a convex problem, and strokes and edges need not be learned under noise.

Wavelets are Morlet's, as in Kymatio: 8 angles at 2 scales, written down in the frequency domain, where they are real. Each
record's features are normalised by groups of three channels, on their own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.models.architecture import IMAGE, Architecture, Records, refuse_small
from clipwise.models.freezing import FeaturesAndHead

ANGLES = 8  # of the wavelets, over half a turn, as in the published networks
STEP = 4  # pixels of a side that one feature stands for
# The average; moduli at the fine and at the coarse scale; moduli at the coarse one of those at the fine one.
CHANNELS = 1 + 2 * ANGLES + ANGLES**2
WIDTH, FREQUENCY = 0.8, 0.75 * math.pi  # of the fine wavelets; twice and half as much of the coarse ones
SLANT = 4 / ANGLES  # length over width of a wavelet
TOGETHER = 3  # channels that are normalised together
LEAST = 8  # pixels


def _frequencies(size: int) -> Tensor:
    """(3, size): they repeat every 2 pi, so those of one lap before and after count too."""
    return 2 * math.pi * (torch.fft.fftfreq(size) + torch.tensor([[-1], [0], [1]]))


def _wavelets(size: tuple[int, int], width: float, at: float) -> Tensor:
    """(angles, *size), in the frequency domain: a Gaussian around `at` in the direction of the angle, less so much of one
    around zero that a constant gives no response."""
    y, x = _frequencies(size[0]).view(3, 1, -1, 1), _frequencies(size[1]).view(1, 3, 1, -1)
    found = []
    for i in range(ANGLES):
        cos, sin = math.cos(math.pi * i / ANGLES), math.sin(math.pi * i / ANGLES)
        along, across = x * cos + y * sin, (y * cos - x * sin) / SLANT
        wave, mean = (
            torch.exp(-0.5 * width**2 * ((along - place) ** 2 + across**2)).sum((0, 1)) for place in (at, 0.0)
        )
        found.append(wave - mean * (wave[0, 0] / mean[0, 0]))
    return torch.stack(found)


def _averages(size: int, width: float, step: int) -> Tensor:
    """(places, size): a Gaussian around every step-th pixel but the first and the last of them, which are margin."""
    response = torch.fft.ifft(torch.exp(-0.5 * (width * _frequencies(size)) ** 2).sum(0)).real
    centres = torch.arange(step, size - step, step)
    return response[(centres.view(-1, 1) - torch.arange(size)) % size]


def _halved(spectrum: Tensor) -> Tensor:
    """That of the image which keeps every second pixel."""
    upper, lower = spectrum.chunk(2, -2)
    left, right = (upper + lower).chunk(2, -1)
    return (left + right) / 4


class Scattering(FeaturesAndHead):
    fine: Tensor
    coarse: Tensor
    average0: Tensor
    average1: Tensor
    half_average0: Tensor
    half_average1: Tensor

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        channels, *size = shape
        places = [-(-n // STEP) for n in size]
        height, width = whole = tuple(STEP * (n + 2) for n in places)  # a margin of a place on each side
        self.margins = [STEP, width - size[1] - STEP, STEP, height - size[0] - STEP]
        filters = {
            "fine": _wavelets((height, width), WIDTH, FREQUENCY),
            "coarse": _wavelets((height, width), 2 * WIDTH, FREQUENCY / 2),
            **{f"average{i}": _averages(n, 2 * WIDTH, STEP) for i, n in enumerate(whole)},
            **{f"half_average{i}": _averages(n // 2, WIDTH, STEP // 2) for i, n in enumerate(whole)},
        }
        for name, values in filters.items():
            self.register_buffer(name, values, persistent=False)
        self.head = nn.Linear(channels * CHANNELS * math.prod(places), classes)
        nn.init.zeros_(self.head.weight)  # convex: no need to begin anywhere else
        nn.init.zeros_(self.head.bias)

    @property
    def last_layer(self) -> nn.Module:
        return self.head

    def scattered(self, x: Tensor) -> Tensor:
        """(rows, 81 a channel, *places): the average, the moduli at the fine and at the coarse scale, those at both."""
        image = F.pad(x, self.margins, mode="reflect").unsqueeze(2)
        spectrum = torch.fft.fft2(image)
        fine = torch.fft.ifft2(spectrum * self.fine).abs()
        coarse = torch.fft.ifft2(_halved(spectrum * self.coarse)).abs()
        both = torch.fft.ifft2(_halved(torch.fft.fft2(fine).unsqueeze(3) * self.coarse)).abs().flatten(2, 3)
        whole, half = torch.cat([image, fine], 2), torch.cat([coarse, both], 2)
        averages = [self.average0 @ whole @ self.average1.T, self.half_average0 @ half @ self.half_average1.T]
        return torch.cat(averages, 2).flatten(1, 2)

    def features(self, x: Tensor) -> Tensor:
        found = self.scattered(x)
        return F.group_norm(found, found.shape[1] // TOGETHER).flatten(1)


def _build(records: Records, _: Any) -> nn.Module:
    refuse_small("scattering", records, LEAST)
    return Scattering(records.shape, records.classes)


SCATTERING = Architecture(
    name="scattering",
    summary="logistic regression on fixed wavelet features, for images from 8x8",
    records=IMAGE,
    build=_build,
    typical="mnist",
)
