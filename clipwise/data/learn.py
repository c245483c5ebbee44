"""What is learned of an own table before training, with noise and from the same budget: ranges of numbers, and which
categories are frequent.

Formal guarantee. Each release is one vector of counts over *fixed, public* cells, all columns side by side. A record adds 1 to
at most one cell a column: adding or removing it moves the vector by at most sqrt(columns) in l2, whatever it holds. Gaussian
noise of `noise_multiplier` times that bound makes it one Gaussian release on all records (sample rate 1), of the kind that the
run's own steps are. It is charged before its noise exists; all that follows (thresholds, hulls) is post-processing.

| what is learned | cells                                                         | what is made of the noised counts               |
| --------------- | ------------------------------------------------------------- | ----------------------------------------------- |
| ranges, first   | powers of 2 from 2^-20 to 2^40, either sign, and zero         | from the first to the last cell above the noise |
| ranges, second  | 32 equal cells of that range                                  | the same, narrower                              |
| categories      | 4096 buckets of a hash, whatever values there are             | the buckets above the noise                     |

The cells do not depend on the records, so that whether a value occurs at all is never told: a bucket that no record has is
released by chance as any other is. (A histogram over the values that occur would need a share of delta for the one that a
single record brings.) A gap, or what is no number, is in no cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from clipwise.accounting import Event, Ledger, epsilon
from clipwise.accounting.calibrate import calibrate_shape
from clipwise.data.columns import Hashed, read_numbers
from clipwise.data.source import Array
from clipwise.data.table import Table
from clipwise.mechanism import Mechanism

if TYPE_CHECKING:  # `clipwise data` answers without torch
    from clipwise.noise import Noise

# Of the target epsilon: what ranges may cost alone, and categories too. Noise adds up in squares, so that it takes little of the
# budget: training noise grows by 1.6, 0.7 and 0.8 % at epsilon 1, 3 and 8 for 50,000 records in batches of 256 and 10 epochs, by 2.6,
# 2.4 and 2.1 % for 4,000 in batches of 512 and 20 epochs (`clipwise calibrate`; delta 1e-5), and twice that for both.
SHARE = 0.2
NOISE = 8.0  # noise std / l2 bound where no epsilon is stated: two releases cost 0.64 alone, at delta 1e-5
BUCKETS = 4096  # of a hashed column: a hundred categories share none with probability 0.3, and noise stays low
_LEAST, _MOST = -20, 40  # powers of 2
_EQUAL = 32  # cells of the second look
_FALSE = 0.05  # chance that the noise alone brings a cell above the threshold, in all cells of a column together

_EDGES = np.concatenate([-(2.0 ** np.arange(_MOST, _LEAST - 1, -1)), 2.0 ** np.arange(_LEAST, _MOST + 1)])


@dataclass(frozen=True)
class ToLearn:
    """Names of columns, all of one table."""

    ranges: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ranges or self.categories)

    @property
    def releases(self) -> list[str]:
        """By name, in the order in which they are made."""
        return ["scales of the ranges", "ranges"] * bool(self.ranges) + ["frequent categories"] * bool(self.categories)


@dataclass(frozen=True)
class Learned:
    ranges: Mapping[str, tuple[float, float]]
    categories: Mapping[str, tuple[int, ...]]  # column -> buckets of BUCKETS


def planned(what: ToLearn, mechanism: Mechanism, kind: type[Event]) -> list[Event]:
    """What each release costs, before any is made: `SHARE` of the target for ranges, as much for categories."""
    events = []
    for columns, count in ((what.ranges, 2), (what.categories, 1)):
        if columns:
            events += [kind(1.0, _noise(mechanism, kind, count))] * count
    return events


def _noise(mechanism: Mechanism, kind: type[Event], count: int) -> float:
    if not mechanism.private:
        return 0.0
    if mechanism.epsilon is None or mechanism.delta is None:
        return NOISE
    target = SHARE * mechanism.epsilon
    return calibrate_shape(target, mechanism.delta, lambda noise: [kind(1.0, noise, count)], mechanism.accountant)


def learn(what: ToLearn, table: Table, events: Sequence[Event], *, ledger: Ledger | None, noise: Noise) -> Learned:
    """Charge each release, make it, and go on with what was released. Without a ledger the run is not private."""
    todo = list(zip(what.releases, events, strict=True))
    step = 0

    def release(columns: Sequence[str], cells: Callable[[str], Array], width: int) -> tuple[Array, float]:
        nonlocal step
        name, event = todo[step]
        if ledger is not None:
            ledger.charge(step, event, note={"release": f"{name}, of {len(columns)} columns"})
        counts = _counts(columns, cells, width)
        std = event.noise_multiplier * l2_bound(len(columns))
        noised = _noised(counts, std, noise, step)
        step += 1
        return noised, std

    ranges: dict[str, tuple[float, float]] = {}
    if what.ranges:
        values = {name: _numbers(name, table) for name in what.ranges}
        noised, std = release(what.ranges, lambda name: _cells(values[name], _EDGES), len(_EDGES) - 1)
        scales = {name: _hull(row, _EDGES, std) for name, row in zip(what.ranges, noised, strict=True)}
        fine = {name: np.linspace(*scales[name], _EQUAL + 1) for name in what.ranges}
        noised, std = release(what.ranges, lambda name: _cells(values[name], fine[name]), _EQUAL)
        ranges = {name: _hull(row, fine[name], std) for name, row in zip(what.ranges, noised, strict=True)}
    categories: dict[str, tuple[int, ...]] = {}
    if what.categories:
        noised, std = release(what.categories, lambda name: _buckets(name, table), BUCKETS)
        categories = {name: _frequent(row, std) for name, row in zip(what.categories, noised, strict=True)}
    return Learned(ranges, categories)


def l2_bound(columns: int) -> float:
    """Of one record's row: at most one cell of each column."""
    return math.sqrt(columns)


def _counts(columns: Sequence[str], cells: Callable[[str], Array], width: int) -> Array:
    """(columns, width); a cell below 0 is none."""
    found = (cells(name) for name in columns)
    return np.stack([np.bincount(each[each >= 0], minlength=width)[:width] for each in found]).astype(np.float64)


def _noised(counts: Array, std: float, noise: Noise, step: int) -> Array:
    import torch

    (noised,) = noise.add([torch.from_numpy(counts).contiguous()], std, step=step)
    return np.asarray(noised.numpy())


def _numbers(name: str, table: Table) -> Array:
    return read_numbers(name, table.columns[name], gaps=True)


def _cells(values: Array, edges: Array) -> Array:
    """The cell of each number; what lies beyond the ends is in the first or the last, and NaN in none."""
    places = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return np.where(np.isnan(values), -1, places)


def _buckets(name: str, table: Table) -> Array:
    hashed = Hashed(name, BUCKETS)
    return np.array([hashed.bucket(value) for value in table.columns[name]], np.int64)


def threshold(std: float, cells: int) -> float:
    """Counts above it are not noise alone: of so many empty cells one is above it with probability 0.05."""
    return max(0.5, std * NormalDist().inv_cdf((1 - _FALSE) ** (1 / cells)))


def _hull(counts: Array, edges: Array, std: float) -> tuple[float, float]:
    """From the first to the last cell above the noise; all of it where none is, so that a range is always there."""
    above = np.flatnonzero(counts > threshold(std, len(counts)))
    if not len(above):
        if edges is not _EDGES:
            return float(edges[0]), float(edges[-1])
        above = np.array([int(counts.argmax())])  # of the powers of 2 the whole would be of no use
    return float(edges[above[0]]), float(edges[above[-1] + 1])


def _frequent(counts: Array, std: float) -> tuple[int, ...]:
    return tuple(np.flatnonzero(counts > threshold(std, len(counts))).tolist())


def told(what: ToLearn, events: Sequence[Event], delta: float | None) -> list[str]:
    """For the privacy statement, a sentence each; with the epsilon of that part alone."""
    said, rest = [], list(events)
    for columns, count, words in (
        (what.ranges, 2, "ranges of {names}: learned from the training records by two releases of counts"),
        (
            what.categories,
            1,
            f"frequent categories of {{names}}: learned by one release of counts in {BUCKETS} buckets of a hash",
        ),
    ):
        if not columns:
            continue
        own, rest = rest[:count], rest[count:]
        alone = (
            ""
            if delta is None or not own[0].noise_multiplier
            else f". Alone it costs epsilon {_alone(own, delta)} at the same delta"
        )
        said.append(
            f"{words.format(names=', '.join(columns))}, l2 bound {l2_bound(len(columns)):.4g} for all {len(columns)} together, noise multiplier "
            f"{own[0].noise_multiplier:.4g} each, sample rate 1, charged before the first step{alone}"
        )
    return said


def _alone(events: Sequence[Event], delta: float) -> str:
    return f"{math.ceil(epsilon(list(events), delta).value * 1e4) / 1e4:g}"


def recorded(what: ToLearn, events: Sequence[Event]) -> tuple[dict[str, Any], ...]:
    """For preprocessing.json, so that a run that goes on knows what it has charged."""
    return tuple(
        {"release": name, "noise_multiplier": event.noise_multiplier, "sample_rate": event.sample_rate}
        for name, event in zip(what.releases, events, strict=True)
    )
