"""What a run costs by the number of its records and of its parameters: sampling, accounting, noise, memory, bytes sent.

Measured up to what one core does in seconds, in CPU time; beyond, computed: the work is one keystream byte a record and six a
parameter, without any term that grows faster, so that the figure of the largest size that was measured is multiplied. Each
figure says which of the two it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from clipwise.accounting import StepEvent, epsilon
from clipwise.keystream import Key
from clipwise.lab.bench.compare import Comparison, started
from clipwise.lab.bench.report import Section, document
from clipwise.noise import GaussianNoise
from clipwise.sampling import FixedSizeSampler, PoissonSampler

RECORDS = tuple(10**p for p in range(5, 11))
PARAMETERS = tuple(10**p for p in range(6, 11))
BATCH, EPOCHS, NOISE_MULTIPLIER = 4096, 10, 1.0  # records, passes, std / bound: a large run as people have them
# Of one core and a few seconds each; fixed-size sampling and noise need 8 and 4 bytes of memory a number.
MOST_POISSON, MOST_FIXED, MOST_NOISE = 10**9, 10**7, 10**8

_HOW = f"""\
CPU time of one thread. `m`: measured; `c`: computed, from the largest size that was measured, in proportion. Expected batch {BATCH}, {EPOCHS} epochs,
noise multiplier {NOISE_MULTIPLIER:g}, delta 1 / (10 records).

What is private costs, beside the plain step ([bench.md](bench.md) has the ratio of the whole step, `clipwise bench growth` how it grows with batch and
model):

- **records**: one byte of keystream and one comparison each, at every step, whatever the batch. Nothing is kept: the coins are tossed in pieces of
  262,144. Every process of a run tosses all of them. Accounting depends on records through sampling rate and number of steps alone.
- **parameters**: one normal number each, at every step. Of several processes each draws all of it, or, with `fully_shard`, its own part.

## What breaks first

- **10^10 records**: the coins, seconds of them for every step. From 10^9 on the batch has to grow with the data, or the
  sampler has to change. One that costs what the *batch* costs draws the gaps between chosen records, or their number and then that many
  different places. Places are exact in integers (64 bits and a rejection). The number, Binomial(n, q), is not a comparison of a few bits with
  a threshold: for a law that is q to the last bit as today's is, (1 - q)^n is needed to about 128 bits (q is a fraction of 2^64, so that it can be
  had with whole numbers), and the distance from the true law, below 2^-90 a step, has to be added to delta. That is not built: the coins
  have the exact law, and serve to 10^9.
- **10^10 records, fixed size**: memory, 8 bytes a record for the draw; from 10^9 on use Poisson sampling.
- **10^10 parameters**: memory before time. Sums are as large as the model in each process ([distributed.md](distributed.md)): 40 GB.
- **accounting**: nothing. Steps of one noise level are one event, whatever their number; what many levels cost is in
  [bench_accounting.md](bench_accounting.md).
- **indices**: a data set is asked for its length and for records by number; both are 64 bits wide. A keystream holds 2^44 bytes a step (1.7 * 10^13
  records; 2.9 * 10^12 parameters), the ledger's steps 2^40.
"""


def measure(progress: Callable[[str, float], None], *, quick: bool = False) -> Comparison:
    """With `quick` nothing above 10^6: that it runs, and no figure to trust."""
    most = 10**6 if quick else 10**10
    comparison = started()
    for name, draw, limit in (
        ("poisson", _poisson, MOST_POISSON),
        ("fixed-size", _fixed_size, MOST_FIXED),
    ):
        progress(f"sampling, {name}", 0.0 if name == "poisson" else 0.4)
        comparison.rows += _grown(name, RECORDS, draw, min(most, limit))
    progress("noise", 0.6)
    comparison.rows += _grown("noise", PARAMETERS, _noise, min(most, MOST_NOISE))
    for records in RECORDS:
        progress(f"accounting, {records:.0e} records", 0.8)
        event = StepEvent(BATCH / records, NOISE_MULTIPLIER, max(1, round(EPOCHS * records / BATCH)))
        start = time.process_time()
        found = epsilon([event], 0.1 / records)
        row: dict[str, Any] = {"what": "accounting", "size": records, "seconds": time.process_time() - start}
        comparison.rows.append({**row, "measured": True, "steps": event.count, "epsilon": found.value})
    comparison.machine["threads"] = 1
    progress("done", 1.0)
    return comparison


def _grown(what: str, sizes: tuple[int, ...], take: Callable[[int], Any], most: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    a_number = 0.0
    for size in sizes:
        measured = size <= most
        if measured:
            took = []
            for _ in range(3 if size <= 10**7 else 1):
                start = time.process_time()
                take(size)
                took.append(time.process_time() - start)
            a_number = min(took) / size
        rows.append({"what": what, "size": size, "seconds": a_number * size, "measured": measured})
    return rows


_KEY = Key.from_seed(0)  # of draws that nobody uses


def _poisson(records: int) -> None:
    PoissonSampler(records, BATCH / records).draw(_KEY, 0)


def _fixed_size(records: int) -> None:
    FixedSizeSampler(records, BATCH / records).draw(_KEY, 0)


def _noise(parameters: int) -> None:
    torch.set_num_threads(1)
    GaussianNoise(_KEY).add([torch.zeros(parameters)], 1.0, step=0)


def sections(comparison: Comparison) -> list[Section]:
    by = {(row["what"], row["size"]): row for row in comparison.rows}
    accounts = {n: by["accounting", n] for n in RECORDS}
    records = [
        [
            _power(n),
            *[_seconds(by[what, n]) for what in ("poisson", "fixed-size")],
            f"{accounts[n]['steps']:,}",
            _seconds(accounts[n]),
            f"{accounts[n]['epsilon']:.3f}",
        ]
        for n in RECORDS
    ]
    parameters = [
        [_power(p), _seconds(by["noise", p]), _bytes(4 * p), _bytes(4 * p), _bytes(8 * p + 16 * p // 64)]
        for p in PARAMETERS
    ]
    return [
        Section(
            "by records, a step",
            ["records", "Poisson sample", "fixed-size sample", "steps", "epsilon computed in", "epsilon"],
            records,
        ),
        Section(
            "by parameters, a step (bytes: c)",
            [
                "parameters",
                "noise",
                "sums in memory",
                "handed to the all-reduce",
                "a process of 64 with fully_shard and Adam, without activations",
            ],
            parameters,
        ),
    ]


def _power(n: int) -> str:
    return f"10^{len(str(n)) - 1}"


def _seconds(row: dict[str, Any]) -> str:
    seconds = row["seconds"]
    shown = f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
    return f"{shown} {'m' if row['measured'] else 'c'}"


def _bytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 10**9 else f"{count / 1e6:.3g} MB"


def markdown(comparison: Comparison, command: str) -> str:
    return document("What scale costs", comparison, command, _HOW, sections(comparison))
