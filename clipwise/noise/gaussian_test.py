"""The noise is normal, keyed, independent, and never drawn twice."""

import itertools
import math
import threading

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from clipwise.keystream import Key
from clipwise.noise import GaussianNoise, gaussian
from clipwise.types import BadArgument, Cut, LoopMisuse


def draw(count, *, key=None, step=0, rank=0, std=1.0, dtype=torch.float32):
    return GaussianNoise(key or Key.from_seed(1), rank=rank).add([torch.zeros(count, dtype=dtype)], std, step=step)[0]


@pytest.fixture(params=["aes", "chacha20"])
def cipher(request, monkeypatch):
    """Both generators, on the CPU: by AES as there, and as on a device whose memory the host cannot write to."""
    monkeypatch.setattr(gaussian, "in_host_memory", lambda _: request.param == "aes")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("cipher")
def test_standard_normal_by_kolmogorov_smirnov_and_variance(dtype):
    x = draw(500_000, dtype=dtype).double().numpy()
    assert stats.kstest(x, "norm").pvalue > 1e-4
    low, high = stats.chi2(len(x)).ppf([1e-6, 1 - 1e-6])
    assert low < (x**2).sum() < high
    assert not low < ((0.99 * x) ** 2).sum() < high  # the test would see 1 % of missing noise
    assert abs(stats.kurtosis(x)) < 0.05
    assert abs(x).max() > 4.3


class Words:
    """In the place of a cipher: words for radii, then for angles, then what is asked for beyond."""

    def __init__(self, radii, angles, more=b""):
        self.first, self.more = np.concatenate([radii, angles]).astype(np.int32).tobytes(), more

    def update_into(self, data, buffer):
        assert len(data) == len(self.first)
        buffer[: len(data)] = self.first
        return len(data)

    def update(self, data):
        found, self.more = self.more[: len(data)], self.more[len(data) :]
        assert len(found) == len(data)
        return found


def made_of(words, pairs, wide=torch.float32, **how):
    return gaussian._Room(pairs, wide, **how).next(words, pairs).double().view(2, pairs).numpy()


@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_tails_reach_beyond_the_32_bit_limit(wide):
    """The smallest u is 2^-63, so that the radius can reach 9.35; 31 bits alone would end at 6.6."""
    made = made_of(Words([0, -1], [0, 0], bytes(4) + b"\xff" * 4), 2, wide)
    assert abs(made).max(0) == pytest.approx([(2 * 63 * math.log(2)) ** 0.5] * 2, rel=1e-6)


@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
@pytest.mark.parametrize("bits", [8, 19, 25, 31])
def test_the_law_of_the_radius_where_only_so_many_bits_are_left_of_the_first_word(bits, wide):
    """Of all words, those with |u| < 2^(bits - 31): -log |u| is exponential beyond there, to the last tail."""
    random = np.random.default_rng(bits)
    count = 1 << 16
    radii = random.integers(-(1 << bits), 1 << bits, count)
    words = Words(radii, random.integers(-(1 << 31), 1 << 31, count), random.bytes(4 * count))
    even, odd = made_of(words, count, wide)
    beyond = (even**2 + odd**2) / 2 - (31 - bits) * math.log(2)
    assert stats.kstest(beyond, "expon").pvalue > 1e-4
    if bits == 8:
        assert len(np.unique(beyond)) > 10_000, "and not the 256 values of the first word"


def test_words_that_a_float32_tells_apart_anyway_draw_nothing_more():
    edge = int(gaussian._FINE_BELOW)
    words = Words([edge, -edge, edge - 1, 1 - edge], [1, 2, 3, 4], bytes(8))
    made_of(words, 4)
    assert words.more == b""


def test_by_tangent_and_by_sine_and_cosine_the_numbers_are_the_same():
    random = np.random.default_rng(1)
    count = 1 << 16
    radii, angles = random.integers(-(1 << 31), 1 << 31, (2, count))
    angles[:7] = [-(1 << 31), (1 << 31) - 1, 0, 1, -1, 1 << 30, -(1 << 30)]
    tan, circle = (made_of(Words(radii, angles, bytes(4 * count)), count, by_tan=by) for by in (True, False))
    np.testing.assert_allclose(tan, circle, rtol=0, atol=4e-6)
    exact = made_of(Words(radii, angles, bytes(4 * count)), count, torch.float64)
    for made in (tan, circle):
        np.testing.assert_allclose(made, exact, rtol=0, atol=1e-5)
        np.testing.assert_allclose(made[0] ** 2 + made[1] ** 2, exact[0] ** 2 + exact[1] ** 2, rtol=2e-6, atol=1e-6)


def test_segments_are_the_ctr_blocks_after_their_nonce_and_share_none():
    key = Key.from_seed(7)
    found = key.segment(step=3, rank=2, stream=1, segment=9).update(bytes(48))
    nonce = (3).to_bytes(5, "big") + (2).to_bytes(2, "big") + (1).to_bytes(2, "big") + (9).to_bytes(3, "big")
    ctr = Cipher(algorithms.AES128(key.secret[:16]), modes.CTR(nonce + (2).to_bytes(4, "big"))).encryptor()
    assert found == ctr.update(bytes(48))
    places = itertools.product((0, 1, 255), (0, 1), (0, 1), (0, 1))
    first = {key.segment(step=a, rank=b, stream=c, segment=d).update(bytes(16)) for a, b, c, d in places}
    assert len(first) == 3 * 2 * 2 * 2
    with pytest.raises(OverflowError):
        key.segment(step=0, segment=1 << 24)


PIECE = 2 * gaussian._PAIRS
PIECE_ON_DEVICE = 2 * gaussian._PAIRS_ON_DEVICE


@pytest.mark.parametrize("count", [0, 1, 2, 3, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 5])
@pytest.mark.usefixtures("cipher")
def test_every_size_is_filled(count):
    x = draw(count)
    assert x.shape == (count,)
    assert x.isfinite().all()
    assert (x != 0).all()


@pytest.mark.parametrize("shapes", [[(3,), (PIECE + 7,), (), (2, 5)], [(PIECE,), (0,), (1,)], [(5, PIECE // 2 + 1)]])
@pytest.mark.usefixtures("cipher")
def test_each_number_of_the_stream_is_added_once_wherever_tensors_and_pieces_end(shapes):
    count = sum(torch.Size(shape).numel() for shape in shapes)
    sums = [torch.full(shape, float(i)) for i, shape in enumerate(shapes)]
    kept = [total.clone() for total in sums]
    noised = GaussianNoise(Key.from_seed(1)).add(sums, 2.0, step=0)
    assert [total.shape for total in noised] == [torch.Size(shape) for shape in shapes]
    added = torch.cat([(n - k).flatten() for n, k in zip(noised, kept, strict=True)])
    torch.testing.assert_close(added, 2 * draw(count), rtol=0, atol=1e-5)
    assert all(n.data_ptr() == s.data_ptr() for n, s in zip(noised, sums, strict=True))


@pytest.mark.usefixtures("cipher")
def test_a_sum_that_is_not_contiguous_and_other_types():
    turned = torch.zeros(30, 20).T
    torch.testing.assert_close(GaussianNoise(Key.from_seed(1)).add([turned], 1.0, step=0)[0].flatten(), draw(600))
    half, double = torch.zeros(8, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.float64)
    both = GaussianNoise(Key.from_seed(1)).add([half, double], 1.0, step=0)
    assert [total.dtype for total in both] == [torch.bfloat16, torch.float64]
    want = draw(16, dtype=torch.float64)
    torch.testing.assert_close(both[1], want[8:])
    torch.testing.assert_close(both[0], want[:8].bfloat16())


@pytest.mark.usefixtures("cipher")
def test_noise_is_a_function_of_key_step_rank_and_tensor():
    same = draw(100)
    assert torch.equal(same, draw(100))
    torch.manual_seed(3)
    assert torch.equal(same, draw(100))
    others = [draw(100, step=1), draw(100, rank=1), draw(100, key=Key.from_seed(2))]
    noise = GaussianNoise(Key.from_seed(1))
    first, second = noise.add([torch.zeros(100)], 1.0, step=0)[0], noise.add([torch.zeros(100)], 1.0, step=0)[0]
    assert torch.equal(first, same)
    two = GaussianNoise(Key.from_seed(1)).add([torch.zeros(10, 5), torch.zeros(50)], 1.0, step=0)
    assert not torch.isin(two[0], two[1]).any()
    for other in [*others, second]:
        assert not torch.isin(other, same).any()
        assert abs(torch.corrcoef(torch.stack([same, other]))[0, 1]) < 0.5


def test_fresh_keys_differ_and_do_not_print():
    a, b = Key.fresh(), Key.fresh()
    assert a.secret != b.secret
    assert a.secret.hex() not in repr(a)
    assert not a.seeded


@pytest.mark.usefixtures("cipher")
def test_a_past_step_is_refused_and_a_second_query_gets_its_own_stream():
    noise = GaussianNoise(Key.from_seed(0))
    first = noise.add([torch.zeros(5)], 1.0, step=3)[0]
    assert not torch.isin(noise.add([torch.zeros(5)], 1.0, step=3)[0], first).any()
    with pytest.raises(LoopMisuse, match="step 2"):
        noise.add([torch.zeros(5)], 1.0, step=2)


@pytest.mark.usefixtures("cipher")
def test_std_scales_and_zero_adds_nothing():
    assert torch.allclose(draw(100, std=3.0), 3 * draw(100))
    assert torch.equal(draw(100, std=0.0), torch.zeros(100))


def test_bad_seed():
    with pytest.raises(BadArgument, match="seed=-1"):
        Key.from_seed(-1)


@pytest.mark.usefixtures("cipher")
def test_memory_that_is_kept_between_steps_changes_no_number():
    kept = GaussianNoise(Key.from_seed(1))
    for step, (count, dtype) in enumerate(
        [(100, torch.float32), (7, torch.float32), (500, torch.float64), (300, torch.float32)]
    ):
        got = kept.add([torch.zeros(count, dtype=dtype)], 1.0, step=step)[0]
        assert torch.equal(got, draw(count, step=step, dtype=dtype))


class _Operations(TorchDispatchMode):
    """Names of the operations that run, and the devices of what comes out."""

    def __init__(self):
        super().__init__()
        self.names, self.devices = [], set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.names.append(func._schema.name)
        self.devices |= {x.device.type for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor)}
        return out


def test_noise_of_a_device_is_made_there_in_a_number_of_operations_that_does_not_grow():
    """On `meta`, which has no values: whatever was read by the host, or copied from it, would fail or show another device."""
    counts = []
    for size in (10, PIECE_ON_DEVICE):
        with _Operations() as seen:
            GaussianNoise(Key.from_seed(1)).add(
                [torch.zeros(size, device="meta"), torch.zeros(2, device="meta")], 1.0, step=0
            )
        assert seen.devices == {"meta"}
        assert not {"aten::_local_scalar_dense", "aten::nonzero"} & set(seen.names)
        counts.append(len(seen.names))
    # 80 quarter rounds of 7 operations and 60 rolls; what a compiler fuses. The second has two pieces.
    assert counts[0] < 900
    assert counts[1] < 1800


def test_sums_of_two_devices_draw_from_two_streams(monkeypatch):
    monkeypatch.setattr(gaussian, "in_host_memory", lambda device: device.type == "cpu")
    noise = GaussianNoise(Key.from_seed(1))
    both = noise.add([torch.zeros(5), torch.zeros(5, device="meta")], 1.0, step=0)
    assert [total.device.type for total in both] == ["cpu", "meta"]
    assert torch.equal(both[0], draw(5))
    assert noise._streams == 2


@pytest.mark.usefixtures("cipher")
def test_a_part_of_a_query_gets_the_numbers_that_it_has_in_the_whole(monkeypatch):
    monkeypatch.setattr(gaussian, "_PAIRS_ON_DEVICE", gaussian._PAIRS)
    whole = draw(3 * PIECE + 9)
    spans = [(2, 5), (PIECE - 1, 3), (2 * PIECE + 1, 0), (3 * PIECE - 4, 13)]  # within, across, none, to the end
    drawn = []
    made = GaussianNoise._standard_normal
    monkeypatch.setattr(GaussianNoise, "_standard_normal", lambda *where: drawn.append(1) or made(*where))
    cut = Cut(tuple(start for start, _ in spans), len(whole))
    found = GaussianNoise(Key.from_seed(1)).add([torch.zeros(count) for _, count in spans], 1.0, step=0, cut=cut)
    for (start, count), numbers in zip(spans, found, strict=True):
        assert torch.equal(numbers, whole[start : start + count])
    assert len(drawn) == 4
    GaussianNoise(Key.from_seed(1)).add([torch.zeros(4)], 1.0, step=0, cut=Cut((2 * PIECE,), len(whole)))
    assert len(drawn) == 5, "no piece before it, and none behind"


def test_threads_draw_the_numbers_that_one_draws(monkeypatch):
    count = 3 * PIECE + 9
    alone = draw(count)
    drawn_by = set()
    made = gaussian._Room.next
    monkeypatch.setattr(gaussian._Room, "next", lambda *words: drawn_by.add(threading.get_ident()) or made(*words))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    noise = GaussianNoise(Key.from_seed(1))
    sums = [torch.zeros(7), torch.zeros(PIECE + 1), torch.zeros(count - PIECE - 8)]
    assert torch.equal(torch.cat(noise.add(sums, 1.0, step=0)), alone)
    assert len(drawn_by) == 2
    assert not any("ThreadPool" in thread.name for thread in threading.enumerate()), "none is left for a fork to meet"
