"""Races alone, longer and noisier, on small batches: python race2.py TASK SEEDS RHO STEPS eps...  (q / 3 records, noise rho / 3 sigma)"""
import sys, time
import torch
import tasks
from auto import Adam
from sim import RESULTS, append, done, make, metric, sigma_for, weigher
torch.set_num_threads(1)
CHECKS = (25, 50, 75, 100, 150, 200)
CUT = 3
if __name__ == "__main__":
    name, seeds, rho, steps = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    epss = [float(e) for e in sys.argv[5:]] or [1.0, 3.0, 8.0]
    task = tasks.load(name)
    path = RESULTS / "races3.jsonl"
    rates = sorted({round(0.001 * 2.5**k, 5) for k in range(7)} | {round(0.001 * 3**k, 5) for k in range(6)}) if task.kind != "net" else [0.001 * 2.5**k for k in range(1, 6)]
    for seed in map(int, seeds.split(",")):
        for eps in epss:
            if (name, seed, eps, rho) in {(r["task"], r["seed"], r["eps"], r["rho"]) for r in done(path)}: continue
            start = time.time()
            pop = make(task, seed)
            gen = torch.Generator().manual_seed(31 * seed + 7)
            sigma = sigma_for(eps, task.q, task.steps)
            race, K, D, B = Adam(pop.w0.repeat(len(rates), 1)), len(rates), len(pop.w0), task.q * task.n
            out = {}
            for t in range(1, steps + 1):
                i = torch.nonzero(torch.rand(task.n, generator=gen) < task.q / CUT)[:, 0]
                s, _ = pop.grads(race.w, task.x[i], task.y[i], weigher("auto"))
                race.step((CUT * s + rho * sigma * torch.randn(K, D, generator=gen)) / B, torch.tensor(rates)[:, None])
                if t in CHECKS:
                    with torch.no_grad(): o = pop.forward(race.avg, task.x[:4000])
                    out[t] = [round(float(v), 2) for v in metric(task, o, task.y[:4000])]
            append(path, dict(task=name, seed=seed, eps=eps, rho=rho, rates=rates, n=task.n, acc=out))
            print(name, seed, eps, rho, f"{time.time()-start:.0f}s", flush=True)
