"""Load: a run of a million steps, a ledger of a million steps, a model of thousands of layers; figures beside targets.

The long run is `fit` itself, on the smallest model there is, with a ledger on the disk, in a process of its own. Growth of
time compares medians of many short blocks, each in processor time and over that of a fixed piece of work done in turns with
its steps, so that other processes decide less; the calls of functions in a step, early and late, are counted as well, which no other
process can touch. Growth of memory compares the resident set after the first tenth, when everything has been allocated
once, with that at the end.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from clipwise.types import ClipwiseError

Show = Callable[[str, float], None]

RECORDS, BATCH = 2000, 2  # 1,000 steps an epoch: the history grows by a line for a thousand steps
_BLOCK = 1000  # steps timed together
_TURNS = 10  # of steps and fixed work in a block: a busy moment of a tenth of a second then meets both
_LAYERS = 5000  # linear layers of one model: ten times the deepest that is trained in practice
_LEDGER_STEPS = 1_000_000  # a run of days
_LEDGER_SECONDS = 3.0  # to read, verify and account for the ledger: the target
_MEGABYTES = 50.0  # of growth over the whole run: the target
_SLOWER = 0.05  # of the last tenth against the first

COLUMNS = ("what", "figure", "target", "reached")


@dataclass(frozen=True)
class Figure:
    what: str
    value: float
    unit: str
    target: float | None = None  # at most; None for a figure that is only told

    @property
    def reached(self) -> bool:
        return self.target is None or self.value <= self.target


def measure(steps: int, show: Show = lambda *_: None) -> list[Figure]:
    figures = []
    parts = (
        ("a long ledger", lambda: ledger(_LEDGER_STEPS, levels=1)),
        ("a long ledger of a noise schedule", lambda: ledger(_LEDGER_STEPS, levels=1000)),
        ("a ledger with other noise at each step", lambda: ledger(_LEDGER_STEPS // 10, levels=_LEDGER_STEPS // 10)),
        (f"{_LAYERS:,} layers", lambda: _elsewhere("layers", _LAYERS)),
        ("a long run", lambda: _elsewhere("run", steps)),
    )
    for number, (name, part) in enumerate(parts):
        show(name, number / len(parts))
        figures += part()
    return figures


def cells(figures: Sequence[Figure]) -> list[tuple[str, str, str, str]]:
    return [
        (
            each.what,
            f"{each.value:,.4g} {each.unit}",
            "" if each.target is None else f"at most {each.target:g} {each.unit}",
            "" if each.target is None else "yes" if each.reached else "no",
        )
        for each in figures
    ]


def markdown(figures: Sequence[Figure], command: str, about: str) -> str:
    lines = [f"Made by `{command}` ({about}).", "", f"| {' | '.join(COLUMNS)} |", "|---|--:|--:|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells(figures))]) + "\n"


def ledger(steps: int, *, levels: int) -> list[Figure]:
    """One that a run of so many steps writes, with so many levels of noise one after the other: read, verified, accounted
    for. (A schedule of noise goes by epochs; a level for each step is the worst that there is.)"""
    from clipwise.accounting import Ledger, StepEvent
    from clipwise.accounting.ledger import block_of

    def event(step: int) -> StepEvent:
        return StepEvent(0.001, 1.0 + step * levels // steps / levels)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        with Ledger.create(path, run={}, block=block_of(steps)) as book:
            start = time.perf_counter()
            for step in range(steps):
                book.charge(step, event(step), upcoming=steps - step, later=event)
            written = time.perf_counter() - start
        start = time.perf_counter()
        Ledger.read(path).epsilon(1e-6, "rdp")
        read = time.perf_counter() - start
        size = path.stat().st_size / 1e6
    what = f"ledger of {steps:,} steps, {levels:,} {'levels' if levels > 1 else 'level'} of noise"
    return [
        Figure(f"{what}: read, verified, accounted for", read, "s", _LEDGER_SECONDS),
        Figure(f"{what}: its size", size, "MB"),
        Figure(f"{what}: to write, a step", written / steps * 1e6, "microseconds"),
    ]


def _elsewhere(part: str, amount: int) -> list[Figure]:
    """In a process of its own, so that memory is its own."""
    command = [sys.executable, "-m", "clipwise.lab.faults.load", part, str(amount)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    if done.returncode:
        raise ClipwiseError(f"the measurement of {part} failed with code {done.returncode}; its messages are above")
    return [Figure(**each) for each in json.loads(done.stdout)]


def long_run(steps: int) -> list[Figure]:
    """`fit` for so many steps."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    import clipwise

    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(RECORDS, 2)
    epochs = -(-steps // (RECORDS // BATCH))
    planned = epochs * (RECORDS // BATCH)
    clock = _Clock(max(1, min(_BLOCK, steps // 100) // _TURNS))
    with tempfile.TemporaryDirectory() as folder:
        clipwise.fit(
            nn.Linear(2, 2),
            TensorDataset(x, (x[:, 0] > 0).long()),
            noise_multiplier=1.0,
            delta=1e-5,
            accountant="rdp",
            epochs=epochs,
            expected_batch_size=BATCH,
            ledger=Path(folder) / "ledger.jsonl",
            checkpoints=Path(folder) / "kept",
            on_step=clock,
            method="fixed",
        )
    more = Figure(
        f"run of {planned:,} steps: calls in the last block more than in the second",
        100 * (clock.calls[1] / clock.calls[0] - 1),
        "%",
        100 * _SLOWER,
    )
    return [*growth(clock.blocks, clock.block, planned), more]


class _Clock:
    """Times the blocks of a run, but for the second and the last, in which it counts the calls of functions."""

    def __init__(self, turn: int):
        self.turn, self.block = turn, turn * _TURNS
        self.blocks: list[Block] = []
        self.calls = [0, 0]  # of the blocks that are watched
        self._steps = self._work = 0.0  # processor time in this block so far
        self._began = time.process_time()

    def __call__(self, values: Mapping[str, Any], planned: int) -> None:
        step = values["step"]
        if step in (self.block, planned - self.block):
            self._watch(int(step > self.block))
        elif step in (2 * self.block, planned):
            sys.setprofile(None)
            self._begin()  # a block that was watched has no time
        elif step % self.turn == 0 and sys.getprofile() is None:
            self._steps += time.process_time() - self._began
            self._work += _fixed_work()
            if step % self.block == 0:
                self.blocks.append(Block(self._steps, self._work, _resident()))
                self._begin()
            self._began = time.process_time()

    def _begin(self) -> None:
        self._steps = self._work = 0.0
        self._began = time.process_time()

    def _watch(self, place: int) -> None:
        def count(*_: object) -> None:
            self.calls[place] += 1

        sys.setprofile(count)


class Block(NamedTuple):
    """Processor time of a block of steps, of the fixed work done in turns with them, and the memory in use then."""

    steps: float
    fixed: float
    memory: float


def growth(blocks: Sequence[Block], length: int, steps: int) -> list[Figure]:
    tenth = max(1, len(blocks) // 10)
    first, last = blocks[:tenth], blocks[-tenth:]

    def median(some: Sequence[Block]) -> float:
        return statistics.median(each.steps / each.fixed for each in some)

    def of_a_step(some: Sequence[Block]) -> float:
        return 1e3 * statistics.median(each.steps for each in some) / length

    what = f"run of {steps:,} steps"
    more = blocks[-1].memory - blocks[tenth - 1].memory
    return [
        Figure(f"{what}: memory at its end above that after a tenth", more, "MB", _MEGABYTES),
        Figure(
            f"{what}: last tenth slower than the first", 100 * (median(last) / median(first) - 1), "%", 100 * _SLOWER
        ),
        Figure(f"{what}: processor time of a step, median of the first tenth", of_a_step(first), "ms"),
        Figure(f"{what}: processor time of a step, median of the last tenth", of_a_step(last), "ms"),
    ]


def _fixed_work() -> float:
    """Processor time of small products and of Python, as a step is made of: a busy machine makes both slower alike."""
    import torch

    start, x = time.process_time(), torch.ones(4, 4)
    for _ in range(1000):
        x = (x @ x).tanh()
    return time.process_time() - start


def layers(count: int) -> list[Figure]:
    """A model as deep as that: attached, a private step, a checkpoint, and gone on from it."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    import clipwise

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(count)))
    data = TensorDataset(torch.randn(64, 4), torch.randint(4, (64,)))
    took: dict[str, float] = {}

    def one_step(folder: Path, resume: Path | None) -> None:
        start = time.perf_counter()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        private = clipwise.attach(
            model,
            optimizer,
            DataLoader(data, batch_size=16),
            noise_multiplier=1.0,
            epochs=5,
            seed=1,
            ledger=folder / "ledger.jsonl",
            resume=resume,
            method="fixed",
        )
        took["go on" if resume else "attach"] = time.perf_counter() - start
        for x, y in private.loader:
            start = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            took["step"] = time.perf_counter() - start
        start = time.perf_counter()
        private.save(folder / "kept")
        took["save"] = time.perf_counter() - start
        private.detach()

    with tempfile.TemporaryDirectory() as name:
        one_step(Path(name), None)
        one_step(Path(name), Path(name) / "kept")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    what = f"{count:,} layers"
    words = {"attach": "to attach", "step": "a private step", "save": "a checkpoint", "go on": "to go on from it"}
    return [
        *(Figure(f"{what}: {words[part]}", took[part], "s") for part in words),
        Figure(f"{what}: memory, at most", peak, "MB"),
    ]


def _resident() -> float:
    """Memory of this process that is in use now, in MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    figures = {"run": long_run, "layers": layers}[sys.argv[1]](int(sys.argv[2]))
    print(json.dumps([{"what": f.what, "value": f.value, "unit": f.unit, "target": f.target} for f in figures]))
