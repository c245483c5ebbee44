"""Regret of the automatic run: below the best uncharged configuration of the grid (mean over seeds, last weights), and below the best of it
with averaging as well. python table.py TAG"""
import sys
from collections import defaultdict
import numpy as np
import tasks
from sim import done, RESULTS
tag = " ".join(sorted(sys.argv[1].split()))
col = sys.argv[2] if len(sys.argv) > 2 else "p8"
grid = defaultdict(lambda: defaultdict(list)); avg = defaultdict(lambda: defaultdict(list)); fixed = defaultdict(lambda: defaultdict(list))
for r in done(RESULTS / "grid.jsonl"):
    if r["sched"] != "const" or r["opt"] not in ("adam", "sgd"): continue
    key = (r["opt"], r["clip"], r["lr"])
    grid[r["task"], r["eps"]][key].append(r["last"][-1]); avg[r["task"], r["eps"]][key].append(max(r["last"][-1], r["p8"][-1]))
runs = defaultdict(list)
for r in done(RESULTS / "auto.jsonl"):
    if r["tag"] == tag: runs[r["task"], r["eps"]].append(r)
for half, names in (("development", (*tasks.DEV, "svhn-feat")), ("held out", tasks.HELD[1:])):
    reg, reg2 = [], []
    print(f"\n{half}\n| task | eps | grid's best (setting) | with averages | auto | regret | against averages | rate | seeds |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for n in names:
        for e in (1.0, 3.0, 8.0):
            if (n, e) not in runs or (n, e) not in grid: continue
            g = {k: np.mean(v) for k, v in grid[n, e].items()}; b = max(g, key=g.get); a = max(np.mean(v) for v in avg[n, e].values())
            mine = np.mean([r[col] for r in runs[n, e]]); lr = np.exp(np.mean([np.log(r["lr"]) for r in runs[n, e]]))
            reg.append(g[b] - mine); reg2.append(a - mine)
            print(f"| {n} | {e:g} | {g[b]:.1f} ({b[0]} {b[1]} {b[2]:g}) | {a:.1f} | {mine:.1f} | {g[b]-mine:.2f} | {a-mine:.2f} | {lr:.3g} | {len(runs[n,e])} |")
    if reg: print(f"\nmean {np.mean(reg):.2f}, worst {max(reg):.2f}; against averages mean {np.mean(reg2):.2f}, worst {max(reg2):.2f}; cells {len(reg)}")
