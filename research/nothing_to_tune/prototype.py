"""Nothing to tune: the pieces of the automatic run, on the library's own engine, ready to be wired into the plan.

    budget(...)    the noise of the main run, with histogram, race and scores inside the same (epsilon, delta)
    median_norm    the histogram release: J
    Race           a few rates, a few steps each, thrown away; its noised scores choose the rate
    AutoAdam       Adam on released gradients with an average of the weights, whose rate may rise, never fall

Formal guarantee: all that leaves is (1) one Gaussian release of a histogram over all records, l2 sensitivity 1; (2)
`rates * race_steps` sampled Gaussian gradient steps at RACE_NOISE times the main noise; (3) one Gaussian release of
`rates` scores over all records, each in [0, 1], l2 sensitivity sqrt(rates); (4) `steps` sampled Gaussian gradient steps.
`Budget.events` lists them, and the main noise is the smallest with which they stay inside the target together. The
rate, its correction and the average are post-processing. Add/remove-one neighbours; the number of records is public.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor, nn

from clipwise.accounting.calibrate import calibrate_shape
from clipwise.accounting.events import StepEvent

# Each constant was chosen on the development tasks of README.md and has no unit unless it says so.
GUESS = (
    0.77  # first rate = GUESS / sqrt(J T): between 2 / (J sqrt T), which is right for convex models, and 0.3 / sqrt T
)
RATES = 5  # of the race
SPACING = 2.5  # between neighbouring rates; the race spans a factor of 39
CENTRE = 2.0  # middle of the race over the first guess: a short run wants about twice the rate of a long one
RACE = 0.08  # of the main run's steps, for each rate
RACE_NOISE = 3.0  # over the main run's; Adam's best rate hardly depends on the noise, and steps get 9 times cheaper
FACTOR = 0.45  # rate of the main run over the one that won the race
PRIOR = 1.5  # in log rate: how far from the middle the race may lead where the scores say nothing
SOFTNESS = 0.02  # of a score: rates this close are as good as each other
NOISES = 3.0  # ... or this many standard deviations of the scores' noise
HISTOGRAM_SHARE, SCORE_SHARE = 0.01, 0.02  # of the budget, as squares of Gaussian-DP mu
GAIN, REACH, AFTER = 0.02, 0.9, 1 / 3  # of log rate a step; most log rate in all; of the run, from when on
BINS, LOWEST = 60, -10  # half octaves from 2**-10 to 2**20


def gaussian_mu(epsilon: float, delta: float) -> float:
    """mu of the Gaussian mechanism that is exactly (epsilon, delta)."""

    def excess(mu: float) -> float:
        return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2) - delta)

    return float(brentq(excess, 1e-4, 100))


@dataclass(frozen=True)
class Budget:
    noise: float  # multiplier of the main run's gradients
    sample_rate: float
    steps: int
    race_steps: int  # for each rate
    histogram_noise: float  # over l2 sensitivity 1
    score_noise: float  # over l2 sensitivity sqrt(RATES)

    @property
    def events(self) -> list[StepEvent]:
        return _events(
            self.noise, self.sample_rate, self.steps, self.race_steps, self.histogram_noise, self.score_noise
        )


def _events(noise: float, q: float, steps: int, race_steps: int, histogram: float, score: float) -> list[StepEvent]:
    return [
        StepEvent(q, float(noise), steps),
        StepEvent(q, float(RACE_NOISE * noise), RATES * race_steps),
        StepEvent(1.0, float(histogram), 1),
        StepEvent(1.0, float(score), 1),
    ]


def budget(epsilon: float, delta: float, sample_rate: float, steps: int) -> Budget:
    mu = gaussian_mu(epsilon, delta)
    race_steps = max(2, round(RACE * steps))
    histogram, score = (1 / (mu * math.sqrt(share)) for share in (HISTOGRAM_SHARE, SCORE_SHARE))
    noise = calibrate_shape(
        epsilon, delta, lambda sigma: _events(sigma, sample_rate, steps, race_steps, histogram, score)
    )
    return Budget(noise, sample_rate, steps, race_steps, histogram, score)


def histogram_rows(norms: Tensor) -> Tensor:
    """One 1 a record, in the bin of its norm; a norm that is not finite is in no bin."""
    place = (2 * (norms.clamp_min(1e-30).log2() - LOWEST)).floor().nan_to_num(0.0).clamp(0, BINS - 1).long()
    return nn.functional.one_hot(place, BINS).to(norms.dtype) * norms.isfinite()[:, None]


def median_norm(noised: Tensor, noise: float) -> float | None:
    """J from the noised histogram; None where no bin stands out of the noise: then say so, and take J = 1."""
    seen = torch.where(noised < 3 * noise, 0.0, noised)
    if seen.sum() <= 0:
        return None
    place = int((seen.cumsum(0) >= seen.sum() / 2).nonzero()[0])
    return float(2 ** ((place + 0.5) / 2 + LOWEST))


def race_rates(median: float | None, steps: int) -> Tensor:
    middle = CENTRE * GUESS / math.sqrt((median or 1.0) * steps)
    return torch.tensor([middle * SPACING ** (k - (RATES - 1) / 2) for k in range(RATES)], dtype=torch.float64)


def chosen_rate(rates: Tensor, noised_scores: Tensor, score_noise: float, records: int) -> float:
    """The main run's rate: a mean in log rate, weighted by the scores and by a prior around the middle."""
    deviation = score_noise * math.sqrt(RATES) / records
    away = (rates / rates[RATES // 2]).log() / PRIOR
    weights = (noised_scores.double() / records / (SOFTNESS + NOISES * deviation) - away.square() / 2).softmax(0)
    return FACTOR * math.exp(float((weights * rates.log()).sum()))


class AutoAdam(torch.optim.Optimizer):
    """Adam with an average; `p.grad` must be a released gradient whose noise has the given standard deviation.

    The rate may rise by the sign of <gradient, weights - average>: below 0 the run is still going downhill faster than
    the noise pushes it back. It does not fall by that sign, because directions that have converged add to it always, and
    the average takes their noise out anyway.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, *, noise_std: float, steps: int):
        super().__init__(parameters, {"lr": lr})
        self.noise_std, self.steps = noise_std, steps
        self.taken, self.rise = 0, 0.0
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.average = [p.detach().clone() for p in self.weights]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        self.taken += 1
        if self.taken > AFTER * self.steps:
            away = [w - a for w, a in zip(self.weights, self.average, strict=True)]
            along = sum(
                float((w.grad * d).sum()) for w, d in zip(self.weights, away, strict=True) if w.grad is not None
            )
            size = math.sqrt(sum(float(d.square().sum()) for d in away))
            z = along / (size * self.noise_std) if size > 0 else 0.0
            self.rise = min(max(self.rise - GAIN * min(max(z, -1.0), 1.0), 0.0), REACH)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                state["m"].lerp_(p.grad, 0.1)
                state["v"].lerp_(p.grad.square(), 0.01)
                step = (state["m"] / (1 - 0.9**self.taken)) / ((state["v"] / (1 - 0.99**self.taken)).sqrt() + 1e-12)
                p.sub_(group["lr"] * math.exp(self.rise) * step)
        torch._foreach_lerp_(self.average, self.weights, min(1.0, 9 / (self.taken + 8)))


def fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epsilon: float,
    delta: float,
    q: float = 0.1,
    steps: int = 200,
    seed: int = 0,
) -> dict[str, float | None]:
    """The whole run on tensors of a classification task; the model ends with the averaged weights."""
    from clipwise.norms import Bookkeeping

    records, expected = len(x), q * len(x)
    plan = budget(epsilon, delta, q, steps)
    gen = torch.Generator().manual_seed(seed)
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
    first = [p.detach().clone() for p in model.parameters()]

    def tapes(rows: Tensor) -> Iterable:
        for part in rows.split(512):
            engine.open(len(part))
            nn.functional.cross_entropy(model(x[part]), y[part], reduction="sum").backward()
            yield engine.close()

    def released(noise: float) -> None:
        rows = (torch.rand(records, generator=gen) < q).nonzero()[:, 0]
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for tape in tapes(rows) if len(rows) else ():
            for total, part in zip(sums, tape.weighted_sum(1 / (tape.norms + 0.01), last=True), strict=True):
                total += part
        for p, total in zip(model.parameters(), sums, strict=True):
            p.grad = (total + noise * torch.randn(p.shape, generator=gen)) / expected

    def restart() -> None:
        with torch.no_grad():
            for p, w in zip(model.parameters(), first, strict=True):
                p.copy_(w)

    def run(rate: float, noise: float, steps: int) -> AutoAdam:
        restart()
        optimizer = AutoAdam(model.parameters(), rate, noise_std=noise / expected, steps=max(steps, plan.steps))
        engine.install()
        for _ in range(steps):
            released(noise)
            optimizer.step()
        engine.remove()
        with torch.no_grad():
            for p, a in zip(model.parameters(), optimizer.average, strict=True):
                p.copy_(a)
        return optimizer

    engine.install()
    counts = torch.zeros(BINS)
    for tape in tapes(torch.arange(records)):
        counts += histogram_rows(tape.norms).sum(0)
    engine.remove()
    median = median_norm(counts + plan.histogram_noise * torch.randn(BINS, generator=gen), plan.histogram_noise)
    rates = race_rates(median, steps)
    scores = []
    for rate in rates.tolist():
        run(rate, RACE_NOISE * plan.noise, plan.race_steps)
        with torch.no_grad():
            scores.append(float((model(x).argmax(1) == y).sum()))
    noised = torch.tensor(scores) + plan.score_noise * math.sqrt(RATES) * torch.randn(RATES, generator=gen)
    rate = chosen_rate(rates, noised, plan.score_noise, records)
    done = run(rate, plan.noise, steps)
    return {"J": median, "rate": rate, "rise": done.rise, "noise": plan.noise}


if __name__ == "__main__":
    import tasks

    from clipwise.accounting.bound import epsilon as epsilon_of

    torch.set_num_threads(1)
    for name in ("digits",):
        task = tasks.load(name)
        for target in (1.0, 3.0, 8.0):
            spent = epsilon_of(budget(target, 1e-5, 0.1, 200).events, 1e-5, "best").value
            model = task.build(0)
            found = fit(model, task.x, task.y, epsilon=target, delta=1e-5)
            accuracy = 100 * float((model(task.xt).argmax(1) == task.yt).float().mean())
            print(name, f"target {target:g} spent {spent:.4f} test {accuracy:.1f} %", found)
