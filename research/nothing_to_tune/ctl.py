"""The controlled rate: python ctl.py TASK SEEDS TAG 'k=v,v ...' eps... ; every combination of the values is a member."""
import itertools, sys, time
import torch
import tasks
from sim import RESULTS, append, done, sigma_for, simulate

torch.set_num_threads(1)
BASE = dict(lr0=[0.02], kappa=[0.05], up=[1.0], down=[2.0], early=[0.0], reach=[7.0], target=[0.0], gam=[8.0])

if __name__ == "__main__":
    name, seeds, spec = sys.argv[1:4]
    epss = [float(e) for e in sys.argv[4:]] or [1.0, 3.0, 8.0]
    grid = dict(BASE)
    opt, sched = "adam", "const"
    for part in spec.split():
        k, v = part.split("=")
        if k == "opt": opt = v
        elif k == "sched": sched = v
        else: grid[k] = [float(u) for u in v.split(",")]
    task = tasks.load(name)
    keys = list(grid)
    combos = [dict(zip(keys, c)) for c in itertools.product(*grid.values())]
    path = RESULTS / "ctl.jsonl"
    for seed in map(int, seeds.split(",")):
        known = {(r["task"], r["seed"], r["eps"], r["opt"], r["sched"], str(r["par"])) for r in done(path)}
        todo = [(e, c) for e in epss for c in combos if (name, seed, e, opt, sched, str(c)) not in known]
        if not todo: continue
        start = time.time()
        sig = [sigma_for(e, task.q, task.steps) for e, _ in todo]
        logs = simulate(task, seed, opt=opt, sched=sched, clip="auto", lrs=[c["lr0"] for _, c in todo], sigmas=sig,
                        ctl={k: [c[k] for _, c in todo] for k in keys if k != "lr0"})
        for (e, c), s, log in zip(todo, sig, logs):
            log.pop("ell", None)
            append(path, dict(task=name, seed=seed, eps=e, opt=opt, sched=sched, par=c, sigma=s, q=task.q, T=task.steps, **log))
            print(name, seed, e, {k: c[k] for k in keys if len(grid[k]) > 1}, "last", log["last"][-1], "p8", log["p8"][-1], "p1", log["p1"][-1], "ell", log["ell_at"], flush=True)
        print(f"{time.time() - start:.0f}s", flush=True)
