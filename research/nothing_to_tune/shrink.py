"""Does shrinking the displacement by its known noise help? python shrink.py TASK seeds eps"""
import sys, torch, tasks
from auto import Adam
from sim import make, sigma_for, weigher, evaluate
torch.set_num_threads(1)
RATES = dict(digits=(.0125, .025, .05), adult=(.0125, .025, .05), agnews=(.05, .1, .2))
def groups(d, shapes, mode):
    out, at = [], 0
    for s in shapes:
        n = s.numel(); x = d[:, at:at+n].reshape(len(d), *s).square(); at += n
        if mode == "coord": e = x
        elif mode == "col": e = x.mean(1, keepdim=True).expand_as(x) if len(s) > 1 else x.mean(1, keepdim=True).expand_as(x)
        elif mode == "row": e = x.flatten(2).mean(2, keepdim=True).expand_as(x) if len(s) > 1 else x.mean(1, keepdim=True).expand_as(x)
        elif mode == "rc": 
            if len(s) > 1:
                r, c, a = x.mean(2, keepdim=True), x.mean(1, keepdim=True), x.mean((1, 2), keepdim=True); e = r * c / a
            else: e = x.mean(1, keepdim=True).expand_as(x)
        out.append(e.flatten(1))
    return torch.cat(out, 1)
if __name__ == "__main__":
    name, seeds, epss = sys.argv[1], sys.argv[2], [float(e) for e in sys.argv[3:]]
    task = tasks.load(name)
    for eps in epss:
        res = {}
        for seed in map(int, seeds.split(",")):
            pop = make(task, seed); gen = torch.Generator().manual_seed(7919 * seed + 1)
            rates = RATES.get(name, (.005, .01, .02)); lr = torch.tensor(rates)[:, None]
            sigma, B = sigma_for(eps, task.q, task.steps), task.q * task.n
            st = Adam(pop.w0.repeat(len(rates), 1)); var = torch.zeros_like(st.w); D = len(pop.w0)
            for t in range(task.steps):
                i = torch.nonzero(torch.rand(task.n, generator=gen) < task.q)[:, 0]
                s, _ = pop.grads(st.w, task.x[i], task.y[i], weigher("auto"))
                st.step((s + sigma * torch.randn(D, generator=gen)) / B, lr)
                var += lr**2 * (sigma / B) ** 2 / (st.v / (1 - .99**st.t))
            put = lambda k, w: res.setdefault(k, []).append(evaluate(task, pop, w))
            put("last", st.w); put("avg", st.avg)
            for base, w, f in (("avg", st.avg, 0.88), ("last", st.w, 1.0)):
                d = w - pop.w0
                for mode in ("coord", "col", "row", "rc"):
                    e = groups(d, pop.shapes, mode)
                    for c in (0.5, 0.8, 1.0):
                        put(f"{base} {mode} {c}", pop.w0 + d * (1 - c * f * var / e.clamp_min(1e-30)).clamp_min(0.0))
            e = (st.avg - pop.w0).square().mean(1) / var.mean(1)
            print(name, eps, seed, "energy over noise", e, flush=True)
        for k, v in res.items(): print(f"{name} {eps} {k:16s}", [round(float(x), 2) for x in torch.stack(v).mean(0)])
