"""What to clip at where the loss is squared: python regress.py TASK eps..."""
import sys, torch, tasks
from auto import Adam, all_norms
from sim import make, sigma_for, evaluate
torch.set_num_threads(1)
task = tasks.load(sys.argv[1]); pop = make(task, 0); J = float(all_norms(pop, task, pop.w0).median())
W = {"auto J": lambda n: 1 / (n + J), "auto 2J": lambda n: 1 / (n + 2 * J), "auto 4J": lambda n: 1 / (n + 4 * J), "clip 2J": lambda n: 1 / n.clamp_min(2 * J)}
rates = (.006, .025, .1); R, D, B = len(rates), len(pop.w0), task.q * task.n
lr = torch.tensor(rates)[:, None]
for eps in map(float, sys.argv[2:]):
    print(task.name, eps, "J", J, rates, flush=True); sigma = sigma_for(eps, task.q, task.steps)
    for k, weigh in W.items():
        gen = torch.Generator().manual_seed(5); st = Adam(pop.w0.repeat(R, 1))
        for t in range(task.steps):
            i = torch.nonzero(torch.rand(task.n, generator=gen) < task.q)[:, 0]
            s, _ = pop.grads(st.w, task.x[i], task.y[i], weigh)
            st.step((s + sigma * torch.randn(D, generator=gen)) / B, lr)
        print(f"  {k:9s}", [round(float(v), 2) for v in evaluate(task, pop, st.avg)], "last", [round(float(v), 2) for v in evaluate(task, pop, st.w)], flush=True)
