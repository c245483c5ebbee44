"""Races alone, for the choice of their constants offline: python raceonly.py TASK SEEDS RHO eps..."""
import sys, time
import torch
import tasks
from auto import Adam, likelihood
from sim import RESULTS, append, done, evaluate, make, metric, sigma_for, weigher
torch.set_num_threads(1)
RATES = [0.0015 * 2**k for k in range(9)]
name, seeds, rho = sys.argv[1], sys.argv[2], float(sys.argv[3])
epss = [float(e) for e in sys.argv[4:]] or [1.0, 3.0, 8.0]
task = tasks.load(name)
path = RESULTS / "races.jsonl"
for seed in map(int, seeds.split(",")):
    for eps in epss:
        if (name, seed, eps, rho) in {(r["task"], r["seed"], r["eps"], r["rho"]) for r in done(path)}: continue
        start = time.time()
        pop = make(task, seed)
        rates = RATES[1:8] if task.kind == "net" else RATES
        gen = torch.Generator().manual_seed(31 * seed + 5)
        sigma = sigma_for(eps, task.q, task.steps)
        race, K, D, B = Adam(pop.w0.repeat(len(rates), 1)), len(rates), len(pop.w0), task.q * task.n
        out = {}
        for t in range(1, 25):
            i = torch.nonzero(torch.rand(task.n, generator=gen) < task.q)[:, 0]
            s, _ = pop.grads(race.w, task.x[i], task.y[i], weigher("auto"))
            race.step((s + rho * sigma * torch.randn(K, D, generator=gen)) / B, torch.tensor(rates)[:, None])
            if t in (8, 16, 24):
                with torch.no_grad(): o = pop.forward(race.avg, task.x[:4000])
                out[t] = [round(float(v), 2) for v in metric(task, o, task.y[:4000])]
        append(path, dict(task=name, seed=seed, eps=eps, rho=rho, rates=rates, n=task.n, acc=out))
        print(name, seed, eps, rho, out, f"{time.time()-start:.0f}s", flush=True)
