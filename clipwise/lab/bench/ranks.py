"""A private step of several processes beside plain DistributedDataParallel with as many: time, and bytes that go between them.

Each world (1, 2, 4 processes by gloo, one thread each) is started several times in turns; in each start the same processes hold
both models and take plain and private steps in turns, from a barrier on. A figure is the median over all rounds of the ratio of
the two neighbouring steps, in CPU time of the first process with its communication thread, which others on the machine leave
nearly alone. Waiting for a network is in neither.

Bytes are counted where they are handed over: DistributedDataParallel's buckets by a communication hook, ours by a count in
the place of torch.distributed's functions while a step runs. It is what one process gives to the collective calls of a step,
not what a ring or a tree of them then sends.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed as group
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clipwise.lab.bench.compare import Comparison, started
from clipwise.lab.bench.report import Section, document
from clipwise.lab.processes import side_by_side
from clipwise.types import ClipwiseError

WORLDS = (1, 2)  # processes: as many as the cores of the machine that this was written on
ROWS = 256  # of the logical batch, whatever the number of processes
WIDTH = 1024  # units of a hidden layer: weights of some megabytes, so that sending them takes time
STARTS, ROUNDS, WARM_UP = 3, 15, 4  # groups of processes; steps of each; of these not counted: about two minutes in all

_HOW = f"""\
A perceptron 784-{WIDTH}-{WIDTH}-10 (1.9 million numbers), a logical batch of {ROWS} records, SGD, `method="fixed"`, noise from AES, ledger in
memory. Each figure is the median over interleaved rounds of the ratio of a private to the plain step before it, in CPU time of the first
process, with gloo, one thread a process; waiting is not in it. "Times faster": than with one process. Bytes: what one process hands to the
collective calls of a step.
"""


class Found(NamedTuple):
    """Of one world: seconds of neighbouring steps, and bytes of one step of each."""

    plain: list[float]
    private: list[float]
    plain_bytes: int
    private_bytes: int


def measure(
    progress: Callable[[str, float], None], *, worlds: tuple[int, ...] = WORLDS, quick: bool = False
) -> Comparison:
    """With `quick` one start and three rounds: that it runs, and no figure to trust."""
    starts, rounds = (1, 3) if quick else (STARTS, ROUNDS)
    found: dict[int, list[Found]] = {size: [] for size in worlds}
    for i in range(starts):
        for k, size in enumerate(worlds):
            progress(f"{size} process{'es' if size > 1 else ''}", (i * len(worlds) + k) / (starts * len(worlds)))
            found[size].append(_start(size, rounds))
    comparison = started()
    comparison.rows += [_row(size, found[size], found[worlds[0]]) for size in worlds]
    comparison.machine["threads"] = 1
    progress("done", 1.0)
    return comparison


def _row(size: int, several: list[Found], alone: list[Found]) -> dict[str, Any]:
    ratios = [b / a for one in several for a, b in zip(one.plain, one.private, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)

    def faster(which: str) -> float:
        """Than one process, start by start."""
        pairs = zip(alone, several, strict=True)
        return statistics.median(
            [statistics.median(getattr(a, which)) / statistics.median(getattr(b, which)) for a, b in pairs]
        )

    return {
        "world": size,
        "plain_ms": 1e3 * statistics.median([t for one in several for t in one.plain]),
        "private_ms": 1e3 * statistics.median([t for one in several for t in one.private]),
        "time_ratio": middle,
        "time_ratio_quartiles": [low, high],
        "plain_faster": faster("plain"),
        "private_faster": faster("private"),
        "plain_bytes": several[0].plain_bytes,
        "private_bytes": several[0].private_bytes,
    }


def _start(size: int, rounds: int) -> Found:
    with tempfile.TemporaryDirectory(prefix="clipwise-bench-ranks-") as folder:

        def command(rank: int) -> list[str]:
            return ["clipwise.lab.bench.ranks", str(rank), str(size), str(rounds), folder]

        ended = dict(side_by_side(range(size), command, size))
    if problem := next((one.error for one in ended.values() if one.result is None), None):
        raise ClipwiseError(f"a process of {size} failed: {problem}")
    return Found(**(ended[0].result or {}))


# -- one of the processes ------------------------------------------------------------------------------------------------


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


class _Plain:
    def __init__(self, rank: int, size: int, x: torch.Tensor, y: torch.Tensor, *, counted: bool = False):
        self.bytes = 0
        self._model = nn.parallel.DistributedDataParallel(_model())
        if counted:  # a model of its own: the hook takes time
            self._model.register_comm_hook(None, lambda _, bucket: self._count(bucket))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._batch = x[rank::size], y[rank::size]

    def _count(self, bucket: Any) -> Any:
        self.bytes += bucket.buffer().nbytes
        return group.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    def step(self) -> None:
        x, y = self._batch
        self._optimizer.zero_grad()
        nn.functional.cross_entropy(self._model(x), y).backward()
        self._optimizer.step()


class _Private:
    def __init__(self, x: torch.Tensor, y: torch.Tensor):
        from clipwise import attach

        self.bytes = 0
        self._model = _model()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        loader = DataLoader(TensorDataset(x, y), batch_size=len(x), shuffle=True)
        self._private = attach(
            self._model, self._optimizer, loader, noise_multiplier=1.0, epochs=100_000, method="fixed", threshold=1.0
        )
        self._batches = self._forever()
        self.prepare()

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from self._private.loader

    def prepare(self) -> None:
        """Loading is nobody's part of a step."""
        self._batch = next(self._batches)

    def step(self) -> None:
        x, y = self._batch
        self._optimizer.zero_grad()
        self._private.backward(nn.functional.cross_entropy(self._model(x), y, reduction="none"))
        self._optimizer.step()

    @contextmanager
    def counting(self) -> Iterator[None]:
        plain = group.all_reduce

        def all_reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.bytes += tensor.nbytes
            return plain(tensor, *args, **kwargs)

        group.all_reduce = all_reduce
        try:
            yield
        finally:
            group.all_reduce = plain


def _timed(step: Callable[[], None]) -> float:
    group.barrier()
    start = time.process_time()
    step()
    return time.process_time() - start


def work(rank: int, size: int, rounds: int, folder: str) -> Found:
    torch.set_num_threads(1)
    store = group.FileStore(str(Path(folder, "store")), size)
    group.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=120))
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(ROWS, 784, generator=generator), torch.randint(0, 10, (ROWS,), generator=generator)
    plain, private = _Plain(rank, size, x, y), _Private(x, y)
    times: tuple[list[float], list[float]] = [], []
    for _ in range(WARM_UP + rounds):
        times[0].append(_timed(plain.step))
        times[1].append(_timed(private.step))
        private.prepare()
    plain = _Plain(rank, size, x, y, counted=True)
    plain.step()
    with private.counting():
        private.step()
    group.barrier()
    group.destroy_process_group()
    return Found(times[0][WARM_UP:], times[1][WARM_UP:], plain.bytes, private.bytes)


# -- tables --------------------------------------------------------------------------------------------------------------


def sections(comparison: Comparison) -> list[Section]:
    columns = [
        "processes",
        "plain DDP ms",
        "private ms",
        "private / plain",
        "quartiles",
        "plain: times faster",
        "private: times faster",
    ]
    columns += ["plain MB a step", "private MB a step", "private / plain"]
    cells = [
        [
            str(row["world"]),
            f"{row['plain_ms']:.1f}",
            f"{row['private_ms']:.1f}",
            f"{row['time_ratio']:.2f}",
            "{:.2f} to {:.2f}".format(*row["time_ratio_quartiles"]),
            f"{row['plain_faster']:.2f}",
            f"{row['private_faster']:.2f}",
            f"{row['plain_bytes'] / 1e6:.3f}",
            f"{row['private_bytes'] / 1e6:.3f}",
            f"{row['private_bytes'] / row['plain_bytes']:.4f}",
        ]
        for row in comparison.rows
    ]
    return [Section("several processes", columns, cells)]


def markdown(comparison: Comparison, command: str) -> str:
    return document("A private step of several processes", comparison, command, _HOW, sections(comparison))


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    _rank, _size, _rounds = map(int, sys.argv[1:4])
    sys.stdout.write(json.dumps(work(_rank, _size, _rounds, sys.argv[4])._asdict()))
    sys.stdout.flush()
