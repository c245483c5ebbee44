from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from clipwise.accounting import StepEvent
from clipwise.accounting.events import merge
from clipwise.types import BadArgument


def test_accounting_does_not_import_torch():
    code = "import sys, clipwise.accounting; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sample_rate", 0),
        ("sample_rate", 1.5),
        ("sample_rate", float("nan")),
        ("sample_rate", "0.1"),
        ("noise_multiplier", -1),
        ("noise_multiplier", float("nan")),
        ("noise_multiplier", float("inf")),
        ("count", -1),
        ("count", 1.5),
        ("count", True),
    ],
)
def test_refuses_what_is_out_of_range(field, value):
    good = {"sample_rate": 0.1, "noise_multiplier": 1.0, "count": 1}
    with pytest.raises(BadArgument, match=field):
        StepEvent(**{**good, field: value})


def test_numbers_become_plain_python():
    odd: list[Any] = [np.float32(0.5), 5, np.int64(3)]
    event = StepEvent(*odd)
    assert [type(x) for x in (event.sample_rate, event.noise_multiplier, event.count)] == [float, float, int]
    assert event == StepEvent(0.5, 5.0, 3)


def test_merge_adds_counts_and_drops_nothing_else():
    events = [StepEvent(0.2, 1, 2), StepEvent(0.1, 1), StepEvent(0.2, 1.0, 3), StepEvent(0.1, 2, 0)]
    assert merge(events) == (StepEvent(0.1, 1), StepEvent(0.2, 1, 5))
