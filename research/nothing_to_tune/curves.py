"""Rate curves over the family: private runs side by side, one population a task and seed, three epsilons at once.

    python research/nothing_to_tune/curves.py grid OUT NUMBERS SEEDS     grid and schedules
    python research/nothing_to_tune/curves.py race OUT NUMBERS SEEDS     races: the same rates, smaller batches, more noise

Members of a population share batches and the direction of the noise, so that their differences are those of the settings. One line of
JSON a task and seed.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
import family  # noqa: E402

from clipwise.accounting.calibrate import calibrate_shape  # noqa: E402
from clipwise.accounting.events import StepEvent  # noqa: E402
from clipwise.automatic import rule  # noqa: E402

DELTA, Q, T = 1e-5, 0.1, 200
EPSILONS = (1.0, 3.0, 8.0)
SGD_RATES = tuple(0.01 * 10 ** (k / 2) for k in range(8))
ADAM_RATES = tuple(0.0015 * 2**k for k in range(8))
RATES = tuple(0.001 * 1.7**k for k in range(12))  # of the schedules
SCHEDULES = ("const", "rise", "half", "cosine", "third")
WINDOWS = (1, 3, 8)  # of averages: avg += (k + 1) / (t + k) (w - avg)
LIMIT = 3e5  # numbers of one layer's outputs at once: what a cache holds (4e6 is half as fast)

_KNOWN: dict = {}


def sigma(eps, q=Q, steps=T):
    key = (eps, q, steps)
    if key not in _KNOWN:
        path = Path("/tmp/auto/sigma.json")
        kept = json.loads(path.read_text()) if path.exists() else {}
        if str(key) not in kept:
            kept[str(key)] = calibrate_shape(eps, DELTA, lambda s: [StepEvent(q, s, steps)])
            path.write_text(json.dumps(kept))
        _KNOWN[key] = kept[str(key)]
    return _KNOWN[key]


class Nets:
    """Fully connected nets, R members at once; per-example gradients in closed form."""

    def __init__(self, task, first):
        self.task = task
        self.first = torch.cat([p.flatten() for p in first])
        self.widths = task.widths
        self.chunk = lambda rows: max(1, int(LIMIT / (max(rows, 1) * max(self.widths[1:]))))

    def split(self, w):
        at, layers = 0, []
        for a, b in zip(self.widths, self.widths[1:], strict=False):
            layers.append((w[:, at : at + a * b].view(-1, b, a), w[:, at + a * b : at + a * b + b]))
            at += a * b + b
        return layers

    def act(self, z):
        return z.relu_() if self.task.relu else z.tanh_()

    def forward(self, w, x):
        """(R, B, outputs) and the activations of the layers before."""
        kept, h = [], None
        layers = self.split(w)
        for k, (W, b) in enumerate(layers):
            if k == 0:
                z = torch.matmul(x, W.reshape(-1, x.shape[1]).T).view(len(x), len(w), -1).transpose(0, 1) + b[:, None]
            else:
                z = torch.baddbmm(b[:, None], h, W.transpose(1, 2))
            if k < len(layers) - 1:
                h = self.act(z)
                kept.append(h)
        return z, kept

    def sums(self, w, x, y, weigh):
        """Of each member, the weighted sum of the rows' gradients (R, D); norms are what `weigh` gets, (R, B)."""
        out, kept = self.forward(w, x)
        if self.task.values:
            d = out - y[None, :, None]
        else:
            d = out.softmax(-1)
            d[:, torch.arange(len(y)), y] -= 1
        deltas, layers = [d], self.split(w)
        for k in range(len(layers) - 1, 0, -1):
            h = kept[k - 1]
            d = torch.bmm(d, layers[k][0]) * ((h > 0) if self.task.relu else (1 - h.square()))
            deltas.insert(0, d)
        square = deltas[0].square().sum(-1) * (x.square().sum(1) + 1)
        for d, h in zip(deltas[1:], kept, strict=True):
            square += d.square().sum(-1) * (h.square().sum(-1) + 1)
        c = weigh(square.sqrt())[..., None]
        found = []
        for k, d in enumerate(deltas):
            d = d * c
            W = torch.matmul(d.permute(0, 2, 1).reshape(-1, len(x)), x).view(len(w), -1) if k == 0 else torch.bmm(d.transpose(1, 2), kept[k - 1]).flatten(1)
            found += [W, d.sum(1)]
        return torch.cat(found, 1)

    def norms(self, x, y):
        found = []
        self.sums(self.first[None], x, y, lambda n: found.append(n[0]) or n)
        return found[0]

    def metric(self, w, x, y):
        """Points of each member, and three scores in 0..1: right, probability of the right one, 1 - bounded
        loss; or u / (u + loss) for u = l and l / 8, and a bounded logarithm."""
        rows, step = [], self.chunk(len(x))
        for part in w.split(step):
            out = self.forward(part, x)[0]
            if self.task.values:
                loss = 0.5 * (out[..., 0] - y).square()
                points = (100 * (1 - 2 * loss.mean(1) / y.var(correction=0))).clamp_min(-100)
                right = (self.unit / (self.unit + loss)).mean(1)
                finer = (self.unit / 8 / (self.unit / 8 + loss)).mean(1)
                logs = (1 - (1 + 50 * loss / self.unit).log() / math.log(401)).clamp(0, 1).mean(1)
                rows.append(torch.stack([points, right, finer, logs], 1))
            else:
                right = (out.argmax(-1) == y).float().mean(1)
                loss = F.cross_entropy(out.transpose(1, 2), y.expand(len(part), -1), reduction="none")
                top = math.log(out.shape[-1])
                rows.append(torch.stack([100 * right, right, (-loss).exp().mean(1), (1 - loss / top / 2).clamp(0, 1).mean(1)], 1))
        return torch.cat(rows).nan_to_num(-100)


def scale(schedule, t):
    left = 1 - (t - 1) / T
    return {
        "const": 1.0,
        "rise": 1.0,
        "half": min(1.0, 2 * left),
        "third": min(1.0, 3 * left),
        "cosine": min(1.0, t / 10) * 0.5 * (1 + math.cos(math.pi * (t - 1) / T)),
        "linear": left,
    }[schedule]


def population(task, seed, members, q=Q, at=(T,), on_train=False, windows=WINDOWS):
    """members: dicts with opt, clip (a norm, or None), gamma, lr, sched, sigma. Their figures at steps `at`, of last weights and averages."""
    nets = Nets(task, task.first(seed))
    losses = 0.5 * (nets.forward(nets.first[None], task.x)[0][0, :, 0] - task.y).square() if task.values else torch.ones(1)
    nets.unit = 0.5 * float(losses.quantile(0.8)) if task.values else 1.0
    gen = torch.Generator().manual_seed(7919 * seed + 31 * task.number + 1 + int(1000 * q))
    R, D, B = len(members), len(nets.first), q * task.n
    col = lambda f: torch.tensor([float(f(m)) for m in members])[:, None]
    lr0, adam = col(lambda m: m["lr"]), col(lambda m: m["opt"] == "adam") > 0
    auto, C, gamma = col(lambda m: m["clip"] is None) > 0, col(lambda m: m["clip"] or 1.0), col(lambda m: m.get("gamma", 0.01))
    noise = col(lambda m: m["sigma"] * (m["clip"] or 1.0) / B)
    rising = col(lambda m: m.get("sched") == "rise") > 0
    reach, dead = col(lambda m: m.get("reach", rule.REACH)), col(lambda m: m.get("dead", 0.0))
    b1, b2 = (col(lambda m, k=k: m.get("betas", (0.9, 0.99))[k]) for k in (0, 1))
    w = nets.first.repeat(R, 1)
    w[col(lambda m: m.get("zero", 0))[:, 0] > 0, D - (nets.widths[-2] + 1) * nets.widths[-1] :] = 0.0
    m, v, rise = torch.zeros_like(w), torch.zeros_like(w), torch.zeros(R, 1)
    averages = {k: w.clone() for k in windows}
    figures = {}
    grad_in = torch.where(adam, 1 - b1, 1.0)
    for t in range(1, T + 1):
        rows = torch.nonzero(torch.rand(task.n, generator=gen) < q)[:, 0]
        x, y = task.x[rows], task.y[rows]
        step = nets.chunk(len(rows))
        g = torch.zeros_like(w) if not len(rows) else torch.cat([nets.sums(w[a : a + step], x, y, lambda n, s=slice(a, a + step): torch.where(auto[s], 1 / (n + gamma[s]), (C[s] / n.clamp_min(1e-12)).clamp_max(1)))
                       for a in range(0, R, step)]) / B  # fmt: skip
        g += noise * torch.randn(D, generator=gen)
        if t > rule.AFTER * T and rising.any():
            away = w - averages[8]
            z = (g * away).sum(1, keepdim=True) / (away.norm(dim=1, keepdim=True).clamp_min(1e-12) * noise)
            rise = torch.where(rising, (rise - rule.GAIN * (z + dead).clamp(-1, 1)).clamp(torch.zeros(1), reach), 0.0)
        m.mul_(b1).add_(g * grad_in)
        v.mul_(b2).add_((1 - b2) * g.square())
        factor = torch.tensor([scale(each["sched"], t) if each.get("sched") else 1.0 for each in members])[:, None]
        lr = lr0 * factor * rise.exp()
        down = torch.where(adam, (v / (1 - b2**t)).sqrt() * (1 - b1**t) + 1e-12, 1.0)
        w.addcdiv_(-lr * m, down)
        w.nan_to_num_(0, 1e6, -1e6).clamp_(-1e6, 1e6)
        for k, a in averages.items():
            a.add_(w - a, alpha=min(1.0, (k + 1) / (t + k)))
        if t in at:
            xs = (task.x[:4000], task.y[:4000]) if on_train else (task.xt, task.yt)
            found = {"last": nets.metric(w, *xs), **{f"p{k}": nets.metric(a, *xs) for k, a in averages.items()}}
            figures[t] = {k: [[round(float(e), 5) for e in row] for row in (f if on_train else f[:, :1])] for k, f in found.items()}
    return figures, nets


def mu(eps):
    return rule.gaussian_mu(eps, DELTA)


def gammas(task, nets, eps):
    """Of the library's rule, exact medians."""
    J = float(nets.norms(task.x, task.y).median())
    return J, (rule.gamma_for("values", J, task.n * mu(eps), 1.0) if task.values else 0.01)


def grid_members(task, nets):
    members = []
    for eps in EPSILONS:
        s = sigma(eps)
        J, gamma = gammas(task, nets, eps)
        for clip in (1.0, None):
            members += [dict(kind="grid", eps=eps, opt="sgd", clip=clip, lr=r, sigma=s) for r in SGD_RATES]
            members += [dict(kind="grid", eps=eps, opt="adam", clip=clip, lr=r, sigma=s) for r in ADAM_RATES]
        for sched in SCHEDULES:
            members += [dict(kind="auto", eps=eps, opt="adam", clip=None, gamma=gamma, lr=r, sigma=s, sched=sched) for r in RATES]
        if task.values:
            for over in (0.01 / J, 0.3, 2.0):
                members += [dict(kind=f"gamma {over if over > 0.1 else 0:.1f}", eps=eps, opt="adam", clip=None, gamma=over * J, lr=r, sigma=s, sched="rise") for r in RATES]
    return members


GAMMAS = (0.0, 0.05, 0.1, 0.2, 0.5, 2.0)  # over J; 0 is 0.01


def values_members(task, nets):
    J = float(nets.norms(task.x, task.y).median())
    members = []
    for eps in EPSILONS:
        members += [m for m in grid_members(task, nets) if m["kind"] == "grid" and m["eps"] == eps]
        for over in GAMMAS:
            members += [dict(kind=f"g {over}", eps=eps, opt="adam", clip=None, gamma=over * J or 0.01, lr=r, sigma=sigma(eps), sched="rise") for r in RATES]
    return members


TRAINED = {"reach .45": dict(reach=0.45), "dead .5": dict(dead=0.5), "betas .95": dict(betas=(0.95, 0.99)), "betas .999": dict(betas=(0.9, 0.999)), "zero": dict(zero=1), "": {}}


def train_members(task, nets):
    members = []
    for eps in EPSILONS:
        for name, more in TRAINED.items():
            members += [dict(kind="t " + name, eps=eps, opt="adam", clip=None, lr=r, sigma=sigma(eps), sched="rise", **more) for r in RATES]
    return members


RACE_AT = (16, 50, 100, 200)
RACE_NOISES = (1.0, 2.0, 4.0)


def race_members(task, nets):
    members = []
    for eps in EPSILONS:
        gamma = 0.01  # of values too: gammas (above) had 0.3 J and 2 J behind it
        for over in RACE_NOISES:
            members += [dict(kind="race", eps=eps, over=over, opt="adam", clip=None, gamma=gamma, lr=r, sigma=over * sigma(eps)) for r in RATES]
    return members


def main(what, out, numbers, seeds):
    torch.set_num_threads(1)
    for number in eval(numbers):
        task = family.load(number)
        for seed in eval(seeds):
            began = time.process_time()
            nets = Nets(task, task.first(seed))
            J = float(nets.norms(task.x, task.y).median())
            if what == "grid":
                members = grid_members(task, nets)
                figures, nets = population(task, seed, members)
            elif what == "values":
                members = values_members(task, nets)
                figures, nets = population(task, seed, members)
            elif what == "train":
                members = train_members(task, nets)
                figures, nets = population(task, seed, members)
            elif what == "larger":
                members = [m for m in grid_members(task, nets) if m.get("sched") in (None, "rise")]
                figures, nets = population(task, seed, members)
            else:
                members = race_members(task, nets)
                figures, nets = population(task, seed, members, q=Q / 3, at=RACE_AT, on_train=True, windows=(8,))
            line = dict(number=number, said=task.said, n=task.n, seed=seed, J=J, unit=nets.unit, members=members, figures=figures, D=len(nets.first))
            with Path(out).open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(number, task.said, seed, f"J {J:.2g}", len(members), f"{time.process_time() - began:.0f}s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
