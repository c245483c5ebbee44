"""A step-level audit of the whole private step, through the public API, on a probe whose gradients are known.

The probe is `Linear(d, 1, bias=False)` with loss <w, x_i>: the gradient of record i *is* x_i. Two parts:

**Replay** (no statistics). The same run on neighbours B and B + {x}, with the noise held at zero: for hostile x (huge, at the bound, zero, tiny, NaN,
inf, a duplicate; first, last, alone; split into physical batches) the released sum and every side sum may move by no more than their bounds, and
everything public (noise std, number of draws, ledger, learning rate) must be the same on both sides. A wrong sensitivity is found with certainty.
What the ledger charges must cover all draws of the step together, and stand in it before the first of them: a side query that is noised but not paid
for is found here, and a step that is paid for later. A record alone may not exceed the bound by a bit. Then a second step,
after a first one whose released values were replaced by the same made-up ones on both sides: the method's state must be the same too (it may depend
on the data through released values alone), and the bounds must hold at that state, where thresholds have moved and differ between groups.

**Statistics.** d records 10 C e_j at rate 1/2: coordinate j is shifted by at most C when record j was drawn. The noise's variance (chi-square),
shape (Kolmogorov-Smirnov), the shift, independence between halves, steps and queries, and a distribution-free bound on mu (Clopper-Pearson) are tested
at alpha = 1e-6: 3 % of missing noise is found in a second, a correct step fails once in about 10^5 audits.

A pass is evidence, not proof. Reference: the audits of Nasr et al. 2023 and Steinke et al. 2023, made for single steps of known gradients.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from clipwise.clipping import Method
from clipwise.dropin import Private, attach
from clipwise.noise import GaussianNoise, Noise
from clipwise.types import Cut

ALPHA = 1e-6  # chance that a sound step fails one test by bad luck: small beside the thousands that are run
SLACK = 1e-5  # float32 sums of a few hundred terms
ROUNDED = 8  # records alone: without slack, each exceeds the bound with a probability of about one half
SEED = 20_240_229  # any: an audit gives the same answer twice
EXPECTED = 64.0  # a public constant, far from the realised sizes of the replay

Attach = Callable[..., Private]


class Finding(NamedTuple):
    check: str
    passed: bool
    detail: str


@dataclass
class StepAudit:
    """What was checked and found. `passed` if nothing failed."""

    findings: list[Finding] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.passed]

    def note(self, check: str, passed: bool, detail: str) -> None:
        self.findings.append(Finding(check, bool(passed), detail))


def audit_step(
    method: Method, *, noise_multiplier: float = 1.0, steps: int = 40, width: int = 1500, attach: Attach = attach
) -> StepAudit:
    """Audit the step with this method. `attach` can be given to audit a changed copy of it."""
    audit = StepAudit()
    _replay(audit, method, noise_multiplier, attach)
    _statistics(audit, method, noise_multiplier, steps, width, attach)
    return audit


# -- replay -----------------------------------------------------------------------------------------------------------------


class _Silent(GaussianNoise):
    """Adds nothing, and remembers what was asked for, and how many steps were charged by then."""

    def __init__(self, charged: Callable[[], int]) -> None:
        self.asked: list[tuple[float, tuple[torch.Size, ...]]] = []
        self.sums: list[Tensor] = []
        self.charged_by_then: list[int] = []
        self._charged = charged

    def add(
        self,
        sums: Sequence[Tensor],
        std: float,
        *,
        step: int,  # noqa: ARG002
        cut: Cut | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, ...]:
        self.charged_by_then.append(self._charged())
        self.asked.append((std, tuple(total.shape for total in sums)))
        self.sums.append(torch.cat([total.flatten().double() for total in sums]))
        return tuple(total.clone() for total in sums)


class _MadeUp(_Silent):
    """Gives out made-up answers at the first step, the same whatever the sums are; then as its parent does."""

    def add(self, sums: Sequence[Tensor], std: float, *, step: int, cut: Cut | None = None) -> tuple[Tensor, ...]:
        plain = super().add(sums, std, step=step, cut=cut)
        if step:
            return plain
        generator = torch.Generator().manual_seed(SEED + len(self.asked))
        return tuple(torch.randn(s.shape, generator=generator).to(s) * max(std, 1.0) for s in sums)


class _Replayed(NamedTuple):
    sums: list[Tensor]  # the side queries, then the gradient, before noise
    gradient: Tensor  # p.grad times the expected batch size, and what a method that normalises divides by
    public: dict[str, Any]


def _replay(audit: StepAudit, method: Method, noise_multiplier: float, attach: Attach) -> None:
    width, others = 6, 5
    generator = torch.Generator().manual_seed(SEED)
    directions = torch.nn.functional.normalize(torch.randn(others + 1, width, generator=generator), dim=1)
    lengths = torch.tensor([0.3, 1.0, 2.5, 0.01, 7.0])[:, None]
    base = directions[:others] * lengths
    unit = directions[others]
    hostile = {
        "1000 u": 1000 * unit,
        "u": unit,
        "zero": 0 * unit,
        "1e-30 u": 1e-30 * unit,
        "1e15 u": 1e15 * unit,
        "3e38 u": 3e38 * unit / unit.abs().max(),
        "inf": torch.full((width,), math.inf),
        "NaN": torch.full((width,), math.nan),
        "one NaN": torch.where(torch.arange(width) == 2, math.nan, unit),
        "a duplicate": base[1].clone(),
        "against the rest": -100 * base.sum(0),
    }
    for name, x in hostile.items():
        for place, physical in (("last", None), ("first", None), ("last", 1), ("alone", None)):
            if place == "alone":
                without, with_x = base[:0], x[None]
            else:
                without, with_x = base, torch.cat([x[None], base] if place == "first" else [base, x[None]])
            one, two = (_run(method, some, noise_multiplier, physical, attach)[0] for some in (without, with_x))
            _compare(audit, f"{name}, {place}, physical batch {physical}", method, one, two)
    _check_rounding(audit, method, noise_multiplier, attach)
    later = [(name, base, hostile[name]) for name in ("1000 u", "NaN", "against the rest")]
    # Others of one group alone, and x of another: what a method tells of the groups in a batch shows there.
    group = base[:, 0] > 0
    later += [("the first of its group", base[group == side], base[group != side][0]) for side in (True, False)]
    for name, others_there, x in later:
        both = (others_there, torch.cat([others_there, x[None]]))
        one, two = (_run(method, some, noise_multiplier, None, attach, steps=2)[1] for some in both)
        _compare(audit, f"{name}, at a later step", method, one, two)


def _check_rounding(audit: StepAudit, method: Method, noise_multiplier: float, attach: Attach) -> None:
    """A record alone, whose gradient is clipped: its share may not exceed the bound by a single bit, for which weights are made
    a little smaller than they would have to be."""
    generator = torch.Generator().manual_seed(SEED)
    for record in 1000 * torch.randn(ROUNDED, 1, 6, generator=generator):
        [done] = _run(method, record, noise_multiplier, None, attach)
        excess = float(done.sums[-1].norm()) / done.public["bound"] - 1
        audit.note("rounding", excess <= 0, f"a clipped record alone is {excess:.2e} of the bound above it")


def _run(
    method: Method, records: Tensor, noise_multiplier: float, physical: int | None, attach: Attach, steps: int = 1
) -> list[_Replayed]:
    """Steps on exactly these records: a zero record stands in where there are none, and is never drawn."""
    width, expected = records.shape[1], EXPECTED
    model = nn.Linear(width, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rate = 1.0 if len(records) else 1e-15
    data = TensorDataset(records if len(records) else torch.zeros(1, width))
    private = attach(
        model,
        optimizer,
        DataLoader(data, batch_size=1),
        noise_multiplier=noise_multiplier,
        sample_rate=rate,
        expected_batch_size=expected,
        method=method,
        loss_reduction="sum",
        max_physical_batch=physical,
        seed=SEED,
        epochs=steps,
        groups=lambda batch: (batch[0][:, 0] > 0).long(),
    )
    run, found = private.run, []
    try:
        for step in range(steps):
            noise = run.stepper.noise = (_Silent if steps == 1 else _MadeUp)(lambda: _charged(private).total())
            state, before, shares = run.state.method, _charged(private), run.plan.shares(step)
            for (x,) in private.loader:
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
                if private.stepped:
                    break
            public = {
                "state": {name: _plain(value) for name, value in state._asdict().items()},
                "bound": method.l2_bound(state),
                "draws and their std": noise.asked,
                "ledger": sorted((_charged(private) - before).items()),
                "charged before each draw": [count - before.total() for count in noise.charged_by_then],
                "learning rate": optimizer.param_groups[0]["lr"],
                "declared std": [
                    *(q.noise_multiplier * q.l2_bound for q in shares.sides),
                    shares.gradient * method.l2_bound(state),
                ],
            }
            gradient = model.weight.grad
            released = (
                gradient.flatten().double() * expected * method.unit(state) if gradient is not None else torch.zeros(0)
            )
            found.append(_Replayed(noise.sums, released, public))
    finally:
        private.detach()
    return found


def _charged(private: Private) -> Counter[float]:
    """Noise multiplier -> steps charged with it so far."""
    charged: Counter[float] = Counter()
    for event in private.run.ledger.events():
        charged[event.noise_multiplier] += event.count
    return charged


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def _compare(audit: StepAudit, name: str, method: Method, one: _Replayed, two: _Replayed) -> None:
    bounds = [*(query.l2_bound for query in _queries(method)), one.public["bound"]]
    for kind, bound, a, b in zip(
        [*(q.name for q in _queries(method)), "gradient"], bounds, one.sums, two.sums, strict=True
    ):
        moved = float((b - a).norm())
        audit.note(
            "sensitivity", moved <= bound * (1 + SLACK), f"{kind} moved by {moved:.6g}, bound {bound:.6g} ({name})"
        )
    audit.note(
        "denominator",
        _close(one.gradient, one.sums[-1]) and _close(two.gradient, two.sums[-1]),
        f"p.grad = sum / expected ({name})",
    )
    audit.note(
        "public values",
        one.public == two.public,
        f"the same on both sides ({name}): {_difference(one.public, two.public)}",
    )
    audit.note(
        "post-processing",
        one.public["state"] == two.public["state"],
        f"the method's state is the same on both sides ({name})",
    )
    early = two.public["charged before each draw"]
    audit.note(
        "charged first",
        bool(early) and all(count == 1 for count in early),
        f"steps charged before each draw {early} ({name})",
    )
    asked = [std for std, _ in two.public["draws and their std"]]
    _check_charge(audit, name, asked, bounds, two.public["ledger"])
    audit.note("noise std", asked == two.public["declared std"], f"declared and drawn ({name}): {asked}")
    audit.note("finite", all(bool(s.isfinite().all()) for s in two.sums), f"sums are finite ({name})")


def _check_charge(
    audit: StepAudit, name: str, stds: Sequence[float], bounds: Sequence[float], ledger: Sequence[tuple[float, int]]
) -> None:
    """All draws of a step are one Gaussian release, with the joint multiplier (sum_k (bound_k / std_k)^2)^-1/2."""
    spent = math.sqrt(sum((bound / std) ** 2 if std else math.inf for bound, std in zip(bounds, stds, strict=True)))
    joint = 1 / spent if spent else math.inf
    charged = [multiplier for multiplier, count in ledger for _ in range(count)]
    audit.note(
        "charged",
        len(charged) == 1 and joint >= charged[0] * (1 - 1e-9),
        f"noise multiplier of all draws together {joint:.6g}, charged {charged} ({name})",
    )


def _queries(method: Method) -> tuple:
    from clipwise.clipping import Context

    return method.side_queries(Context(EXPECTED, 1.0, 6, 0, 1.0))


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def _difference(a: dict[str, Any], b: dict[str, Any]) -> str:
    return ", ".join(f"{key}: {a[key]} / {b[key]}" for key in a if a[key] != b[key]) or "equal"


# -- statistics -------------------------------------------------------------------------------------------------------------


def _statistics(
    audit: StepAudit, method: Method, noise_multiplier: float, steps: int, width: int, attach: Attach
) -> None:
    torch.manual_seed(SEED)
    model = nn.Linear(width, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    data = TensorDataset(torch.arange(width))  # record j is 10 C e_j, made from the current C when it is drawn
    expected = float(width // 2)
    private = attach(
        model,
        optimizer,
        DataLoader(data, batch_size=1),
        noise_multiplier=noise_multiplier,
        sample_rate=0.5,
        expected_batch_size=expected,
        method=method,
        loss_reduction="sum",
        seed=SEED,
        epochs=math.ceil(steps / 2),  # two steps an epoch
        groups=lambda batch: batch[0] % 2,
    )
    inside, outside, rows, scales = [], [], [], []
    sides: dict[str, list[Tensor]] = {}
    watch = _Watch(private.run.noise)
    private.run.stepper.noise = watch
    for _ in range(math.ceil(steps / len(private.loader))):
        for (index,) in private.loader:
            state, step = private.run.state.method, private.run.state.step
            bound = method.l2_bound(state)
            std = private.run.plan.shares(step).gradient
            optimizer.zero_grad()
            model(10 * bound * torch.nn.functional.one_hot(index, width).float()).sum().backward()
            optimizer.step()
            released = model.weight.grad
            if released is None:
                raise RuntimeError("a step left no released gradient")
            values = (released.flatten().double() * expected * method.unit(state) / bound / std).numpy()
            there = torch.zeros(width).index_fill_(0, index, 1)
            private.run.world.add_up([there])  # by any of the processes, where several are audited together
            drawn = there.bool().numpy()
            inside.append(values[drawn] * std)  # in units of the bound
            outside.append(values[~drawn] * std)
            scales.append(std)
            rows.append(np.where(drawn, np.nan, values))
            for query, noise in zip(private.run.plan.shares(step).sides, watch.noises[:-1], strict=True):
                sides.setdefault(query.name, []).append(noise / (query.noise_multiplier * query.l2_bound))
            watch.noises.clear()
    private.detach()
    check_noise(audit, "gradient", np.concatenate([row[~np.isnan(row)] for row in rows]))
    _test_shift(audit, np.concatenate(inside), np.concatenate(outside), min(scales))
    _test_independence(audit, rows)
    for name, noises in sides.items():
        check_noise(audit, name, torch.cat(noises).numpy())


class _Watch:
    """Passes on, and keeps what was added (the audit may see it; nobody else can)."""

    def __init__(self, inner: Noise) -> None:
        self._inner = inner
        self.noises: list[Tensor] = []

    def add(self, sums: Sequence[Tensor], std: float, *, step: int, cut: Cut | None = None) -> tuple[Tensor, ...]:
        before = [total.clone() for total in sums]  # noise is added in the sums' own memory
        noised = self._inner.add(sums, std, step=step, **({} if cut is None else {"cut": cut}))
        self.noises.append(torch.cat([(n - s).flatten().double() for n, s in zip(noised, before, strict=True)]))
        return noised


def check_noise(audit: StepAudit, name: str, values: np.ndarray) -> None:
    """Values that should be N(0, 1): enough variance, and the right shape."""
    total = float((values**2).sum())
    low = stats.chi2(len(values)).cdf(total)
    audit.note(
        "noise variance",
        low >= ALPHA,
        f"{name}: std {math.sqrt(total / len(values)):.4f} of what is declared (p {low:.2g})",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shape = stats.kstest(values / values.std(), "norm").pvalue
    audit.note("noise shape", shape >= ALPHA, f"{name}: Kolmogorov-Smirnov p {shape:.2g} over {len(values)} values")


def _test_shift(audit: StepAudit, inside: np.ndarray, outside: np.ndarray, scale: float) -> None:
    """In units of the bound: a drawn record shifts its coordinate by at most 1; and no test tells the two apart better than mu = 1 / scale."""
    error = math.sqrt(inside.var() / len(inside) + outside.var() / len(outside))
    excess = (inside.mean() - outside.mean() - 1) / error
    p = float(stats.norm.sf(excess))
    audit.note(
        "shift",
        p >= ALPHA,
        f"a record moves its coordinate by {inside.mean() - outside.mean():.4f} of the bound (p {p:.2g})",
    )
    false_positives, false_negatives = int((outside > 0.5).sum()), int((inside <= 0.5).sum())
    fpr, fnr = _upper(false_positives, len(outside)), _upper(false_negatives, len(inside))
    mu = max(0.0, float(stats.norm.ppf(1 - fpr) - stats.norm.ppf(fnr)))
    audit.note(
        "privacy bound",
        mu <= 1 / scale,
        f"mu is at least {mu:.3f} with certainty 1 - {ALPHA:g}; claimed {1 / scale:.3f}",
    )


def _upper(count: int, of: int) -> float:
    return 1.0 if count == of else float(stats.beta.ppf(1 - ALPHA / 2, count + 1, of - count))


def _test_independence(audit: StepAudit, rows: list[np.ndarray]) -> None:
    """Noise of one step against the next, and of the first half of the vector against the second."""
    half = len(rows[0]) // 2
    pairs = {
        "steps": (np.concatenate(rows[:-1]), np.concatenate(rows[1:])),
        "halves": (np.concatenate([r[:half] for r in rows]), np.concatenate([r[half : 2 * half] for r in rows])),
    }
    for name, (a, b) in pairs.items():
        usable = ~(np.isnan(a) | np.isnan(b))
        r = float(np.corrcoef(a[usable], b[usable])[0, 1])
        limit = float(stats.norm.isf(ALPHA / 2)) / math.sqrt(usable.sum())
        audit.note("independence", abs(r) <= limit, f"correlation between {name}: {r:.4f}, limit {limit:.4f}")
