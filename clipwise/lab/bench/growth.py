"""How the cost of a private step grows: one line a size, along batch, parameters, layers, words, sequence and split.

Every point is a workload of its own process, on one thread, in CPU time of the process, which others on the machine leave
nearly alone; the methods take turns, as in `clipwise bench`, and the figure is the median of ratios within a round. A few
minutes on one core. Noise is made for every parameter, whether a batch reaches it or not: that is what a large vocabulary pays for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from clipwise.lab.bench.compare import OURS, Comparison, Effort, clocked, started
from clipwise.lab.bench.report import Section, document
from clipwise.lab.bench.workloads import WORKLOADS


class Axis(NamedTuple):
    title: str
    sizes: dict[str, str]  # as the table says it -> workload


AXES = (
    Axis("rows in the batch (784-256-10)", {str(n): f"mlp-204k-b{n}" for n in (1, 8, 64, 512)}),
    Axis(
        "parameters (784-w-10, 64 rows)",
        {f"{795 * width + 10:,}": f"mlp-{795 * width + 10}-b64" for width in (16, 128, 1024, 4096)},
    ),
    Axis("layers (Linear(16, 16) and ReLU, 64 rows)", {str(n): f"deep-{n}-b64" for n in (10, 50, 200, 1000)}),
    Axis("words (Embedding(words, 32), 64 rows of 64)", {f"10^{p}": f"vocabulary-1e{p}-b64" for p in (3, 4, 5, 6)}),
    Axis("tokens in a record (BERT-tiny, 32 rows)", {str(n): f"bert-tiny-{n}-b32" for n in (16, 64, 128, 256)}),
    Axis("rows in a part (784-256-10, 512 rows; over unsplit)", {str(n): f"mlp-by{n}-b512" for n in (64, 16, 4)}),
    Axis("rows in a part (CNN, 512 rows; over unsplit)", {str(n): f"cnn-by{n}-b512" for n in (64, 16, 4)}),
)
# Of a point: all of them take about five minutes of one core.
EFFORT = Effort(seconds=4.0, most=61, least=5, cpu_time=True)
QUICK = Effort(rounds=1, cpu_time=True)
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_HOW = """\
Each figure is the median over interleaved rounds of the ratio of a Clipwise step to the plain step of the same model and batch in the
same round (split batches: to our own step on the whole batch), in CPU time of one thread, with the quartiles. `clipwise.attach`,
fixed threshold, AES noise, ledger on disk; loading data is not timed.
"""


def measure(progress: Callable[[str, float], None], *, quick: bool = False) -> Comparison:
    """With `quick` the first size of each axis, one round: that it runs, and no figure to trust."""
    points = [
        (axis.title, size, name) for axis in AXES for size, name in list(axis.sizes.items())[: 1 if quick else None]
    ]
    comparison = started()
    for i, (axis, size, name) in enumerate(points):
        progress(name, i / len(points))
        workload = WORKLOADS[name]
        figures = clocked(workload, [workload.base, OURS], QUICK if quick else EFFORT, _ONE_THREAD)
        base, ours = figures[workload.base], figures[OURS]
        row: dict[str, Any] = {"axis": axis, "size": size, "model": name, "base": workload.base}
        comparison.rows.append({**row, "base_ms": base.get("time_ms"), **ours})
    progress("done", 1.0)
    comparison.machine["threads"] = 1
    return comparison


def sections(comparison: Comparison) -> list[Section]:
    tables = []
    for axis in AXES:
        cells = [[row["size"], *_figures(row)] for row in comparison.rows if row["axis"] == axis.title]
        what, _, rest = axis.title.partition(" (")
        tables.append(
            Section(axis.title, [what, "unsplit ms" if "unsplit" in rest else "plain ms", OURS, "quartiles"], cells)
        )
    return tables


def _figures(row: dict[str, Any]) -> list[str]:
    if row.get("failed"):
        return ["-", f"failed: {row['failed']}", "-"]
    low, high = row["time_ratio_quartiles"]
    return [f"{row['base_ms']:.2f}", f"{row['time_ratio']:.2f}", f"{low:.2f} to {high:.2f}"]


def markdown(comparison: Comparison, command: str) -> str:
    return document("How the cost of a private step grows", comparison, command, _HOW, sections(comparison))
