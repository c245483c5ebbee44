"""Fourth session: rate curves of linear models and MLPs with noise of each run's own, averages and the late rise: lin4.py TASK SEEDS N eps...

One row a (task, n, eps, rate): mean and standard error over seeds of the last weights and of averages, and what is public or released
that a rule could predict the best rate from: J, the signal of the first gradients over their noise.
"""

import json
import math
import sys
import time

import tasks
import torch
from sim import RESULTS, make, metric, sigma_for

torch.set_num_threads(1)


def curves(task, seeds, eps, rates, clip=None, more=1.0, kappa=0.02, reach=0.9, start=1 / 3, batch=None, decay=0.0):
    """Accuracy (seeds, rates) of last, p8, p3 with the rise."""
    T, q, n = task.steps, task.q, task.n
    B = q * n
    sigma = sigma_for(eps, q, T) * more
    out = {"last": [], "p8": [], "p3": [], "flat": []}
    J = G = None
    for seed in seeds:
        pop = make(task, seed)
        gen = torch.Generator().manual_seed(1299709 * seed + 5)
        R, D = len(rates), len(pop.w0)
        w = pop.w0.repeat(R, 1)
        lr = torch.tensor(rates)[:, None]
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        avg, p3 = w.clone(), w.clone()
        rise = torch.zeros(R, 1)
        total = torch.zeros(D)
        ns = pop.grads(pop.w0[None], task.x[:3000], task.y[:3000], torch.ones_like)[1]
        J = float(ns.median())
        C = 1.0 if clip is None else clip * J
        weigh = (lambda a: 1 / (a + 0.01)) if clip is None else (lambda a: (C / a.clamp_min(1e-12)).clamp_max(1) / C)
        for t in range(1, T + 1):
            i = torch.nonzero(torch.rand(n, generator=gen) < q)[:, 0]
            s, _ = pop.grads(w, task.x[i], task.y[i], weigh)
            g = (s + sigma * torch.randn(R, D, generator=gen)) / B
            if t <= 20:
                total += g[0]
            if kappa and t > start * T:
                d = w - avg
                z = (g * d).sum(1, keepdim=True) / (d.norm(dim=1, keepdim=True) * sigma / B + 1e-30)
                rise = (rise - kappa * z.clamp(-1, 1)).clamp(0, reach)
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.99).addcmul_(g, g, value=0.01)
            f = 1 - decay * t / T
            w = w - f * lr * rise.exp() * (m / (1 - 0.9**t)) / ((v / (1 - 0.99**t)).sqrt() + 1e-12)
            avg += min(1.0, 9 / (t + 8)) * (w - avg)
            p3 += min(1.0, 4 / (t + 3)) * (w - p3)
        G = float((total / 20).square().sum() - D * (sigma / B) ** 2 / 20)
        with torch.no_grad():
            for name, ws in (("last", w), ("p8", avg), ("p3", p3)):
                out[name].append(metric(task, pop.forward(ws, task.xt), task.yt))
    return {k: torch.stack(x) for k, x in out.items() if x}, J, G, sigma / B, D


def main():
    name, seeds, n = sys.argv[1], range(int(sys.argv[2])), int(sys.argv[3])
    spec = dict(p.split("=") for p in sys.argv[4].split())
    task = tasks.load(name)
    if n and n < task.n:
        task.x, task.y = task.x[:n], task.y[:n]
    if "q" in spec:
        task.q = float(spec.pop("q"))
    if "T" in spec:
        task.steps = int(spec.pop("T"))
    if "scale" in spec:
        k = float(spec.pop("scale"))
        task.x, task.xt = task.x * k, task.xt * k
    rates = [float(r) for r in spec.pop("rates", ".0015,.003,.006,.012,.025,.05,.1,.2").split(",")]
    for eps in map(float, sys.argv[5:] or (1, 3, 8)):
        start = time.time()
        acc, J, G, s, D = curves(task, seeds, eps, rates, **{k: float(x) for k, x in spec.items()})
        row = dict(task=name, n=task.n, q=task.q, T=task.steps, eps=eps, spec=sys.argv[4], rates=rates, J=J, G=G, s=s, D=D, seeds=len(seeds))
        for k, x in acc.items():
            row[k] = [round(float(a), 2) for a in x.mean(0)]
            row[k + "_se"] = [round(float(a), 2) for a in x.std(0) / math.sqrt(len(seeds))]
        with (RESULTS / "lin4.jsonl").open("a") as f:
            f.write(json.dumps(row) + "\n")
        print(name, task.n, eps, sys.argv[4], f"J {J:.3g} G {G:.3g} s {s:.3g} D {D} snr {G / (D * s * s):.3g}", "| last", row["last"], "| p8", row["p8"], "| p3", row["p3"], f"se {row['p8_se'][0]} {time.time() - start:.0f}s", flush=True)


if __name__ == "__main__":
    main()
