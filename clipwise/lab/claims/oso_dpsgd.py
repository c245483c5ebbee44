"""Paper 003, OSO-DPSGD: the ratio 7.124, line 13 of Algorithm 1, and the runs over seeds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from clipwise.accounting.calibrate import calibrate
from clipwise.accounting.joint import gradient_share, joint_noise_multiplier
from clipwise.lab.claims.claim import Claim, Setting

PAPER = "003"
TITLE = "Online sensitivity optimization in differentially private learning"

_DELTA = 1e-5  # not printed
_MNIST = Setting("MNIST", 60_000, 512, 10, _DELTA)
_FASHION = Setting("Fashion MNIST", 60_000, 512, 10, _DELTA)
_AG_NEWS = Setting("AG News", 120_000, 512, 10, _DELTA)
_TABLES = {
    "Table 2": (_MNIST, (3.0, 5.0, 7.0, 9.0)),
    "Table 3": (_FASHION, (1.0, 2.0, 3.0, 4.0)),
    "Table 4": (_AG_NEWS, (3.0, 5.0, 7.0, 9.0)),
}
_GRID, _SEEDS = 7, 5
_INCREASE = 1.01  # nu_g over nu, "a 1 % increase"
_RATIO = 7.124  # nu_q over nu, as printed; exactly (1 - 1.01^-2)^(-1/2)

_ASSUMED = " The delta is not printed; 1e-5 is taken."
_WHY_RATIO = (
    "Stands: multipliers of 1.01 nu and 7.124 nu on one batch are one query with nu (the pair meant is that of "
    "the same batch, where Proposition 1 writes the previous one for q); the honest columns are one run at "
    "epsilon 3." + _ASSUMED
)
_WHY_LINE_13 = (
    "Line 13 adds the noise nu_g to the unit vectors where the analysis has nu_q = 7.124 nu: taken literally, "
    "both queries have 1.01 nu and together 0.714 nu." + _ASSUMED
)
_WHY_SEEDS = (
    "Each configuration runs with five seeds on the same data, and the runs with different seeds are not counted; "
    "the honest columns count them (with nu_q in line 13)." + _ASSUMED
)


def ratio(increase: float) -> float:
    """nu_q / nu such that nu_g is `increase` times nu."""
    return 1 / math.sqrt(1 - increase**-2)


def rows() -> list[Callable[[], Claim]]:
    found: list[Callable[[], Claim]] = [_seven, functools.partial(_line_13, "Algorithm 1, line 13", _MNIST, 3.0, 1)]
    for table, (setting, epsilons) in _TABLES.items():
        for epsilon in epsilons:
            found.append(functools.partial(_line_13, f"{table}, line 13 as printed", setting, epsilon, _GRID))
    for method, grid in (("Online", _GRID), ("FixedThreshold", _GRID**2)):
        found += [functools.partial(_seeds, method, grid, epsilon) for epsilon in (3.0, 9.0)]
    return found


@functools.lru_cache(maxsize=64)
def _nu(setting: Setting, epsilon: float, runs: int) -> float:
    """The budget is for the whole grid: `runs` configurations composed, by RDP."""
    return calibrate(epsilon, setting.delta, setting.rate, runs * setting.steps, "rdp")


def _seven() -> Claim:
    found, nu = ratio(_INCREASE), _nu(_MNIST, 3.0, 1)
    joint = joint_noise_multiplier([_INCREASE * nu, _RATIO * nu])
    inputs = {
        **_MNIST.inputs(),
        "delta_is": "assumed",
        "published_is": "nu_q / nu for nu_g = 1.01 nu",
        "nu": nu,
        "nu_g": gradient_share(nu, [found * nu]),
        "joint_nu": joint,
    }
    row = "nu_q / nu at a 1 % larger nu_g"
    return Claim(PAPER, "Privacy Analysis", row, inputs, _RATIO, found, *_MNIST.honest(joint), _WHY_RATIO)


def _line_13(table: str, setting: Setting, claimed: float, runs: int) -> Claim:
    nu = _nu(setting, claimed, runs)
    literal = joint_noise_multiplier([_INCREASE * nu] * 2)
    inputs = {
        **setting.inputs(),
        "delta_is": "assumed",
        "runs": runs,
        "nu": nu,
        "nu_g": _INCREASE * nu,
        "joint_nu": literal,
    }
    recomputed = setting.honest(nu, runs=runs).rdp
    honest = setting.honest(literal, runs=runs)
    row = f"{setting.dataset}, epsilon {claimed:g}"
    return Claim(PAPER, table, row, inputs, claimed, recomputed, *honest, _WHY_LINE_13)


def _seeds(method: str, grid: int, claimed: float) -> Claim:
    nu = _nu(_MNIST, claimed, grid)
    inputs = {**_MNIST.inputs(), "delta_is": "assumed", "runs_counted": grid, "runs": grid * _SEEDS, "nu": nu}
    recomputed = _MNIST.honest(nu, runs=grid).rdp
    honest = _MNIST.honest(nu, runs=grid * _SEEDS)
    row = f"{method}, MNIST, epsilon {claimed:g}"
    return Claim(PAPER, "Experiments, five seeds", row, inputs, claimed, recomputed, *honest, _WHY_SEEDS)


def introduction() -> str:
    found, joint = ratio(_INCREASE), joint_noise_multiplier([_INCREASE, _INCREASE])
    return f"""\
**7.124.** Two Gaussian queries on one batch are one, with nu^-2 = nu_g^-2 + nu_q^-2. For nu_g = 1.01 nu this gives
nu_q = nu / sqrt(1 - 1.01^-2) = {found:.4f} nu: the figure stands. The pair that is released together is that of the
same batch B_t; Proposition 1 writes B_(t-1) for q. Using the stored q of the step before in the update of C is
post-processing, and free.

**Line 13.** Algorithm 1 draws the noise of the unit vectors from N(0, nu_g^2), with the gradient's multiplier, where
lines 1 and 2 and the analysis have nu_q. Taken literally both queries have the multiplier 1.01 nu, and together
1.01 nu / sqrt(2) = {joint:.4f} nu. It reads like a slip of the index; a program that follows the listing pays for it
all the same. Clipwise's `oso` uses nu_q.

**Batches.** Line 4 draws a batch of fixed size. The honest columns are for Poisson batches; with fixed-size ones the
neighbours replace a record, and both sensitivities double.

**Seeds.** The budget is for the whole grid (seven learning rates for Online, seven by seven for FixedThreshold), and
each configuration runs with five seeds, which are not counted. All of them read the same data, and their averages are
published.

delta is not printed; 1e-5 is taken throughout.
"""
