"""The main run from rates around the best, with and without a controller. python main2.py TASK SEEDS eps...; rows: controller, columns: rate"""
import sys, time, torch, tasks
from sim import RESULTS, append, make, sigma_for, weigher, evaluate
torch.set_num_threads(1)
BASE = {"digits": .025, "adult": .025, "agnews": .1, "fashion-scat": .01, "svhn-feat": .0055, "mnist-cnn": .01, "fashion-cnn": .03}
MULT = (0.5, 0.7, 1.0, 1.4)
CTL = {"none": (0, 0, 0, 1, 0), "raise": (.02, 0, .9, .33, 0), "raise dead": (.02, 0, .9, .33, .5), "both .7": (.02, -.7, .7, .33, 0), "both .7 early": (.02, -.7, .7, .15, 0), "both 1.4": (.03, -1.4, 1.4, .25, 0), "both .7 shift": (.02, -.7, .7, .33, .3)}
USE = ["none", "raise", "both .7 early"]
def run(task, seed, eps, mult, ctl, warm=0.0, b1=0.9, b2=0.99, gen_seed=None):
    pop = make(task, seed); gen = torch.Generator().manual_seed(7919 * seed + 3)
    names = [(m, c) for c in ctl for m in mult]; R = len(names)
    lr = torch.tensor([BASE.get(task.name, .02) * m for m, _ in names])[:, None]
    kap, lo, hi, st, dead = (torch.tensor([CTL[c][j] for _, c in names])[:, None].float() for j in range(5))
    sigma, B, D, T = sigma_for(eps, task.q, task.steps), task.q * task.n, len(pop.w0), task.steps
    w = pop.w0.repeat(R, 1); m, v, ell = torch.zeros_like(w), torch.zeros_like(w), torch.zeros(R, 1)
    avgs = {8: w.clone(), 4: w.clone(), 2: w.clone()}
    for t in range(1, T + 1):
        i = torch.nonzero(torch.rand(task.n, generator=gen) < task.q)[:, 0]
        s, _ = pop.grads(w, task.x[i], task.y[i], weigher("auto"))
        g = (s + sigma * torch.randn(D, generator=gen)) / B
        d = w - avgs[8]
        z = (g * d).sum(1, keepdim=True) / (d.norm(dim=1, keepdim=True) * sigma / B + 1e-30)
        ell = torch.where(t >= st * T, torch.maximum(torch.minimum(ell - kap * (z + dead).clamp(-1, 1), hi), lo), ell)
        m.mul_(b1).add_(g, alpha=1 - b1); v.mul_(b2).addcmul_(g, g, value=1 - b2)
        w = w - lr * ell.exp() * min(1.0, t / (warm * T + 1e-9)) * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + 1e-12)
        for k, a in avgs.items(): a += min(1.0, (k + 1) / (t + k)) * (w - a)
    out = {"last": evaluate(task, pop, w), **{f"p{k}": evaluate(task, pop, a) for k, a in avgs.items()}}
    return names, out, ell[:, 0]
if __name__ == "__main__":
    name, seeds, epss = sys.argv[1], [int(s) for s in sys.argv[2].split(",")], [float(e) for e in sys.argv[3:]]
    task = tasks.load(name)
    for eps in epss:
        t0, acc = time.time(), {}
        for seed in seeds:
            names, out, ell = run(task, seed, eps, MULT, USE)
            for k, x in {**out, "ell": ell}.items(): acc[k] = acc.get(k, 0) + x / len(seeds)
        row = lambda k, c: " ".join(f"{float(acc[k][i]):6.2f}" for i, (m, cc) in enumerate(names) if cc == c)
        print(f"{name} eps {eps}  x", MULT, f"{time.time()-t0:.0f}s")
        for k in ("last", "p8", "p4", "p2"): print(f"  none {k:6s}", row(k, "none"))
        for c in USE:
            if c != "none": print(f"  {c:14s} p8 ", row("p8", c), "  ell", row("ell", c), flush=True)
