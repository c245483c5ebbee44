"""What is learned before training: sensitivity by neighbours, the charge before the noise, and twins that are broken."""

import math

import numpy as np
import pytest
import torch

from clipwise.accounting import FixedSizeEvent, StepEvent, epsilon
from clipwise.data import learn as room
from clipwise.data.learn import BUCKETS, ToLearn, l2_bound, learn, planned, threshold
from clipwise.data.table import Table
from clipwise.keystream import Key
from clipwise.mechanism import Mechanism
from clipwise.noise import GaussianNoise

WHAT = ToLearn(("age", "sum"), ("city", "job", "day"))
EVENTS = [StepEvent(1.0, 5.0)] * 2 + [StepEvent(1.0, 7.0)]
STRANGE = [
    {"age": "1e300", "sum": "-1e300", "city": "x" * 1000, "job": "=1+1", "day": "0"},
    {"age": "0", "sum": "-0.0", "city": "Ünïcode", "job": "a", "day": "b"},
    {"age": "inf", "sum": "-inf", "city": "never seen", "job": "never seen", "day": "never seen"},
    {"age": "", "sum": "na", "city": "", "job": "", "day": ""},
    {"age": "2.5", "sum": "1e-9", "city": "a", "job": "a", "day": "a"},
]


class Listening:
    """Noise that adds none, and a ledger: both write down what they hear. What is "released" is the same for every table, so
    that the second look has the same cells."""

    def __init__(self):
        self.heard, self.sums, self.stds = [], [], []

    def charge(self, step, event, note):
        self.heard.append(("charge", step, event, note["release"]))

    def add(self, sums, std, *, step):
        self.heard.append(("noise", step))
        (counts,) = sums
        self.sums.append(counts.clone())
        self.stds.append(std)
        canned = torch.zeros_like(counts)
        canned[:, 3:9] = 1e9
        return (canned,)


def table(records):
    names = ("age", "sum", "city", "job", "day")
    return Table({name: tuple(record[name] for record in records) for name in names})


def some(count=40):
    draw = np.random.RandomState(0)
    return [
        {
            "age": str(draw.rand() * 90),
            "sum": str(draw.randn() * 1e4),
            **{c: draw.choice(list("abc")) for c in ("city", "job", "day")},
        }
        for _ in range(count)
    ]


def ratios(records=None, extra=STRANGE):
    """Over neighbours that differ in one record: how far each release moves, over the noise std per unit of noise multiplier."""
    base = Listening()
    learn(WHAT, table(records or some()), EVENTS, ledger=base, noise=base)
    found = []
    for record in extra:
        other = Listening()
        learn(WHAT, table([*(records or some()), record]), EVENTS, ledger=other, noise=other)
        for a, b, std, event in zip(base.sums, other.sums, base.stds, EVENTS, strict=True):
            moved = math.inf if a.shape != b.shape else float((a - b).norm())
            found.append(moved / (std / event.noise_multiplier))
    return found


def test_one_record_moves_a_release_by_at_most_its_bound():
    found = ratios()
    assert max(found) <= 1 + 1e-12
    assert max(found) == pytest.approx(1)  # and the bound is reached: nothing is wasted
    assert min(found) == 0  # a record of gaps is in no cell


@pytest.mark.parametrize(
    "twin", ["one column's bound", "cells by the values that occur", "a record counted in two cells"]
)
def test_a_broken_twin_is_seen(monkeypatch, twin):
    if twin == "one column's bound":
        monkeypatch.setattr(room, "l2_bound", lambda columns: 1.0)  # noqa: ARG005
    elif twin == "cells by the values that occur":
        plain = room._counts

        def counts(columns, cells, width):
            occurring = max(len(np.unique(cells(name))) for name in columns)
            return plain(columns, cells, width)[:, :occurring]

        monkeypatch.setattr(room, "_counts", counts)
    else:
        plain = room._counts
        monkeypatch.setattr(room, "_counts", lambda *a: plain(*a) + np.roll(plain(*a), 1, axis=1))
    assert max(ratios()) > 1.2


def test_each_release_is_charged_before_its_noise_exists():
    heard = Listening()
    learn(WHAT, table(some()), EVENTS, ledger=heard, noise=heard)
    assert [each[:2] for each in heard.heard] == [(what, step) for step in range(3) for what in ("charge", "noise")]
    assert [each[2] for each in heard.heard[::2]] == EVENTS
    assert heard.stds == [5 * math.sqrt(2), 5 * math.sqrt(2), 7 * math.sqrt(3)]
    assert heard.sums[2].shape == (3, BUCKETS)  # whatever values there are


def test_the_noise_is_there_and_is_that_of_the_event():
    noise = GaussianNoise(Key.from_seed(1))
    plain = np.zeros((3, BUCKETS))
    released = room._noised(plain, 7 * l2_bound(3), noise, 0)
    assert released.std() == pytest.approx(7 * math.sqrt(3), rel=0.03)  # 12,288 draws: 4.7 standard errors


@pytest.mark.parametrize("kind", [StepEvent, FixedSizeEvent])
def test_what_is_planned_costs_its_share(kind):
    mechanism = Mechanism(epsilon=2.0, delta=1e-5, sampling="poisson" if kind is StepEvent else "fixed-size")
    events = planned(WHAT, mechanism, kind)
    assert [type(each) for each in events] == [kind] * 3
    for own in (events[:2], events[2:]):
        assert epsilon(own, 1e-5).value == pytest.approx(0.4, rel=1e-3)
        assert epsilon(own, 1e-5).value <= 0.4
    assert planned(WHAT, Mechanism(epsilon=math.inf), StepEvent)[0].noise_multiplier == 0
    assert planned(WHAT, Mechanism(noise_multiplier=1.0), StepEvent)[0].noise_multiplier == room.NOISE


def learned(records, noise_multiplier, seed=0, what=WHAT):
    events = [StepEvent(1.0, noise_multiplier)] * 3
    return learn(what, table(records), events, ledger=None, noise=GaussianNoise(Key.from_seed(seed)))


def test_ranges_hold_the_bulk_of_the_records_and_little_else():
    draw = np.random.RandomState(1)
    records = [
        {"age": str(1990 + draw.randint(0, 35)), "sum": str(draw.lognormal(8, 1)), "city": "a", "job": "b", "day": "c"}
        for _ in range(3000)
    ]
    found = learned(records, 6.0).ranges
    low, high = found["age"]
    assert 1984 <= low <= 1992  # years: a second look within 1024..2048
    assert 2020 <= high <= 2056
    low, high = found["sum"]
    values = np.array([float(record["sum"]) for record in records])
    assert ((values >= low) & (values <= high)).mean() > 0.9
    assert high < 1e6


def test_without_noise_all_is_found_and_with_all_noise_a_range_is_still_there():
    exact = learned(some(), 0.0)
    hashed = room.Hashed("city", BUCKETS)
    assert exact.categories["city"] == tuple(sorted(hashed.bucket(value) for value in "abc"))
    drowned = learned(some(3), 1000.0)
    assert all(low < high for low, high in drowned.ranges.values())


def test_an_empty_cell_is_above_the_threshold_as_seldom_as_is_said():
    draw = np.random.RandomState(2)
    above = [(draw.randn(BUCKETS) * 3 > threshold(3.0, BUCKETS)).any() for _ in range(400)]
    assert np.mean(above) == pytest.approx(0.05, abs=0.033)  # three standard errors
