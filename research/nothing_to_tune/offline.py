"""Regret of a race's choice, by interpolation of the grid's curves: which constants?"""
import itertools, math
from collections import defaultdict
import numpy as np
from auto import mu_of
from sim import done, RESULTS
curves = defaultdict(lambda: defaultdict(list)); best = defaultdict(lambda: defaultdict(list))
for r in done(RESULTS / "grid.jsonl"):
    best[r["task"], r["eps"]][r["opt"], r["sched"], r["clip"], r["lr"]].append(r["last"][-1])
    if (r["opt"], r["sched"], r["clip"]) == ("adam", "const", "auto"): curves[r["task"], r["eps"]][r["lr"]].append(r["p8"][-1])
J0 = dict(digits=3.4, adult=1.7, agnews=1.2, mnist_cnn=2.8, fashion_cnn=2.4)
J0 = {"digits": 3.4, "adult": 1.7, "agnews": 1.2, "mnist-cnn": 2.8, "fashion-cnn": 2.4, "fashion-scat": 38.0}
races = done(RESULTS / "races.jsonl")
rng = np.random.default_rng(0)
def value(task, eps, lr):
    c = curves[task, eps]; ls = sorted(c); return np.interp(math.log(lr), np.log(ls), [np.mean(c[l]) for l in ls])
def run(K, spacing, m, tau, factor, centre=2.0, guess="geo", verbose=False, noise_share=0.02, prior=1e9, c=1.0):
    reg = defaultdict(list); picks = defaultdict(list)
    for r in races:
        if (r["task"], r["eps"]) not in curves: continue
        J = J0[r["task"]]
        g = {"geo": 0.77 / math.sqrt(J * 200), "J": 2 / J / math.sqrt(200), "const": 0.3 / math.sqrt(200)}[guess] * centre
        rates = np.array([g * spacing ** (k - (K - 1) / 2) for k in range(K)])
        acc = np.interp(np.log(rates), np.log(r["rates"]), r["acc"][str(m)])
        sd = 100 * math.sqrt(K) / (mu_of(r["eps"]) * math.sqrt(noise_share)) / r["n"]
        for _ in range(6):
            seen = acc + sd * rng.standard_normal(K)
            t = tau + c * sd
            wt = np.exp((seen - seen.max()) / t - 0.5 * (np.log(rates / g) / prior) ** 2); wt /= wt.sum()
            lr = math.exp((wt * np.log(rates)).sum()) * factor
            top = max(np.mean(v) for v in curves[r["task"], r["eps"]].values())
            reg[r["task"], r["eps"]].append(top - value(r["task"], r["eps"], lr)); picks[r["task"], r["eps"]].append(lr)
    means = {k: np.mean(v) for k, v in reg.items()}
    if verbose:
        for k in sorted(means): print(k, f"{means[k]:.2f}", "lr", f"{np.exp(np.mean(np.log(picks[k]))):.4f} sd(log) {np.std(np.log(picks[k])):.2f}", "best", max(curves[k], key=lambda l: np.mean(curves[k][l])))
    return np.mean(list(means.values())), max(means.values())
if __name__ == "__main__":
    for guess, m, K, sp in itertools.product(("geo", "J"), (16, 24), (3, 4, 5), (2, 2.5, 3)):
        res = [(run(K, sp, m, tau, f, guess=guess, prior=p, c=c, centre=ce), tau, f, p, c, ce) for tau in (1, 2, 4) for f in (0.35, 0.45) for p in (1.0, 1.5, 1e9) for c in (1.0, 3.0) for ce in (1.5, 2.0)]
        b = min(res, key=lambda r: r[0][0] + 0.2 * r[0][1]); print(guess, "m", m, "K", K, "sp", sp, "mean %.2f worst %.2f tau %g factor %g prior %g c %g centre %g" % (*b[0], *b[1:]), flush=True)
