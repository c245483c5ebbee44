"""Batches of a fixed size: all subsets alike, anew each step; and a run on them, charged as what it is."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise.accounting import FixedSizeEvent, epsilon
from clipwise.keystream import Key
from clipwise.sampling import FixedSizeSampler
from clipwise.types import BadArgument

KEY = Key.from_seed(0)


def test_all_subsets_are_alike():
    sampler = FixedSizeSampler(6, 3 / 6)
    place = {subset: i for i, subset in enumerate(itertools.combinations(range(6), 3))}
    counts = np.zeros(len(place))
    for step in range(8000):
        counts[place[tuple(sampler.draw(KEY, step))]] += 1
    assert stats.chisquare(counts).pvalue > 1e-6
    skewed = counts + np.where(
        np.arange(len(place)) == 0, 0.6 * counts[0], 0
    )  # one subset more often: it would be seen
    assert stats.chisquare(skewed).pvalue < 1e-6


def test_a_draw_is_a_function_of_key_and_step_and_has_no_record_twice():
    sampler = FixedSizeSampler(500, 0.2)
    first = sampler.draw(KEY, 3)
    assert len(first) == len(set(first)) == 100
    assert np.array_equal(first, sampler.draw(KEY, 3))
    assert not np.array_equal(first, sampler.draw(KEY, 4))
    assert np.array_equal(FixedSizeSampler(7, 1.0).draw(KEY, 0), np.arange(7))


@pytest.mark.parametrize("rate", [0.15, 1e-6, 0.0, 1.5])
def test_a_share_that_is_no_number_of_records(rate):
    with pytest.raises(BadArgument, match="sample_rate"):
        FixedSizeSampler(10, rate)


def test_a_run_on_batches_of_a_fixed_size():
    """Every batch has its size; the ledger holds that kind of event, and the statement says what it protects."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(60, 3), torch.randint(0, 2, (60,)))
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=20)
    private = clipwise.attach(
        model,
        optimizer,
        loader,
        epsilon=4.0,
        delta=1e-3,
        epochs=2,
        sampling="fixed-size",
        accountant="rdp",
        seed=0,
        method="fixed",
    )
    for _ in private.epochs():
        for x, y in private.loader:
            assert len(x) == 20
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    private.detach()
    noise = private.run.plan.noise_multiplier
    assert private.run.ledger.events() == [FixedSizeEvent(20 / 60, noise, 6)]
    assert private.epsilon() == epsilon([FixedSizeEvent(20 / 60, noise, 6)], 1e-3).value
    assert private.epsilon() == pytest.approx(4.0, rel=1e-3)
    statement = private.statement().to_markdown()
    assert "replace one record" in statement
    assert "without replacement" in statement
    poisson = clipwise.attach(
        model, optimizer, loader, epsilon=4.0, delta=1e-3, epochs=2, accountant="rdp", method="fixed"
    )
    assert poisson.run.plan.noise_multiplier < noise  # replacing moves a sum by twice the bound
    poisson.detach()
