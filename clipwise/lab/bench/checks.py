"""What the checks of the edges cost over a run of 200 steps, its first step and `attach` included: what they add (added.py), and
the time spent in them.

The target is judged by what they add: a run with them, beside one without. The time spent in them is the sum of clocks:

Every function that only checks (the look at collate and model, the proof of the loss, the watch on state, `p.grad`, processes,
parameters and precision) is replaced by itself with a clock around it, the outermost of nested ones counting; so each is
counted whole, with the clock's own time. The look at the model is among them, although it also finds out which dimension is the
batch. What is not timed is loading data.

Steps, `attach` and the checks of the first step are timed in CPU time of one thread, which a busy machine leaves nearly alone. To
ask for it takes as long as many a check of a later step: these have the wall clock, and their median over the steps counts.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import wraps
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clipwise import __version__, dropin, guards, run
from clipwise.lab.bench import added
from clipwise.lab.bench.machine import machine, version
from clipwise.lab.bench.peers import LEARNING_RATE, NOISE_MULTIPLIER, THRESHOLD
from clipwise.lab.bench.workloads import WORKLOADS, Workload
from clipwise.norms import bookkeeping
from clipwise.norms.look.watch import Members, Watch
from clipwise.norms.loss import proof, witness
from clipwise.norms.record import recording, tape
from clipwise.norms.record.unreleased import HeldBack

STEPS = 200  # of a run: what the target is stated for
STEPS_OF_AN_EPOCH = 20  # short ones: buffers are gone through by their bits at each end
RUNS = 3  # of a model; the one with the median share counts
SECONDS = 6.0  # of a run at most, roughly: a model with slower steps takes fewer, and the median stands for the rest
TARGET = 0.01  # of the run's time
MODELS = (
    "small-cnn-b64",
    "tabular-b64",
    "small-cnn-b256",
    "cnn-b64",
    "cnn-b512",
    "bag-of-words-b256",
    "bilstm-b64",
    "transformer-b32",
    "resnet18-stem7-b64",
)

_HOW = f"""\
What the checks of the edges (docs/threat_model.md) cost over `attach` and {STEPS} private steps.

*Added*: two runs on the same batches take their steps in turns, in one process, one of them with everything that only checks taken out
(by the bench alone; what the look at the model finds is handed to it). What the other takes longer, as a share of its time, loader
included, is what the target of 1 % is about, because that is what a user would get back. *Clocked*: each function that checks has a
clock around it and counts whole, clock included, the first look among them, although it also finds the batch dimension; as a share of
the steps without the loader. CPU time of one thread; {RUNS} runs a model, the median one. The 2nd, 4th, 8th ...
step, at which more is looked at, count as they were, the median of the others for the rest. Models with slow steps take fewer of them
("steps in turns"); of a few slow steps *added* to a later one is mostly noise, and *clocked* says more.
"""

# What it is called in the table; where the functions are; their names.
_CHECKS: tuple[tuple[str, Any, str], ...] = (
    ("collate", run, "check_collate"),
    ("model", bookkeeping.Bookkeeping, "_run_probe _is_new _note_outputs _refuse_other_rows"),
    ("loss", proof, "reach"),
    ("loss", proof.LossProof, "is_known judge _refuse_shape _refuse_shared _verify _hear_witness"),
    ("loop", witness.Witness, "__init__ start stop leave pause go_on _take_down _look_for_numbers"),
    ("gradients", bookkeeping.Bookkeeping, "_refuse_gradient"),
    ("p.grad", HeldBack, "put take clear"),
    ("state", Watch, "begin check end"),
    ("state", Members, "__init__ same_tensors same_structure modes"),
    ("parameters", dropin.Private, "_refuse_changed_parameters"),
    ("parameters", bookkeeping.Bookkeeping, "_refuse_changed_model"),
    ("process", guards.Whereabouts, "begin end refuse_elsewhere"),
    ("process", guards, "_refuse_second_optimizer through_hooks refuse_claimed refuse_model"),
    ("precision", recording.Pass, "exact_products"),
    ("precision", tape, "exact_products"),
)


class Clock:
    """Seconds by kind of check since the last `read`."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._inside = False
        self.now: Callable[[], float] = time.thread_time

    def around(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            start = self.now()
            try:
                return function(*args, **kwargs)
            finally:
                self._seconds[kind] += self.now() - start
                self._inside = False

        return timed

    def read(self) -> dict[str, float]:
        seconds, self._seconds = self._seconds, defaultdict(float)
        return dict(seconds)


@contextmanager
def clocked() -> Iterator[Clock]:
    """Every check with a clock around it, for runs that are made in this block."""
    clock = Clock()
    places = [(kind, owner, name) for kind, owner, names in _CHECKS for name in names.split()]
    plain = [(owner, name, getattr(owner, name)) for _, owner, name in places]
    for (kind, owner, name), (_, _, function) in zip(places, plain, strict=True):
        setattr(owner, name, clock.around(kind, function))
    try:
        yield clock
    finally:
        for owner, name, function in plain:
            setattr(owner, name, function)


@dataclass
class Timings:
    rows: list[dict[str, Any]]
    versions: dict[str, str]
    machine: dict[str, Any]


def measure(models: Sequence[str], progress: Callable[[str, float], None], steps: int = STEPS) -> Timings:
    rows = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for i, model in enumerate(models):
            each = []
            for turn in range(RUNS):
                progress(model, (i + turn / RUNS) / len(models))
                each.append(_one_run(model, steps))
            each = [{**row, **_added(model, row["step_ms"], steps)} for row in each]
            rows.append(sorted(each, key=lambda row: row["added"])[RUNS // 2])
    finally:
        torch.set_num_threads(threads)
    progress("done", 1.0)
    versions = {"clipwise": __version__, "python": platform.python_version(), "torch": version("torch")}
    return Timings(rows, versions, machine())


def _attached(
    workload: Workload, model: nn.Module, seed: int | None = None
) -> tuple[nn.Module, torch.optim.Optimizer, dropin.Private]:
    """On records enough for an epoch of some steps, drawn by coins, so that batches vary as they do in training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    records = TensorDataset(*(x.repeat(STEPS_OF_AN_EPOCH, *[1] * (x.dim() - 1)) for x in workload.batch()))
    loader = DataLoader(records, batch_size=workload.rows)
    options = {"noise_multiplier": NOISE_MULTIPLIER, "threshold": THRESHOLD, "epochs": STEPS, "seed": seed}
    return model, optimizer, dropin.attach(model, optimizer, loader, **options)


def _added(name: str, step_ms: float, steps: int) -> dict[str, Any]:
    """With the checks and without, side by side."""
    some = max(3, min(steps, int(SECONDS / 2e-3 / step_ms)))
    workload = WORKLOADS[name]
    checked, bare = added.added(workload.model, lambda model: _attached(workload, model, seed=0)[1:], some)
    later = statistics.median(a - b for a, b in zip(checked[1:], bare[1:], strict=True))
    return {
        "added": added.share(checked, bare, steps),
        "added_at_first_ms": 1e3 * (checked[0] - bare[0]),
        "added_a_later_step_us": 1e6 * later,
        "steps_in_turns": some,
    }


def _one_run(name: str, steps: int) -> dict[str, Any]:
    with clocked() as clock:
        model, optimizer, private = _attached(WORKLOADS[name], WORKLOADS[name].model())
        checks, took = [clock.read()], []
        batches = (batch for _ in range(1 + steps // STEPS_OF_AN_EPOCH) for batch in private.loader)
        for x, y in islice(batches, steps):
            start = time.thread_time()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            took.append(time.thread_time() - start)
            checks.append(clock.read())  # those while a batch was loaded count, too
            clock.now = time.perf_counter
            if len(took) > 3 and sum(took) > SECONDS:
                break
        private.detach()
    early, later = checks[:2], checks[2:]
    kinds = sorted({kind for each in checks for kind in each})
    first = {kind: sum(each.get(kind, 0.0) for each in early) for kind in kinds}
    typical = {kind: statistics.median(each.get(kind, 0.0) for each in later) for kind in kinds}
    whole = took[0] + (steps - 1) * statistics.median(took[1:])
    each = {kind: [first[kind], *[step.get(kind, 0.0) for step in later]] for kind in kinds}
    share = {kind: added.over_a_run(each[kind], steps) / whole for kind in kinds}
    return {
        "model": name,
        "steps": steps,
        "step_ms": 1e3 * statistics.median(took),
        "first_step_ms": 1e3 * took[0],
        "checks_at_first_ms": 1e3 * sum(first.values()),
        "checks_a_later_step_us": 1e6 * sum(typical.values()),
        "share": sum(share.values()),
        "share_by_kind": share,
        "first_ms_by_kind": {kind: 1e3 * seconds for kind, seconds in first.items()},
        "later_us_by_kind": {kind: 1e6 * seconds for kind, seconds in typical.items()},
        "target": TARGET,
    }


COLUMNS = [
    "model",
    "step, ms",
    "steps in turns",
    "added at attach and first step, ms",
    "added to a later step, us",
    "added to the run",
    "clocked at attach and first step, ms",
    "clocked in a later step, us",
    "clocked, of the run",
]


def cells(timings: Timings) -> list[list[str]]:
    return [
        [
            row["model"],
            f"{row['step_ms']:.2f}",
            str(row["steps_in_turns"]),
            f"{row['added_at_first_ms']:.1f}",
            f"{row['added_a_later_step_us']:.0f}",
            f"{row['added']:.2%}" + (" ok" if row["added"] <= row["target"] else " NO"),
            f"{row['checks_at_first_ms']:.1f}",
            f"{row['checks_a_later_step_us']:.0f}",
            f"{row['share']:.2%}",
        ]
        for row in timings.rows
    ]


def markdown(timings: Timings, command: str) -> str:
    versions = ", ".join(f"{name} {each}" for name, each in timings.versions.items())
    where = f"{timings.machine['cpu']}, {timings.machine['cores']} cores, 1 thread, {timings.machine['system']}"
    lines = [COLUMNS, ["---"] * len(COLUMNS), *cells(timings)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    made = f"Made by `{command}` on {date.today().isoformat()}. {versions}; {where}."
    return f"# What the checks cost\n\n{made}\n\n{_HOW}\n{table}\n"
