"""What curves.py found: arrays, cross-fitted bests, and what a rate away from the best costs."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

RATES = np.array([0.001 * 1.7**k for k in range(12)])
LOG = np.log(RATES)
EPSILONS = (1.0, 3.0, 8.0)
FINE = np.linspace(LOG[0], LOG[-1], 111)


def lines(path):
    return [json.loads(x) for x in Path(path).read_text().splitlines()]


def curves(path):
    """{(number, eps): dict(grid=(seeds, settings), {(sched or kind, window): (seeds, rates)}, ...)}"""
    found = defaultdict(lambda: defaultdict(list))
    about = {}
    for line in lines(path):
        about[line["number"]] = dict(said=line["said"], n=line["n"], D=line["D"])
        last = {w: np.array(f)[:, 0] for w, f in line["figures"]["200"].items()}
        by = defaultdict(list)
        for i, m in enumerate(line["members"]):
            by[m["eps"], m["kind"], m.get("sched")].append(i)
        for (eps, kind, sched), at in by.items():
            cell = found[line["number"], eps]
            if kind == "grid":
                cell["grid"].append(last["last"][at])
                cell["J"].append(line["J"])
                cell["unit"].append(line["unit"])
            else:
                for w in last:
                    cell[sched if kind == "auto" else kind, w].append(last[w][at])
    return {k: {c: np.array(v) for c, v in cell.items()} for k, cell in found.items()}, about


def crossfit(a):
    """(seeds, settings): the mean over seeds of what is best on the others."""
    if len(a) < 2:
        return float(a.max())
    found = []
    for s in range(len(a)):
        others = np.delete(a, s, 0).mean(0)
        found.append(a[s, others.argmax()])
    return float(np.mean(found))


def fine(curve):
    """A mean curve over log rates, on the fine grid."""
    return np.interp(FINE, LOG, curve)


def centre(curve, soft=0.5):
    """Log rate in the middle of what is nearly best."""
    f = fine(curve)
    w = np.exp(-(f.max() - f) / soft)
    return float((w * FINE).sum() / w.sum())


if __name__ == "__main__":
    cells, about = curves(sys.argv[1])
    kinds = [k for k in next(iter(cells.values())) if isinstance(k, tuple)]
    kinds = sorted({k for c in cells.values() for k in c if isinstance(k, tuple)})
    print("seeds", {len(c["grid"]) for c in cells.values()}, "cells", len(cells))
    print(f"{'schedule window':22} cells  oracle: mean worst regret of best rate | octaves within .3, 1 of best | loss at best x 1/4 1/2 1.0 2 4")
    for k in kinds:
        regret, wide, off = [], [], []
        for c in cells.values():
            if k not in c:
                continue
            mean = c[k].mean(0)
            regret.append(crossfit(c["grid"]) - crossfit(c[k]))
            f = fine(mean)
            wide.append([(f >= f.max() - d).mean() * (FINE[-1] - FINE[0]) / np.log(2) for d in (0.3, 1)])
            at = centre(mean)
            off.append([f.max() - np.interp(at + np.log(x), FINE, f) for x in (0.25, 0.5, 1, 2, 4)])
        print(f"{str(k):22} {len(regret):3}   {np.mean(regret):6.2f} {np.max(regret):6.2f} | {np.mean(wide, 0).round(2)} | {np.mean(off, 0).round(2)} worst {np.max(off, 0).round(1)}")
    if len(sys.argv) > 2:
        for (number, eps), c in sorted(cells.items()):
            if eps == 1:
                print(number, about[number]["said"], f"J {c['J'].mean():.2g}")
            k = (sys.argv[2], sys.argv[3])
            print(f"   eps {eps:g}: grid {crossfit(c['grid']):.1f} best of {k}: {crossfit(c[k]):.1f} at {np.exp(centre(c[k].mean(0))):.4f}", c[k].mean(0).round(1))
