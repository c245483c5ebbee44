"""One rate for all tasks, on the same cells: regret of averaged weights against the grid's best last weights."""
from collections import defaultdict
import numpy as np
from sim import done, RESULTS
last, p8 = defaultdict(lambda: defaultdict(list)), defaultdict(lambda: defaultdict(list))
for r in done(RESULTS / "grid.jsonl"):
    if r["sched"] == "const" and r["opt"] in ("adam", "sgd"):
        last[r["task"], r["eps"]][r["opt"], r["clip"], r["lr"]].append(r["last"][-1]); p8[r["task"], r["eps"]][r["opt"], r["clip"], r["lr"]].append(r["p8"][-1])
cells = sorted({(r["task"], r["eps"]) for r in done(RESULTS / "auto.jsonl") if r["tag"] == "final=1"} & set(last))
def at(cell, opt, clip, lr, src):
    c = {k[2]: np.mean(v) for k, v in src[cell].items() if k[:2] == (opt, clip)}
    if not c: return None
    ls = sorted(c); return float(np.interp(np.log(lr), np.log(ls), [c[l] for l in ls]))
for opt, clip, lr, src, what in [("adam", "auto", x, p8, "averaged") for x in (0.003, 0.006, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.05, 0.1)] + [("adam", "1.0", 0.001, last, "last"), ("sgd", "1.0", 0.1, last, "last"), ("sgd", "auto", 1.0, last, "last")]:
    reg = {c: max(np.mean(v) for v in last[c].values()) - x for c in cells if (x := at(c, opt, clip, lr, src)) is not None}
    print(f"| {opt} {clip} {lr:g} {what} | {np.mean(list(reg.values())):.2f} | {max(reg.values()):.2f} ({max(reg, key=reg.get)[0]}) | {len(reg)} |")
J = {(r["task"], r["eps"]): r["J"] or 1.0 for r in done(RESULTS / "auto.jsonl") if r["tag"] == "final=1"}
for what, rule in (("2 / (J sqrt T), the issue's", lambda j: 2 / j / 200**0.5), ("0.77 / sqrt(J T), no race", lambda j: 0.77 / (200 * j) ** 0.5)):
    reg = {c: max(np.mean(v) for v in last[c].values()) - at(c, "adam", "auto", rule(J[c]), p8) for c in cells}
    print(f"| {what}, uncharged | {np.mean(list(reg.values())):.2f} | {max(reg.values()):.2f} ({max(reg, key=reg.get)[0]}) | {len(reg)} |")
