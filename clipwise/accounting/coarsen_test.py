"""Bucketed levels: never below the exact epsilon, close above it, and few."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipwise.accounting import FixedSizeEvent, StepEvent, epsilon
from clipwise.accounting import pld as pld_module
from clipwise.accounting import rdp as rdp_module
from clipwise.accounting.coarsen import MOST_LEVELS, coarsen, scheduled
from clipwise.accounting.events import merge
from clipwise.accounting.work_test import work

MNIST = 64 / 60000


def geometric(first, last, levels, count=1, rate=MNIST):
    return merge(StepEvent(rate, first * (last / first) ** (k / levels), count) for k in range(levels))


def steps(events):
    return sum(event.count for event in events)


@pytest.mark.parametrize(("first", "last"), [(1.5, 1.2), (1.5, 0.45), (3.0, 0.9), (5.0, 0.5)])
def test_within_a_fifth_of_a_percent_by_rdp(first, last):
    """2,000 levels, which RDP can still take one by one."""
    events = geometric(first, last, 2000, 47)
    buckets = coarsen(events)
    assert len(buckets) <= MOST_LEVELS
    assert steps(buckets) == steps(events)
    exact = rdp_module._evaluate(events, 1e-5)
    assert exact <= rdp_module._evaluate(buckets, 1e-5) <= 1.002 * exact


@pytest.mark.parametrize(("first", "last"), [(3.0, 0.9)])
def test_within_a_fifth_of_a_percent_by_pld(first, last):
    """400 levels, which the tight accountant can still take one by one; its own grid may differ by 0.1 %."""
    events = geometric(first, last, 400, 234)
    exact = pld_module._evaluate(events, 1e-5)
    assert 0.999 * exact <= pld_module._evaluate(coarsen(events, 300), 1e-5) <= 1.002 * exact


@settings(max_examples=10, deadline=None)
@given(
    noises=st.lists(st.floats(min_value=0.3, max_value=30), min_size=20, max_size=80, unique=True),
    most=st.integers(min_value=1, max_value=15),
    kind=st.sampled_from([StepEvent, FixedSizeEvent]),
)
def test_each_step_is_charged_at_no_more_noise_than_it_had(noises, most, kind):
    events = tuple(kind(0.01, noise, 1 + k % 3) for k, noise in enumerate(sorted(noises)))
    buckets = coarsen(events, most)
    assert len(buckets) <= most
    assert {type(bucket) for bucket in buckets} == {kind}
    had = np.repeat([e.noise_multiplier for e in events], [e.count for e in events])
    charged = np.repeat([b.noise_multiplier for b in buckets], [b.count for b in buckets])
    assert (charged <= had).all()
    assert set(charged) <= set(had)
    assert epsilon(buckets, 1e-5, "rdp").value >= epsilon(events, 1e-5, "rdp").value
    assert coarsen(buckets, most) == buckets


def test_costly_levels_are_told_apart_and_cheap_ones_lumped():
    buckets = coarsen(geometric(50.0, 0.5, 5000), 100)
    widths = np.diff(np.log([bucket.noise_multiplier for bucket in buckets]))
    assert widths[0] < 0.005
    assert widths[-1] > 20 * widths[0]


def test_several_rates_share_the_buckets():
    events = merge(StepEvent(rate, 1 + k / 1000) for rate in (0.001, 0.01) for k in range(1000))
    buckets = coarsen(events)
    by_rate = {rate: [b for b in buckets if b.sample_rate == rate] for rate in (0.001, 0.01)}
    assert [steps(by_rate[rate]) for rate in (0.001, 0.01)] == [1000, 1000]
    assert len(buckets) <= MOST_LEVELS
    assert len(by_rate[0.01]) > 2 * len(by_rate[0.001])  # where most is spent
    exact = rdp_module._evaluate(events, 1e-5)
    assert exact <= rdp_module._evaluate(buckets, 1e-5) <= 1.002 * exact


def test_many_rates_are_rounded_up():
    rng = random.Random(1)
    varied = merge(StepEvent(rng.uniform(0.001, 0.01), 1.0, rng.randint(1, 9)) for _ in range(3000))
    rounded = coarsen(varied)
    assert len(rounded) <= MOST_LEVELS
    assert steps(rounded) == steps(varied)
    before, after = (sum(e.count * e.sample_rate for e in each) for each in (varied, rounded))
    assert before < after < 1.006 * before


def test_no_noise_is_not_hidden_in_a_bucket():
    events = (StepEvent(0.01, 0.0, 3), *(StepEvent(0.01, 1 + k / 100) for k in range(100)))
    assert coarsen(events, 5)[0] == StepEvent(0.01, 0.0, 3)


def test_arrays_and_events_agree():
    noises = np.array([1.5 * 0.8 ** (k / 3000) for k in range(3000)])
    made = scheduled(StepEvent, MNIST, noises, [2] * 3000)
    assert made == coarsen(merge(StepEvent(MNIST, noise, 2) for noise in noises))
    few = scheduled(StepEvent, MNIST, np.array([2.0, 1.0, 2.0]), [1, 2, 3])
    assert few == (StepEvent(MNIST, 1.0, 2), StepEvent(MNIST, 2.0, 4))


def test_a_level_for_each_of_93750_steps_takes_a_few_hundred_curves():
    events = [StepEvent(MNIST, 1.5 * 0.8 ** (k / 93750)) for k in range(93750)]
    with work() as done:
        value = epsilon(events, 1e-5, "rdp").value
    assert done["curves"] <= 512
    few = geometric(1.5, 1.2, 125, 750)  # each bucket charged at its largest noise
    assert value > epsilon(few, 1e-5, "rdp").value
    assert value == pytest.approx(epsilon(few, 1e-5, "rdp").value, rel=5e-3)
