"""Counts released with noise: what one record can move, what is charged and when, and how much noise there is."""

import math

import pytest
import torch

from clipwise.accounting import StepEvent, epsilon
from clipwise.accounting.ledger import Ledger
from clipwise.fairness.after_training import group_counts
from clipwise.fairness.release import RIGHT, GroupCounts, release_group_counts
from clipwise.keystream import Key
from clipwise.noise import GaussianNoise
from clipwise.types import BadArgument

ANSWERS = torch.tensor([True, True, False, True, False])
GROUPS = torch.tensor([0, 0, 0, 1, 2])


def released(right=ANSWERS, groups=GROUPS, number=3, noise=4.0, ledger=None, source=None):
    return release_group_counts(
        right,
        groups,
        number,
        StepEvent(1.0, noise),
        ledger=ledger or Ledger.in_memory(run={}),
        noise=source or GaussianNoise(Key.from_seed(0)),
        step=7,
    )


def test_counts_by_hand():
    counts = released(noise=1e-6)
    assert counts.yes == pytest.approx([2, 1, 0], abs=1e-4)
    assert counts.no == pytest.approx([1, 0, 1], abs=1e-4)


def test_one_record_moves_the_counts_by_one():
    """Whatever it is: of any group, right or wrong, or with a label that is no group. The noise is the same on both."""
    everyone = torch.tensor(released().yes + released().no)
    for right in (True, False):
        for group in (0, 1, 2, -1, 99):
            more = released(torch.cat([ANSWERS, torch.tensor([right])]), torch.cat([GROUPS, torch.tensor([group])]))
            moved = torch.tensor(more.yes + more.no) - everyone
            assert float(moved.norm()) == pytest.approx(1.0, abs=1e-5)


def test_charged_once_for_all_records():
    ledger = Ledger.in_memory(run={})
    released(ledger=ledger)
    assert ledger.events() == [StepEvent(1.0, 4.0)]
    # Exact for one Gaussian release (Balle, Wang 2018): delta of noise 4 at this epsilon.
    spent = ledger.epsilon(1e-5).value
    assert spent == pytest.approx(epsilon([StepEvent(1.0, 4.0)], 1e-5).value)
    phi = torch.distributions.Normal(0.0, 1.0).cdf
    a, b = torch.tensor([1 / 8 - 4 * spent, -1 / 8 - 4 * spent], dtype=torch.float64)
    assert float(phi(a) - math.exp(spent) * phi(b)) <= 1.001e-5


def test_no_noise_without_a_charge():
    class Full:
        def charge(self, *_, **__):
            raise OSError("disk full")

    class Noise:
        drawn = False

        def add(self, *_, **__):
            self.drawn = True

    noise = Noise()
    with pytest.raises(OSError, match="disk full"):
        released(ledger=Full(), source=noise)
    assert not noise.drawn


def test_the_noise_is_as_large_as_it_says():
    number = 4000
    counts = released(torch.zeros(0, dtype=torch.bool), torch.zeros(0, dtype=torch.long), number, noise=7.0)
    values = torch.tensor(counts.yes + counts.no)
    assert float(values.std()) == pytest.approx(7.0, rel=4 / math.sqrt(2 * 2 * number))
    assert float(values.mean()) == pytest.approx(0.0, abs=4 * 7 / math.sqrt(2 * number))


def test_a_group_that_the_noise_drowns_is_named():
    counts = GroupCounts(RIGHT, (5.0, 90.0, -3.0, 120.0), (3.0, 10.0, 1.0, -4.0), 5.0)
    assert counts.share(0).value is None
    assert counts.share(2) == (None, "the group is too small for this noise")
    assert counts.interval(2) is None
    assert counts.share(1).value == pytest.approx(0.9)
    assert counts.share(3).value == 1.0  # not above
    rows = counts.to_list(("a", "b", "c", "d"))
    assert [row["group"] for row in rows if "note" in row] == ["a", "c"]


def test_intervals_cover_the_exact_accuracy():
    hits = 0
    for seed in range(300):
        right = torch.arange(200) < 150
        counts = released(right, torch.zeros(200, dtype=torch.long), 1, source=GaussianNoise(Key.from_seed(seed)))
        low, high = counts.interval(0)
        hits += low <= 0.75 <= high
    assert 270 <= hits <= 298  # 285 expected; 4 standard deviations are 15


@pytest.mark.parametrize(("noise", "groups"), [(0.0, GROUPS), (4.0, GROUPS[:2])])
def test_bad_arguments(noise, groups):
    ledger = Ledger.in_memory(run={})
    with pytest.raises(BadArgument, match="group"):
        released(groups=groups, noise=noise, ledger=ledger)
    assert ledger.events() == []


@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan])
def test_noise_that_is_none_is_refused_before_training(noise):
    with pytest.raises(BadArgument, match="group_counts="):
        group_counts(noise, groups=lambda batch: batch[2], number_of_groups=2)
