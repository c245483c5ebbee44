"""An audit of a whole automatic run, with everything that it measures before its first step, through the public API.

The probe is that of step_audit.py, with a bias, so that inputs are centred: the gradient of record i is x_i as the layer sees it, and 1. A run is taken on two data sets that differ in one record: a hostile
x, or in its place a record that counts for nothing (its loss is no number), so that their public number is the same. In both, every
noised sum is replaced by the same made-up numbers, and every charge and every draw of noise is written down.

- **Covered**: all draws that follow a charge are one Gaussian release. The sums before their noise may differ between the two runs by
  no more than the charge pays for: sqrt(sum_k (moved_k / std_k)^2) <= 1 / noise multiplier. No bound that the code declares is asked.
- **Charged first**: each draw comes after a charge for its own step.
- **Post-processing**: whatever else is seen (charges, deviations, rates, weights, statement, epsilon) is the same in both runs, bit for bit.
- **Sampling**: x is not in batches more often than the rate that is charged for them allows (a binomial test at alpha = 1e-6).
- **Budget**: the ledger holds what was charged; composed, it is the target epsilon, not above it and hardly below.
- **Noise**: with real noise, that of the releases on all records has the deviation and the shape that are declared.

A pass is evidence, not proof.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from clipwise.accounting import Event, FollowedLedger, Ledger, epsilon
from clipwise.dropin import Private, attach
from clipwise.lab.audit.step_audit import ALPHA, SEED, SLACK, Attach, StepAudit, check_noise
from clipwise.noise import GaussianNoise

TARGET = 3.0  # epsilon: any would do
WIDTH, RECORDS = 6, 24  # numbers of a record, records: few, so that a run takes a tenth of a second
LENGTH = {"expected_batch_size": RECORDS / 2, "epochs": 20}  # 40 steps; the race takes 50 more
HARDLY_BELOW = 0.98  # of the target: calibration stops within its own tolerance
NOISE_RUNS = 6  # with real noise: 65 numbers each that are released of all records

_unit = torch.nn.functional.normalize(torch.arange(1.0, WIDTH + 1), dim=0)
HOSTILE: dict[str, Tensor] = {
    "1000 u": 1000 * _unit,
    "u": _unit,
    "-1e6 u": -1e6 * _unit,
    "1e-30 u": 1e-30 * _unit,
    "3e38 u": 3e38 * _unit / _unit.abs().max(),
    "zero": 0 * _unit,
    "inf": torch.full((WIDTH,), math.inf),
    "one NaN": torch.where(torch.arange(WIDTH) == 2, math.nan, _unit),
}
_PLAIN = ("1000 u", "-1e6 u")  # long and finite: these move every release whose batch holds them
_NOBODY = torch.full((WIDTH,), math.nan)


def audit_run(only: Sequence[str] = tuple(HOSTILE), *, attach: Attach = attach) -> StepAudit:
    """Audit an automatic run with these records of `HOSTILE`. `attach` can be given to audit a changed copy of it."""
    audit, drawn = StepAudit(), Counter[float]()
    held: Counter[float] = Counter()
    cases = [(name, place, counts) for name in only for place, counts in (("last", True), ("first", False))]
    for number, (name, place, counts) in enumerate(cases):
        one, two = (_run(_records(x, place), SEED + number, counts, attach) for x in (_NOBODY, HOSTILE[name]))
        label = f"{name}, {place}, {'right answers' if counts else 'losses'}"
        moved = _compare(audit, label, one, two)
        if name in _PLAIN:
            _tally(moved, two.releases, drawn, held)
            everywhere = [m > 0 for m, release in zip(moved, two.releases, strict=True) if _on_all(release.event)]
            audit.note(
                "moved", len(everywhere) > 1 and everywhere[0], f"the audit sees x in the first release ({label})"
            )
    for rate, count in drawn.items():
        p = float(stats.binom.sf(held[rate] - 1, count, rate))
        audit.note(
            "sampling", p >= ALPHA, f"x in {held[rate]} of {count} batches charged at rate {rate:.4g} (p {p:.2g})"
        )
    _check_measured(audit, attach)
    return audit


# -- one run ----------------------------------------------------------------------------------------------------------------


class Release(NamedTuple):
    step: int
    event: Event
    draws: list[tuple[float, Tensor]]  # deviation, and the sums before noise


class Watch:
    """Every charge and every draw of noise, while it is installed; answers are made up, or have the noise that was asked for."""

    def __init__(self, *, made_up: bool) -> None:
        self.releases: list[Release] = []
        self.uncharged: list[str] = []
        self.noises: list[Tensor] = []  # where it is real, over its deviation, of releases on all records
        self._made_up, self._draws = made_up, 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        plain = {kind: kind.charge for kind in (Ledger, FollowedLedger)}
        plain_add, watch = GaussianNoise.add, self

        def charge(book: Any, step: int, event: Event, **more: Any) -> None:
            plain[type(book)](book, step, event, **more)
            watch.releases.append(Release(step, event, []))

        def add(noise: GaussianNoise, sums: Sequence[Tensor], std: float, *, step: int) -> tuple[Tensor, ...]:
            before = torch.cat([total.flatten().double() for total in sums])
            watch._write_down(before, std, step)
            if watch._made_up:
                return watch._answers(sums, std)
            noised = plain_add(noise, sums, std, step=step)
            if watch.releases and _on_all(watch.releases[-1].event):
                watch.noises.append((torch.cat([total.flatten().double() for total in noised]) - before) / std)
            return noised

        try:
            for kind in plain:
                kind.charge = charge  # type: ignore[method-assign, assignment]
            GaussianNoise.add = add  # type: ignore[method-assign, assignment]
            yield
        finally:
            for kind, own in plain.items():
                kind.charge = own  # type: ignore[method-assign]
            GaussianNoise.add = plain_add  # type: ignore[method-assign]

    def _write_down(self, sums: Tensor, std: float, step: int) -> None:
        self._draws += 1
        if not self.releases or self.releases[-1].step != step:
            self.uncharged.append(f"draw {self._draws}, for step {step}")
        else:
            self.releases[-1].draws.append((std, sums))

    def _answers(self, sums: Sequence[Tensor], std: float) -> tuple[Tensor, ...]:
        """Four deviations above 0, give or take one: bins of a histogram stand out, and every weight keeps moving one way."""
        chance = torch.Generator().manual_seed(SEED + self._draws)
        return tuple((std * (4 + torch.randn(s.shape, generator=chance, dtype=torch.float64))).to(s) for s in sums)


class _Run(NamedTuple):
    releases: list[Release]
    uncharged: list[str]
    public: dict[str, Any]
    budget: dict[str, float]


def _records(x: Tensor, place: str) -> Tensor:
    """As many short gradients as long ones beside x and one between, so that their median depends on x."""
    directions = torch.randn(RECORDS - 1, WIDTH, generator=torch.Generator().manual_seed(SEED))
    lengths = torch.tensor([0.01] + [0.3] * 10 + [1.0] + [7.0] * 11)[:, None]
    others = torch.nn.functional.normalize(directions, dim=1) * lengths
    return torch.cat([x[None], others] if place == "first" else [others, x[None]])


def _run(records: Tensor, seed: int, counts: bool, attach: Attach, *, made_up: bool = True) -> _Run:
    torch.manual_seed(SEED)
    model, watch, rates = nn.Linear(WIDTH, 1), Watch(made_up=made_up), list[float]()
    with watch.installed():
        private = attach(
            model,
            loader=DataLoader(TensorDataset(records), batch_size=5),
            loss=_losses_and_scores if counts else _losses,
            epsilon=TARGET,
            seed=seed,
            **LENGTH,
        )
        try:
            for batch in _all(private):
                private.optimizer.zero_grad()
                private.backward(_losses(model, batch))
                private.optimizer.step()
                rates.append(private.optimizer.param_groups[0]["lr"])
        finally:
            private.detach()
    statement = private.statement()
    charged = Counter[tuple[type, float, float]]()
    for release in watch.releases:
        charged[type(release.event), release.event.sample_rate, release.event.noise_multiplier] += 1
    events = [kind(rate, noise, count) for (kind, rate, noise), count in charged.items()]
    return _Run(
        watch.releases,
        watch.uncharged,
        {
            "charges": [(release.step, release.event) for release in watch.releases],
            "draws": [[(std, sums.shape) for std, sums in release.draws] for release in watch.releases],
            "rates": rates,
            "method": private.run.plan.method,
            "statement": {**statement.to_dict(), "ledger_head": None},
            "weights": [model.weight.detach().tolist(), model.bias.detach().tolist()],
        },
        {
            "of the ledger": private.epsilon(),
            "of the charges": epsilon(events, statement.delta or 0.0, private.run.plan.accountant).value,
            "steps": float(statement.steps),
            "planned": float(statement.planned_steps or 0),
            "charged": float(len(watch.releases)),
        },
    )


def _all(private: Private) -> Iterator[Any]:
    for _ in private.epochs():
        yield from private.loader


def _losses(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0]).squeeze(1)


def _losses_and_scores(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Scores that nobody promised to be in 0..1."""
    losses = _losses(model, batch)
    return losses, 1000 * losses.detach().abs()


# -- two runs beside each other ---------------------------------------------------------------------------------------------


def _compare(audit: StepAudit, label: str, one: _Run, two: _Run) -> list[float]:
    """How far x has moved each release, in deviations of its noise."""
    audit.note(
        "charged first", not two.uncharged, f"no draw without a charge of its own ({label}): {two.uncharged[:3]}"
    )
    differs = [name for name in one.public if one.public[name] != two.public[name]]
    audit.note("post-processing", not differs, f"the same on both sides ({label}): {differs or 'all of it'}")
    budget = two.budget
    same = budget["steps"] == budget["planned"] == budget["charged"]
    audit.note("charges", same, f"the ledger holds what was planned and charged ({label}): {budget}")
    spent = budget["of the ledger"]
    close = math.isclose(spent, budget["of the charges"], rel_tol=1e-6)
    in_budget = HARDLY_BELOW * TARGET <= spent <= TARGET
    audit.note(
        "budget",
        close and in_budget,
        f"epsilon {spent:.6f} of {TARGET:g}, by the charges {budget['of the charges']:.6f}",
    )
    moved = [
        math.sqrt(sum(_moved(*draws) ** 2 for draws in zip(a.draws, b.draws, strict=False)))
        for a, b in zip(one.releases, two.releases, strict=False)
    ]
    for number, (distance, release) in enumerate(zip(moved, two.releases, strict=False)):
        paid = 1 / release.event.noise_multiplier
        audit.note(
            "covered",
            distance <= paid * (1 + SLACK) and bool(release.draws),
            f"release {number} moved by {distance:.6g} deviations, {paid:.6g} are paid for ({label})",
        )
    finite = all(bool(sums.isfinite().all()) for release in two.releases for _, sums in release.draws)
    audit.note("finite", finite, f"sums are finite ({label})")
    return moved


def _moved(one: tuple[float, Tensor], two: tuple[float, Tensor]) -> float:
    """Over the deviation of the noise; without noise any difference is too much."""
    (std, a), (_, b) = one, two
    distance = float((b - a).norm()) if a.shape == b.shape else math.inf
    return distance / std if std else (math.inf if distance else 0.0)


def _on_all(event: Event) -> bool:
    return event.sample_rate == 1


def _tally(moved: Sequence[float], releases: Sequence[Release], drawn: Counter[float], held: Counter[float]) -> None:
    for distance, release in zip(moved, releases, strict=True):
        if not _on_all(release.event):
            drawn[release.event.sample_rate] += 1
            held[release.event.sample_rate] += distance > 0


def _check_measured(audit: StepAudit, attach: Callable[..., Private]) -> None:
    """Of what is measured; that of the steps is step_audit's."""
    noises = []
    for number in range(NOISE_RUNS):
        torch.manual_seed(SEED)
        watch = Watch(made_up=False)
        model = nn.Linear(WIDTH, 1)
        loader = DataLoader(TensorDataset(_records(_unit, "last")), batch_size=5)
        with watch.installed():
            private = attach(model, loader=loader, loss=_losses, epsilon=TARGET, seed=SEED + number, **LENGTH)
            private.detach()
        noises += watch.noises
    audit.note("noise", bool(noises), f"{len(noises)} releases on all records have noise")
    if noises:
        check_noise(audit, "what is measured before training", torch.cat(noises).numpy())
