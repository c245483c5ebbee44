"""A simulator of private training: a population of runs of one task side by side, each with its own rate and noise.

Members share the batches and the noise's direction (common random numbers), so that their differences are those of the
rates. Everything a member's rule may use is either public or released, except where a name says `oracle`.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from clipwise.accounting.calibrate import calibrate_shape
from clipwise.accounting.events import StepEvent

RESULTS = Path(__file__).parent / "results"
DELTA = 1e-5
GAMMA = 0.01

_SIGMAS = RESULTS / "sigmas.json"


def sigma_for(eps: float, q: float, steps: int, extra: tuple[tuple[float, float, int], ...] = ()) -> float:
    """The gradient's noise multiplier of `steps` steps such that, with the extra events, the whole is (eps, DELTA)."""
    key = f"{eps} {q} {steps} {extra}"
    known = json.loads(_SIGMAS.read_text()) if _SIGMAS.exists() else {}
    if key not in known:
        others = [StepEvent(float(rate), float(noise), count) for rate, noise, count in extra]
        known[key] = calibrate_shape(eps, DELTA, lambda s: [StepEvent(q, s, steps), *others])
        _SIGMAS.write_text(json.dumps(known, indent=0))
    return known[key]


# ---------------------------------------------------------------------------------------------------------------- models


class Closed:
    """Linear and one-hidden-layer models in closed form, R members at once."""

    def __init__(self, task, seed):
        self.t = task
        model = task.build(seed)
        self.shapes = [p.shape for p in model.parameters()]
        self.w0 = torch.cat([p.detach().flatten() for p in model.parameters()])

    def _split(self, w):
        parts, at = [], 0
        for shape in self.shapes:
            size = math.prod(shape)
            parts.append(w[:, at : at + size].reshape(len(w), *shape))
            at += size
        return parts

    def forward(self, w, x, keep=False):
        p = self._split(w)
        rows, n = len(w), len(x)
        if len(p) == 2:
            out = (x @ p[0].reshape(-1, x.shape[1]).T).view(n, rows, -1) + p[1]
            return (out, None) if keep else out
        h = torch.tanh((x @ p[0].reshape(-1, x.shape[1]).T).view(n, rows, -1) + p[1])  # n R H
        out = torch.einsum("nrh,rkh->nrk", h, p[2]) + p[3]
        return (out, h) if keep else out

    def grads(self, w, x, y, weigh):
        """Weighted sums of the per-example gradients (R, D) and the norms (n, R)."""
        out, h = self.forward(w, x, keep=True)
        if self.t.regression:
            d = out - y[:, None, None]
        else:
            d = out.softmax(-1)
            d[torch.arange(len(y)), :, y] -= 1
        x2 = x.square().sum(1)[:, None] + 1
        if h is None:
            norms = (d.square().sum(-1) * x2).sqrt()
            dw = d * weigh(norms)[..., None]
            gw = torch.einsum("nq,nd->qd", dw.flatten(1), x)
            return torch.cat([gw.view(len(w), -1), dw.sum(0)], 1), norms
        p = self._split(w)
        e = torch.einsum("nrk,rkh->nrh", d, p[2]) * (1 - h.square())
        norms = (d.square().sum(-1) * (h.square().sum(-1) + 1) + e.square().sum(-1) * x2).sqrt()
        c = weigh(norms)[..., None]
        d, e = d * c, e * c
        ge = torch.einsum("nq,nd->qd", e.flatten(1), x).view(len(w), -1)
        gd = torch.einsum("nrk,nrh->rkh", d, h).reshape(len(w), -1)
        return torch.cat([ge, e.sum(0), gd, d.sum(0)], 1), norms


class Net:
    """Any model through the library's engine, one member after another."""

    CHUNK = 512

    def __init__(self, task, seed):
        from clipwise.norms import Bookkeeping

        self.t = task
        self.model = task.build(seed)
        self.ps = dict(self.model.named_parameters())
        self.w0 = torch.cat([p.detach().flatten() for p in self.ps.values()])
        self.engine = Bookkeeping(self.model, self.ps, loss_reduction="sum")

    def _load(self, w):
        torch.nn.utils.vector_to_parameters(w, self.ps.values())

    def forward(self, w, x):
        outs = []
        for row in w:
            self._load(row)
            with torch.no_grad():
                outs.append(torch.cat([self.model(c) for c in x.split(2000)]))
        return torch.stack(outs, 1)

    def grads(self, w, x, y, weigh):
        sums, all_norms = [], []
        self.engine.install()
        for row in w:
            self._load(row)
            total, norms = 0, []
            for cx, cy in zip(x.split(self.CHUNK), y.split(self.CHUNK), strict=True):
                self.engine.open(len(cx))
                out = self.model(cx)
                loss = F.cross_entropy(out, cy, reduction="sum")
                loss.backward()
                tape = self.engine.close()
                ns = tape.norms
                norms.append(ns)
                total = total + torch.cat([g.flatten() for g in tape.weighted_sum(weigh(ns[:, None])[:, 0], last=True)])
            sums.append(total)
            all_norms.append(torch.cat(norms))
        self.engine.remove()
        return torch.stack(sums).detach(), torch.stack(all_norms, 1)


def make(task, seed):
    return (Net if task.kind == "net" else Closed)(task, seed)


def metric(task, out: Tensor, y: Tensor) -> Tensor:
    """Points: accuracy, or 100 R^2."""
    if task.regression:
        err = (out[..., 0] - y[:, None]).square().mean(0)
        return (100 * (1 - err / y.var())).clamp_min(-100)
    return 100 * (out.argmax(-1) == y[:, None]).float().mean(0)


def losses(task, out, y):
    if task.regression:
        return 0.5 * (out[..., 0] - y[:, None]).square()
    return F.cross_entropy(out.flatten(0, 1), y.repeat_interleave(out.shape[1]), reduction="none").view(out.shape[:2])


def evaluate(task, pop, w, limit=10**9):
    with torch.no_grad():
        out = pop.forward(w, task.xt[:limit])
    return metric(task, out, task.yt[:limit])


# ------------------------------------------------------------------------------------------------------------ the runs


def weigher(clip: str):
    if clip == "auto":
        return lambda norms: 1 / (norms + GAMMA)
    return lambda norms: (float(clip) / norms.clamp_min(1e-12)).clamp_max(1)


CHECKS = (0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.64, 0.82, 1.0)


def batch_of(task, gen):
    i = torch.nonzero(torch.rand(task.n, generator=gen) < task.q)[:, 0]
    return task.x[i], task.y[i]


def simulate(task, seed, *, opt, sched, clip, lrs, sigmas, checks=CHECKS, betas=(0.9, 0.99), steps=None, ctl=None, extra=None):
    """One population. lrs and sigmas are lists of the same length. Returns one record a member."""
    ctl = ctl or {}
    pop = make(task, seed)
    gen = torch.Generator().manual_seed(7919 * seed + 1)
    R, D, T = len(lrs), len(pop.w0), steps or task.steps
    B = task.q * task.n
    w = pop.w0.repeat(R, 1)
    lr0, sig = torch.tensor(lrs)[:, None].float(), torch.tensor(sigmas)[:, None].float()
    if clip != "auto":
        sig = sig * float(clip)
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    z = w.clone()  # schedule-free: the fast weights
    avgs = {"p8": w.clone(), "p1": w.clone()}
    at = {max(1, round(c * T)): c for c in checks}
    log = [dict(check=[], last=[], p8=[], p1=[], tr_p8=[], trl_p8=[], J=[], gw0=[], gavg=[], disp=[]) for _ in range(R)]
    acc_w0, acc_avg, seen = torch.zeros(R), torch.zeros(R), 0
    weigh = weigher(clip)
    ell = torch.zeros(R, 1)  # log of the rate's correction
    par = {k: torch.tensor(v)[:, None].float() for k, v in ctl.items()}
    slow = w.clone()
    b1, b2 = betas
    for t in range(1, T + 1):
        x, y = batch_of(task, gen)
        if opt == "sf":
            point = 0.1 * z + 0.9 * avgs["p1"]
        else:
            point = w
        s, norms = pop.grads(point, x, y, weigh)
        g = (s + sig * torch.randn(D, generator=gen)) / B
        acc_w0 += ((g * (point - pop.w0)).sum(1)) / (point - pop.w0).norm(dim=1).clamp_min(1e-12)
        acc_avg += ((g * (point - avgs["p8"])).sum(1)) / (point - avgs["p8"]).norm(dim=1).clamp_min(1e-12)
        seen += 1
        lr = lr0 * {"const": 1.0, "linear": 1 - (t - 1) / T, "isqrt": 0.5 * math.sqrt(T / t),
                    "tail": min(1.0, 2 * (1 - (t - 1) / T))}[sched]  # fmt: skip
        if ctl:
            d = point - slow
            size = d.norm(dim=1, keepdim=True).clamp_min(1e-12)
            zed = (g * d).sum(1, keepdim=True) / (size * sig / B)
            kick = torch.minimum(torch.maximum(zed - par["target"], -par["up"]), par["down"])
            gain = par["kappa"] * (1 + par["early"] / t)
            ell = (ell - gain * kick * (t > 1)).clamp(-par["reach"], par["reach"])
            lr = lr * ell.exp()
            for r in range(R):
                log[r].setdefault("ell", []).append(round(float(ell[r]), 3))
        if opt == "adam":
            m.mul_(b1).add_(g, alpha=1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            w = w - lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + 1e-10)
        elif opt == "sgd":
            m.mul_(0.9).add_(g)
            w = w - lr * m
        elif opt == "noise":  # momentum, divided by the noise's known size and nothing else
            m.mul_(b1).add_(g, alpha=1 - b1)
            w = w - lr * (m / (1 - b1**t)) / (sig / B)
        elif opt == "sf":  # schedule-free Adam: the gradient at a point near the average
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            z = z - lr * g / ((v / (1 - b2**t)).sqrt() + 1e-10)
            w = z
        w = w.clamp(-1e6, 1e6).nan_to_num()
        if ctl:
            slow += torch.clamp((1 + par["gam"]) / (t + par["gam"]), max=1.0) * (w - slow)
        avgs["p8"] += min(1.0, 9 / (t + 8)) * (w - avgs["p8"])
        avgs["p1"] += (2 / (t + 1)) * (w - avgs["p1"])
        if t in at:
            full = t == T
            lim = 10**9 if full or task.kind != "net" else 2000
            e = {"last": evaluate(task, pop, w, lim), **{k: evaluate(task, pop, a, lim) for k, a in avgs.items() if full or k == "p8" or task.kind != "net"}}
            with torch.no_grad():
                out = pop.forward(avgs["p8"], task.x[:2000])
            tr, trl = metric(task, out, task.y[:2000]), losses(task, out, task.y[:2000]).clamp_max(10).mean(0)
            J = norms.median(0).values
            disp = (w - pop.w0).norm(dim=1) / math.sqrt(D)
            for r in range(R):
                row = log[r]
                row["check"].append(at[t])
                if ctl: row["ell_at"] = row.get("ell_at", []) + [row["ell"][-1]]
                for k, val in e.items():
                    row[k].append(round(float(val[r]), 3))
                for k, val in dict(tr_p8=tr, trl_p8=trl, J=J, gw0=acc_w0 / seen, gavg=acc_avg / seen, disp=disp).items():
                    row[k].append(round(float(val[r]), 5))
            acc_w0.zero_()
            acc_avg.zero_()
            seen = 0
    return log


def done(path: Path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def append(path: Path, row: dict):
    with path.open("a") as f:
        f.write(json.dumps(row) + "\n")
