"""How long tight accounting takes: ours beside dp-accounting and prv-accountant, in one process, in CPU seconds.

Every library composes the same Poisson-subsampled Gaussian steps and answers the same question, epsilon at delta; what
it answers stands beside the time. Caches of ours are emptied before each measurement. Imports are not timed.
"""

from __future__ import annotations

import importlib.util
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from statistics import median
from typing import Any

from clipwise import __version__
from clipwise.accounting import StepEvent, epsilon, pld, rdp
from clipwise.lab.bench.machine import machine, version

RATE, DELTA = 64 / 60000, 1e-5  # of a batch of 64 from MNIST
FIRST = 1.4929  # noise multiplier: that of a published run on MNIST, epsilon 1 by RDP (docs/claims.md)
OURS, GOOGLE, PRV = "clipwise", "dp-accounting", "prv-accountant"
_REPEATS = 3  # of ours, which is quick; the median counts
_GRID = 1e-4  # of dp-accounting: its default, and about what these cases need
_PRV_ERROR = {"eps_error": 0.01, "delta_error": 1e-8}

_HOW = f"""\
All cases: Poisson sampling at rate 64 / 60000, delta {DELTA:g}, first noise multiplier {FIRST}; "levels" are the papers'
"linear" schedule, sigma_e = sigma_0 0.99^(e/2), over 100 epochs, in so many pieces. CPU seconds of one process, imports
not counted; ours is the median of {_REPEATS} with empty caches, the others ran once. "x ours" is the time over ours for the
same case.

- **{OURS}**: the tight (PLD) accountant, an upper bound, about 0.1 % above the truth; from 512 levels on, levels are
  grouped pessimistically.
- **{GOOGLE}**: `PLDAccountant`, pessimistic, grid {_GRID:g}.
- **{PRV}**: its upper bound with eps_error {_PRV_ERROR["eps_error"]:g}, delta_error {_PRV_ERROR["delta_error"]:g}.
"""


@dataclass(frozen=True)
class Case:
    name: str
    levels: int
    each: int  # steps of a level
    skipped: dict[str, str] = field(default_factory=dict)  # library -> why it is not run

    @property
    def noises(self) -> list[float]:
        return [FIRST * 0.99 ** (50 * k / self.levels) for k in range(self.levels)]


CASES = (
    Case("constant, 1,000,000 steps", 1, 10**6),
    Case("20 levels x 937 steps", 20, 937),
    Case("100 levels x 937 steps", 100, 937, {PRV: "not run: see 20 levels"}),
    Case(
        "1,000 levels x 94 steps",
        1000,
        94,
        {GOOGLE: "not run: see how 100 levels compare with 20", PRV: "not run: see 20 levels"},
    ),
    Case("93,750 levels x 1 step", 93750, 1, {GOOGLE: "not run", PRV: "not run"}),
)
QUICK = (
    Case("constant, 1,000 steps", 1, 1000),
    Case("3 levels x 100 steps", 3, 100, {PRV: "not run: for a quick look"}),
)


def _ours(case: Case) -> float:
    pld._evaluate.cache_clear()
    rdp._curve.cache_clear()
    return epsilon([StepEvent(RATE, noise, case.each) for noise in case.noises], DELTA, "pld").value


def _google(case: Case) -> float:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=_GRID)
    for noise in case.noises:
        step = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(noise))
        accountant.compose(step, case.each)
    return float(accountant.get_epsilon(DELTA))


def _prv(case: Case) -> float:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    steps = [PoissonSubsampledGaussianMechanism(noise_multiplier=n, sampling_probability=RATE) for n in case.noises]
    counts = [case.each] * len(steps)
    accountant = PRVAccountant(prvs=steps, max_self_compositions=counts, **_PRV_ERROR)
    return float(accountant.compute_epsilon(delta=DELTA, num_self_compositions=counts)[2])


_RUN: dict[str, tuple[str, Callable[[Case], float]]] = {
    OURS: ("clipwise", _ours),
    GOOGLE: ("dp_accounting", _google),
    PRV: ("prv_accountant", _prv),
}


@dataclass
class Timings:
    rows: list[dict[str, Any]]
    versions: dict[str, str]
    machine: dict[str, Any]


def measure(cases: Sequence[Case], progress: Callable[[str, float], None]) -> Timings:
    """A row for each case and library."""
    rows: list[dict[str, Any]] = []
    for module, _ in _RUN.values():
        if importlib.util.find_spec(module):
            __import__(module)
    for number, case in enumerate(cases):
        ours = 0.0
        for turn, (library, (module, run)) in enumerate(_RUN.items()):
            progress(f"{case.name}: {library}", (number + turn / len(_RUN)) / len(cases))
            row = {"case": case.name, "levels": case.levels, "steps": case.levels * case.each, "library": library}
            if library in case.skipped or importlib.util.find_spec(module) is None:
                note = case.skipped.get(library, f"not installed: pip install {library}")
                rows.append({**row, "seconds": None, "ratio": None, "epsilon": None, "note": note})
                continue
            seconds, value = _timed(run, case, _REPEATS if library == OURS else 1)
            ours = seconds if library == OURS else ours
            rows.append({**row, "seconds": seconds, "ratio": seconds / ours, "epsilon": value, "note": None})
    progress("done", 1.0)
    names = ("dp-accounting", "prv-accountant", "numpy", "scipy")
    versions = {"clipwise": __version__, "python": platform.python_version(), **{n: version(n) for n in names}}
    return Timings(rows, versions, machine())


def _timed(run: Callable[[Case], float], case: Case, repeats: int) -> tuple[float, float]:
    spent, value = [], 0.0
    for _ in range(repeats):
        start = time.process_time()
        value = run(case)
        spent.append(time.process_time() - start)
    return median(spent), value


COLUMNS = ["case", "library", "CPU seconds", "x ours", "epsilon"]


def cells(timings: Timings) -> list[list[str]]:
    return [
        [row["case"], row["library"], row["note"], "-", "-"]
        if row["note"]
        else [row["case"], row["library"], f"{row['seconds']:.2f}", f"{row['ratio']:.1f}", f"{row['epsilon']:.4f}"]
        for row in timings.rows
    ]


def markdown(timings: Timings, command: str) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in timings.versions.items())
    where = f"{timings.machine['cpu']}, {timings.machine['system']}"
    lines = [COLUMNS, ["---"] * len(COLUMNS), *cells(timings)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    made = f"Made by `{command}` on {date.today().isoformat()}. {versions}; {where}."
    return f"# What tight accounting costs\n\n{made}\n\n{_HOW}\n{table}\n"
