"""Inputs scaled, few records, wider: auto against a grid of 12 rates of Adam on the same change. eps 3, seeds 0..2"""
import sys
import numpy as np, torch
import auto, tasks
from sim import RESULTS, append, sigma_for, simulate, done
torch.set_num_threads(1)
for name in ("digits", "svhn-feat"):
    for what, change in (("x1", {}), ("x0.01", dict(scale=0.01)), ("x100", dict(scale=100.0)), ("n=500", dict(n=500)), ("wide", dict())):
        c = dict(auto.CFG, **change)
        t = auto.prepared(name, c)
        if what == "wide":
            if t.kind != "mlp": continue
            t.hidden = 1280
        lrs = [0.0003 * 3**k for k in range(9)]
        g, a, l, J = [], [], [], []
        for seed in (0, 1):
            s = sigma_for(3.0, t.q, t.steps)
            logs = simulate(t, seed, opt="adam", sched="const", clip="auto", lrs=lrs, sigmas=[s] * len(lrs), checks=(1.0,))
            g.append([max(x["last"][-1], x["p8"][-1]) for x in logs])
            r = auto.auto_run(t, seed, 3.0, c)
            a.append(r["p8"]); l.append(r["lr"]); J.append(r["J"])
        m = np.mean(g, 0)
        row = dict(task=name, what=what, best=float(m.max()), best_lr=lrs[int(m.argmax())], auto=float(np.mean(a)), lr=l, J=J)
        append(RESULTS / "scales.jsonl", row)
        print(row, flush=True)
