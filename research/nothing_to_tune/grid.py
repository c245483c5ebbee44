"""The oracle grid and the shapes of its curves: python grid.py TASK SEED [full|adam] [eps...]"""

import sys
import time

import torch
import tasks
from sim import RESULTS, append, done, sigma_for, simulate

torch.set_num_threads(1)
ADAM = (0.001, 0.003, 0.006, 0.012, 0.025, 0.05, 0.1, 0.2)
SGD = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
NET_ADAM = (0.003, 0.007, 0.015, 0.03, 0.07)


def population(task, seed, kind, lrs, epss):
    opt, sched, clip = kind
    path = RESULTS / "grid.jsonl"
    known = {(r["task"], r["seed"], r["opt"], r["sched"], r["clip"], r["lr"], r["eps"]) for r in done(path)}
    todo = [(lr, e) for e in epss for lr in lrs if (task.name, seed, opt, sched, clip, lr, e) not in known]
    if not todo:
        return
    start = time.time()
    sig = [sigma_for(e, task.q, task.steps) for _, e in todo]
    logs = simulate(task, seed, opt=opt, sched=sched, clip=clip, lrs=[lr for lr, _ in todo], sigmas=sig)
    for (lr, e), s, log in zip(todo, sig, logs, strict=True):
        append(path, dict(task=task.name, seed=seed, opt=opt, sched=sched, clip=clip, lr=lr, eps=e, sigma=s, q=task.q, T=task.steps, **log))
    print(task.name, seed, kind, len(todo), "runs", f"{time.time() - start:.0f}s", flush=True)


if __name__ == "__main__":
    name, seeds, what = sys.argv[1], sys.argv[2], sys.argv[3]
    epss = [float(e) for e in sys.argv[4:]] or [1.0, 3.0, 8.0]
    task = tasks.load(name)
    for seed in map(int, seeds.split(",")):
        if what == "full":
            for kind, lrs in ((("adam", "const", "auto"), ADAM), (("adam", "const", "1.0"), ADAM), (("sgd", "const", "auto"), SGD), (("sgd", "const", "1.0"), SGD)):
                population(task, seed, kind, lrs, epss)
        elif what == "two":
            for kind, lrs in ((("adam", "const", "auto"), ADAM), (("sgd", "const", "1.0"), SGD)):
                population(task, seed, kind, lrs, epss)
        elif what == "shapes":
            for kind, lrs in ((("adam", "linear", "auto"), ADAM), (("adam", "isqrt", "auto"), ADAM), (("sf", "const", "auto"), ADAM), (("noise", "const", "auto"), ADAM)):
                population(task, seed, kind, lrs, epss)
        elif what == "net":
            population(task, seed, ("adam", "const", "auto"), NET_ADAM, epss)
        elif ":" in what:  # opt:sched:clip
            population(task, seed, tuple(what.split(":")), NET_ADAM if task.kind == "net" else ADAM, epss)
