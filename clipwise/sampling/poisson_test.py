"""Poisson batches at the stated rate, independent, repeatable; and the loader that delivers them."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import DataLoader, TensorDataset

from clipwise.keystream import Key
from clipwise.sampling import PoissonSampler, SampledLoader
from clipwise.types import BadArgument

KEY = Key.from_seed(0)


def surprise(sampler, steps, rate):
    """The p-value of the number of records drawn, were `rate` the truth; and the sizes."""
    sizes = np.array([len(sampler.draw(KEY, step)) for step in range(steps)])
    return stats.binomtest(int(sizes.sum()), sampler.size * steps, rate).pvalue, sizes


@pytest.mark.parametrize(("size", "rate", "steps"), [(1000, 0.1, 400), (60, 0.5, 2000), (2_000_000, 1e-3, 20)])
def test_inclusion_is_binomial_at_the_rate(size, rate, steps):
    p, sizes = surprise(PoissonSampler(size, rate), steps, rate)
    assert p > 1e-6
    # the *spread* of the sizes is that of independent coins: a fixed-size or shuffled sampler has none
    spread = sizes.var(ddof=1) * (steps - 1) / (size * rate * (1 - rate))
    assert stats.chi2(steps - 1).cdf(spread) == pytest.approx(0.5, abs=0.499999)


@pytest.mark.parametrize(("rate", "factor"), [(0.1, 1.01), (0.1, 0.99), (0.5, 1.005), (0.01, 1.02)])
def test_a_rate_that_is_a_percent_off_would_be_seen(rate, factor):
    """Enough coins: ten million, of which one percent is ten standard deviations at a rate of 0.1."""
    size, steps = 1_000_000, 10
    assert surprise(PoissonSampler(size, rate), steps, rate)[0] > 1e-6
    assert surprise(PoissonSampler(size, rate * factor), steps, rate)[0] < 1e-6


def test_tiny_rates_are_not_doubled():
    """Float32 coins cannot tell 3e-8 from 6e-8; ours can. 3e8 coins, 9 expected."""
    sampler = PoissonSampler(10_000_000, 3e-8)
    found = sum(len(sampler.draw(KEY, step)) for step in range(30))
    assert stats.poisson(9).cdf(found) < 1 - 1e-4
    assert PoissonSampler(100, 1e-30).draw(KEY, 0).size == 0


class _Coins:
    """A key whose first bytes and rests of coins are given."""

    def __init__(self, firsts, rests):
        self.given = {0: bytes(firsts), 1: np.array(rests, dtype="<u8").tobytes()}

    def derive(self, _label):
        return self

    def keystream(self, *, stream=0, **_):
        return type("Stream", (), {"update": lambda _, zeros: self.given[stream][: len(zeros)]})()


@pytest.mark.parametrize("rate", [0.3, 1 / 256, 3e-3, 1e-9, 2.0**-63, 5 / 256, 1 - 2.0**-53])
def test_a_coin_is_64_bits_against_the_rate_to_its_last_bit(rate):
    """Records whose first 8 bits are the threshold's, with the rest just below it, at it and above; and such as need no rest."""
    first, rest = divmod(int(rate * 2**64), 2**56)
    rests = [r for r in (rest - 1, rest, rest + 1, 0, 2**56 - 1) if 0 <= r < 2**56]
    others = [b for b in (first - 1, first + 1, 0, 255) if 0 <= b < 256 and b != first]
    coins = [(first << 56) + r for r in rests] + [b << 56 for b in others]
    drawn = PoissonSampler(len(coins), rate).draw(_Coins([c >> 56 for c in coins], [r << 8 for r in rests]), 0)
    assert drawn.tolist() == [i for i, coin in enumerate(coins) if coin < int(rate * 2**64)]


def test_pairs_of_records_are_independent():
    sampler = PoissonSampler(20, 0.3)
    drawn = np.zeros((4000, 20))
    for step in range(4000):
        drawn[step, sampler.draw(KEY, step)] = 1
    correlation = np.corrcoef(drawn.T) - np.eye(20)
    assert np.abs(correlation).max() < 0.09
    lagged = [np.corrcoef(drawn[1:, i], drawn[:-1, i])[0, 1] for i in range(20)]
    assert np.abs(lagged).max() < 0.09


def test_a_draw_is_a_function_of_key_and_step():
    sampler = PoissonSampler(500, 0.2)
    np.random.seed(0)
    torch.manual_seed(0)
    first = sampler.draw(KEY, 3)
    assert np.array_equal(first, sampler.draw(KEY, 3))
    assert not np.array_equal(first, sampler.draw(KEY, 4))
    assert not np.array_equal(first, sampler.draw(Key.from_seed(1), 3))
    assert len(set(first)) == len(first)


def test_rate_one_takes_everything():
    assert np.array_equal(PoissonSampler(7, 1.0).draw(KEY, 0), np.arange(7))


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, float("nan"), "0.1"])
def test_bad_rate(rate):
    with pytest.raises(BadArgument, match="sample_rate"):
        PoissonSampler(10, rate)


def loader(rate=0.1, most=None, **options):
    inner = DataLoader(TensorDataset(torch.arange(100.0) + 1, torch.arange(100)), batch_size=10, **options)
    return SampledLoader(inner, PoissonSampler(100, rate), KEY, max_physical_batch=most)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("most", [None, 1, 4, 100])
def test_physical_batches_make_up_the_logical_ones(most, workers):
    sampler = PoissonSampler(100, 0.1)
    seen = {}
    for info, (x, y) in loader(most=most, num_workers=workers).batches(range(5, 25)):
        assert len(x) == info.rows
        assert most is None or info.rows <= most
        if not info.masked:
            assert torch.equal(x, y + 1.0)
        seen.setdefault(info.step, []).append((info, [] if info.masked else y.tolist()))
    assert sorted(seen) == list(range(5, 25))
    for step, parts in seen.items():
        assert [i for _, y in parts for i in y] == sampler.draw(KEY, step).tolist()
        assert [info.last for info, _ in parts] == [False] * (len(parts) - 1) + [True]


def test_empty_batches_come_as_one_masked_row_of_zeros():
    batches = list(loader(rate=1e-9).batches(range(3)))
    assert len(batches) == 3
    for info, (x, y) in batches:
        assert info.masked
        assert info.last
        assert info.rows == 1
        assert x.tolist() == [0.0]
        assert y.tolist() == [0]


class _OneByOne(TensorDataset):
    """Another type: its records are fetched and collated one by one."""


@pytest.mark.parametrize("rate", [1e-9, 0.1, 1.0])
def test_batches_taken_whole_are_those_collated_one_by_one(rate):
    tensors = torch.randn(50, 2, 3), torch.arange(50), torch.rand(50) > 0.5

    def batches(kind):
        inner = DataLoader(kind(*tensors), batch_size=5)
        return list(SampledLoader(inner, PoissonSampler(50, rate), KEY, max_physical_batch=4).batches(range(6)))

    whole, single = batches(TensorDataset), batches(_OneByOne)
    assert [info for info, _ in whole] == [info for info, _ in single]
    for (_, a), (_, b) in zip(whole, single, strict=True):
        assert type(a) is type(b)
        for x, y in zip(a, b, strict=True):
            assert x.dtype == y.dtype
            assert torch.equal(x, y)


def test_a_collate_function_of_the_user_is_kept():
    inner = DataLoader(TensorDataset(torch.arange(9.0)), batch_size=3, collate_fn=lambda records: len(records))
    assert [n for _, n in SampledLoader(inner, PoissonSampler(9, 1.0), KEY, max_physical_batch=4).batches([0])] == [
        4,
        4,
        1,
    ]
