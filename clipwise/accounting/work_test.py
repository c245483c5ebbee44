"""The work that accountants do, counted: tests hold a count where a time would depend on the machine."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import pytest

from clipwise.accounting import StepEvent, epsilon, pld, rdp

MNIST = 64 / 60000


@contextmanager
def work():
    """Counts, from empty caches: Renyi curves computed, and points of loss distributions that were transformed."""
    done = Counter()
    transform = pld.fft.rfft

    def counted(values, points):
        done["points"] += points
        return transform(values, points)

    rdp._curve.cache_clear()
    pld._evaluate.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pld.fft, "rfft", counted)
        yield done
    done["curves"] = rdp._curve.cache_info().misses


def test_it_is_counted():
    events = [StepEvent(0.01, 1.0, 10), StepEvent(0.01, 2.0, 10)]
    with work() as done:
        epsilon(events, 1e-5, "rdp")
    assert done == {"curves": 2}
    with work() as done:
        epsilon(events, 1e-5, "pld")
        epsilon(events, 1e-5, "pld")  # from the cache
    assert done["curves"] == 0
    once = done["points"]
    assert once > 1000
    with work() as done:
        epsilon(events, 1e-5, "pld")
    assert done["points"] == once
