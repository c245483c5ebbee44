"""What scattering features must do, whatever the arithmetic."""

import math

import pytest
import torch

from clipwise.models.scattering import ANGLES, CHANNELS, STEP, Scattering, _averages, _halved


def model(size=(28, 28), channels=1):
    return Scattering((channels, *size), 10).double()


def test_a_constant_gives_its_average_and_no_edges():
    found = model().scattered(torch.full((2, 1, 28, 28), 0.7, dtype=torch.float64))
    assert found.shape == (2, CHANNELS, 7, 7)
    assert torch.allclose(found[:, 0], torch.full((2, 7, 7), 0.7, dtype=torch.float64))
    assert found[:, 1:].abs().max() < 1e-6


def test_a_mirrored_image_has_mirrored_angles():
    """Along the diagonal, which maps the grid onto itself: angle a becomes a right angle less a."""
    x = torch.rand(3, 1, 28, 20, dtype=torch.float64)
    straight = model((28, 20)).scattered(x)
    mirrored = model((20, 28)).scattered(x.mT).mT
    angles = [(ANGLES // 2 - i) % ANGLES for i in range(ANGLES)]
    both = [1 + 2 * ANGLES + ANGLES * i + j for i in angles for j in angles]
    channels = [0, *(1 + i for i in angles), *(1 + ANGLES + i for i in angles), *both]
    assert torch.allclose(mirrored, straight[:, channels])


def test_stripes_are_seen_by_the_wavelet_that_runs_across_them():
    """Stripes of three pixels' period, near the frequency of the fine wavelets, at each of their angles."""
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    for i in range(ANGLES):
        angle = math.pi * i / ANGLES
        stripes = torch.cos(2 * math.pi / 3 * (x * math.cos(angle) + y * math.sin(angle))).double()
        found = model((32, 32)).scattered(stripes.view(1, 1, 32, 32))[0, 1 : 1 + ANGLES, 2:-2, 2:-2].mean((1, 2))
        assert int(found.argmax()) == i


def test_coarse_moduli_are_as_at_full_size():
    """Every second pixel of a modulus, averaged more narrowly, is the modulus averaged; wider stripes are theirs."""
    x = torch.rand(2, 1, 28, 28, dtype=torch.float64)
    net = model()
    spectrum = torch.fft.fft2(torch.nn.functional.pad(x, net.margins, mode="reflect"))
    want = net.average0 @ torch.fft.ifft2(spectrum * net.coarse).abs() @ net.average1.T
    found = net.scattered(x)[:, 1 + ANGLES : 1 + 2 * ANGLES]
    assert (found - want).norm() < 0.05 * want.norm()  # what aliases
    at = torch.arange(28.0).double()
    for period, strongest in ((3, 0), (6, 1)):
        stripes = torch.cos(2 * math.pi / period * at).expand(1, 1, 28, 28)
        found = net.scattered(stripes)[0, [1, 1 + ANGLES], 2:-2, 2:-2].mean((1, 2))
        assert int(found.argmax()) == strongest


def test_three_channels_are_normalised_together():
    found = model().features(torch.rand(2, 1, 28, 28, dtype=torch.float64)).view(2, CHANNELS // 3, -1)
    assert torch.allclose(found.mean(2), torch.zeros(2, 27, dtype=torch.float64), atol=1e-9)
    apart = found.view(2, 27, 3, -1).mean(3)
    assert apart.abs().max() > 0.1  # each on its own would be zero


def test_halved_is_the_spectrum_of_every_second_pixel():
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    assert torch.allclose(_halved(torch.fft.fft2(x)), torch.fft.fft2(x[:, ::2, ::2]))


def test_averages_are_gaussians_that_sum_to_one():
    found = _averages(36, 1.6, STEP)
    assert found.shape == (7, 36)
    assert torch.allclose(found.sum(1), torch.ones(7), atol=1e-5)
    assert found.argmax(1).tolist() == [4, 8, 12, 16, 20, 24, 28]
    at = torch.arange(36.0) - 16
    assert torch.allclose(found[3], torch.exp(-((at / 1.6) ** 2) / 2) / (1.6 * math.sqrt(2 * math.pi)), atol=1e-3)


@pytest.mark.parametrize(("channels", "size"), [(1, (8, 8)), (2, (9, 13)), (3, (32, 32)), (1, (31, 20))])
def test_features_of_a_record_are_its_own(channels, size):
    net = model(size, channels)
    x = torch.rand(5, channels, *size, dtype=torch.float64)
    found = net.features(x)
    assert found.shape == (5, net.head.in_features)
    assert torch.allclose(found[2:3], net.features(x[2:3]))
    x[0] = math.nan
    assert net.features(x)[1:].isfinite().all()
