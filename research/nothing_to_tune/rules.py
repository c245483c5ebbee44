"""Rules tried offline on the curves: the race is looked up (its scores get their noise), the training's figure too, and its price is taken off."""

from __future__ import annotations

import itertools
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from reading import EPSILONS, FINE, LOG, centre, crossfit, curves, fine, lines  # noqa: E402

from clipwise.automatic import rule  # noqa: E402

T, DELTA = 200, 1e-5
MU = {e: rule.gaussian_mu(e, DELTA) for e in EPSILONS}
SIGMA = {1.0: 4.94, 3.0: 1.98, 8.0: 1.07}  # for slopes alone


class Bench:
    def __init__(self, grid, races, yard, values_key=("gamma 0.0", "p8"), classes_key=("rise", "p8")):
        self.cells, self.about = curves(grid)
        self.yard = {}
        for line in lines(yard):
            self.yard.setdefault(line["number"], []).append(line)
        self.race = defaultdict(dict)  # (number, eps, over, at, window) -> seed -> (rates, scores)
        for line in lines(races) if races else []:
            for at, f in line["figures"].items():
                for win, rows in f.items():
                    by = defaultdict(list)
                    for i, m in enumerate(line["members"]):
                        by[m["eps"], m["over"]].append(i)
                    a = np.array(rows)[:, 1:]
                    for (e, o), ix in by.items():
                        self.race[line["number"], e, o, int(at), win][line["seed"]] = a[ix]
        self.values = {n for n, y in self.yard.items() if y[0]["values"]}
        self.best, self.curve, self.slope, self.perseed = {}, {}, {}, {}
        for n, e in self.cells:
            key = values_key if n in self.values else classes_key
            c = self.cells[n, e]
            self.best[n, e] = crossfit(c["grid"])
            self.perseed[n, e] = np.array([fine(x) for x in c[key]])
            self.curve[n, e] = self.perseed[n, e].mean(0)
        for n, e in self.cells:  # points a unit of log sigma
            a, b = (1.0, 3.0) if e == 1 else (3.0, 8.0)
            self.slope[n, e] = np.clip((self.curve[n, b] - self.curve[n, a]) / math.log(SIGMA[a] / SIGMA[b]), 0, 30)

    def guess(self, n, e):
        c, y = self.cells[n, e], self.yard[n][0]
        unit = c["unit"].mean() if n in self.values else None
        return math.log(rule.first_guess(c["J"].mean(), unit, T, kind="values" if n in self.values else "classes", linear=y["depth"] == 0))

    def price(self, at, over, rates, share, part=1 / 3):
        """More noise, as a log: by the squares of mu."""
        race = rates * at / T * (part / over) ** 2
        return -0.5 * math.log(1 - min(0.9, race + share + 0.011))

    def run(self, *, at, over, win="p8", score="right", rates=5, spacing=2.5, share=0.01, soft=0.01, noises=3.0, factor=0.6, prior=1.5, certain=3.0,
            guess=None, shift=0.0, draws=4, values=None, per_cell=False, seed=0, fixed=None):  # fmt: skip
        rng = np.random.default_rng(seed)
        kind = {"right": 0, "prob": 1, "bounded": 2}[score]
        found = {}
        for n, e in self.cells:
            if values is not None and (n in self.values) != values:
                continue
            lost = []
            records = self.about[n]["n"]
            middle = (guess or self.guess)(n, e) + shift
            logs = middle + math.log(spacing) * (np.arange(rates) - (rates - 1) / 2)
            std = math.sqrt(rates / share) / MU[e] / records
            price = self.price(at, over, rates, share)
            known = self.race[n, e, over, at, win] if fixed is None else {0: None}
            for a in known.values():
                for _ in range(draws):
                    if fixed is None:
                        s = np.interp(logs, LOG, a[:, kind]) + std * rng.standard_normal(rates)
                        spread = soft + noises * std
                        support = s / spread - ((logs - middle) / prior) ** 2 / 2
                        w = np.exp(support - support.max()) * (s >= s.max() - soft - certain * math.sqrt(2) * std)
                        rate = math.log(factor) + (w * logs).sum() / w.sum()
                    else:
                        rate, price = middle, 0.0
                    at_rate = np.interp(rate, FINE, self.curve[n, e]) - price * np.interp(rate, FINE, self.slope[n, e])
                    lost.append(self.best[n, e] - at_rate)
            found[n, e] = float(np.mean(lost)) if lost else np.nan
        if per_cell:
            return found
        v = np.array([x for x in found.values() if not np.isnan(x)])
        return v.mean(), np.sort(v)[-3:].mean(), v.max(), [round(float(np.nanmean([x for (n, e), x in found.items() if e == eps])), 2) for eps in EPSILONS]

    def oracle(self, values):
        return np.mean([self.best[k] - self.curve[k].max() for k in self.cells if (k[0] in self.values) == values])


if __name__ == "__main__":
    half = sys.argv[1]
    bench = Bench(f"/tmp/auto/grid_{half}.jsonl", f"/tmp/auto/race_{half}.jsonl", f"/tmp/auto/yard_{half}.jsonl")  # of curves.py and yardsticks.py
    print("oracle", bench.oracle(False), "today", bench.run(at=50, over=2.0, values=False))
    rows = []
    for (at, over), score, share, factor, soft, prior in itertools.product(
        [(50, 2.0), (100, 4.0), (100, 2.0), (200, 4.0), (200, 2.0), (100, 1.0), (50, 1.0)], ["right", "prob"], [0.01, 0.03], [0.3, 0.4, 0.5, 0.6, 0.8, 1.0], [0.003, 0.01], [1.0, 1.5]
    ):  # fmt: skip
        rows.append((*bench.run(at=at, over=over, score=score, share=share, factor=factor, soft=soft, prior=prior, values=False, draws=2), at, over, score, share, factor, soft, prior))
    rows.sort(key=lambda r: r[0])
    best = {}
    for r in rows:
        best.setdefault(r[4:7], r)
    for r in best.values():
        print(*(round(x, 2) if isinstance(x, float) else x for x in r))
