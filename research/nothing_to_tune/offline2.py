"""Regret of a race's choice by interpolation of the grid's curves, with the price of its noise. python offline2.py"""
import itertools, math, json, sys
from collections import defaultdict
import numpy as np
from auto import mu_of
from sim import done, RESULTS
curves, best, sig = defaultdict(lambda: defaultdict(list)), defaultdict(lambda: defaultdict(list)), {}
for r in done(RESULTS / "grid.jsonl"):
    if r["sched"] != "const" or r["opt"] not in ("adam", "sgd"): continue
    best[r["task"], r["eps"]][r["opt"], r["clip"], r["lr"]].append(r["last"][-1]); sig[r["task"], r["eps"]] = r["sigma"]
    if (r["opt"], r["clip"]) == ("adam", "auto"): curves[r["task"], r["eps"]][r["lr"]].append(r["p8"][-1])
curve = {k: (np.log(sorted(v)), np.array([np.mean(v[l]) for l in sorted(v)])) for k, v in curves.items()}
top = {k: max(np.mean(u) for u in v.values()) for k, v in best.items()}
def value(cell, lr): return float(np.interp(math.log(lr), *curve[cell]))
def slope(task, eps):
    es = [e for (t, e) in curve if t == task]
    if len(es) == 1: return 2.0
    lo = min(es, key=lambda e: abs(math.log(e / eps)) + 9 * (e == eps))
    return abs((curve[task, eps][1].max() - curve[task, lo][1].max()) / math.log(sig[task, eps] / sig[task, lo]))
races = defaultdict(list)
for name in ("races2.jsonl", "races3.jsonl"):
    for r in done(RESULTS / name): races[r["rho"]].append(r)
def choose(rates, seen, sd, tau, c, prior, centre, power):
    x = np.log(rates)
    z = seen / (tau + c * sd) - 0.5 * ((x - math.log(centre)) / prior) ** 2
    w = np.exp(z - z.max()); w /= w.sum()
    return math.exp((w * x).sum())
def run(rates, rho, m, tau=2.0, c=1.0, prior=1.5, centre=0.02, factor=1.0, share=0.02, draws=8, verbose=False, rel=0.0):
    rng = np.random.default_rng(0); reg, pick, price = defaultdict(list), defaultdict(list), {}
    for r in races[rho]:
        cell = (r["task"], r["eps"])
        have = {round(a, 5): i for i, a in enumerate(r["rates"])}
        use = [a for a in rates if round(a, 5) in have]
        if cell not in curve or str(m) not in r["acc"] or len(use) < min(len(rates), 5): continue
        K = len(rates)
        acc = np.array([r["acc"][str(m)][have[round(a, 5)]] for a in use])
        sd = 100 * math.sqrt(K) / (mu_of(r["eps"]) * math.sqrt(share)) / r["n"]
        price[cell] = slope(*cell) * 0.5 * (K * m / 200 / rho**2 + share)
        for _ in range(draws):
            seen = acc + sd * rng.standard_normal(len(use))
            t = tau if not rel else rel * max(1.0, seen.max() - np.median(seen))
            lr = factor * choose(np.array(use), seen, sd, t, c, prior, centre, 0)
            reg[cell].append(top[cell] - value(cell, lr) + price[cell]); pick[cell].append(lr)
    mean = {k: float(np.mean(v)) for k, v in reg.items()}
    if verbose:
        for k in sorted(mean): print(f"{k[0]:13s} {k[1]:3g} regret {mean[k]:5.2f}  price {price[k]:.2f}  intrinsic {top[k] - curve[k][1].max():5.2f}  miss {mean[k] - price[k] - top[k] + curve[k][1].max():5.2f}  rate {np.exp(np.mean(np.log(pick[k]))):.4f} sd(log) {np.std(np.log(pick[k])):.2f} best {math.exp(curve[k][0][curve[k][1].argmax()]):.4f}")
    return float(np.mean(list(mean.values()))), max(mean.values()), len(mean)
G25 = [round(0.001 * 2.5**k, 5) for k in range(7)]
G3 = [round(0.001 * 3**k, 5) for k in range(6)]
if __name__ == "__main__":
    for rates, nm in ((G25, "2.5"), (G3, "3"), (G25[1:6], "2.5mid")):
        for rho, m in ((6.0, 50), (6.0, 100), (9.0, 100), (9.0, 200)):
            res = [(run(rates, rho, m, tau, c, prior, ce, f, sh), tau, c, prior, ce, f, sh) for tau in (0.5, 1, 2, 4) for c in (1.0, 2.0) for prior in (1.0, 1.5, 3) for ce in (0.015,) for f in (0.7, 0.85, 1.0) for sh in (0.02,)]
            res.sort(key=lambda r: r[0][0] + 0.2 * r[0][1])
            for b in res[:2]: print(nm, "rho", rho, "m", m, "mean %.2f worst %.2f (%d cells) tau %g c %g prior %g centre %g factor %g share %g" % (*b[0], *b[1:]), flush=True)
    run(G25, 6.0, 100, 1, 1, 1.5, 0.015, 0.85, verbose=True)
