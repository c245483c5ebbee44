"""The automatic run: measure J, race a few rates, train at the winner's. python auto.py TASK SEEDS 'k=v ...' eps...

Everything is charged: histogram, race, scores, main run; sigma is calibrated so that the whole is (eps, DELTA).
"""
import json, math, sys, time
import torch
from scipy.optimize import brentq
from scipy.stats import norm
import tasks
from sim import DELTA, RESULTS, append, done, evaluate, losses, make, metric, weigher
from clipwise.accounting.calibrate import calibrate_shape
from clipwise.accounting.events import StepEvent

torch.set_num_threads(1)
CFG = dict(K=5, spacing=2.5, m=0.08, rho=3.0, factor=0.45, centre=2.0, tau=0.02, prior=1.5, c=3.0, fixed_lr=0.0, start=0.33, mode="restart", final=1, hist=0.01, score=0.02, guess="geo", kappa=0.02, reach=0.9, **{"raise": 1},
           sched="const", interp=1, top=0.5, pen=0.0, T=0, q=0.0, scale=1.0, n=0, lscale=1.0, bottom=0.0, b2=0.99, cut=1.0, gamma=0.0, rel=0)


def mu_of(eps, delta=DELTA):
    f = lambda m: norm.cdf(-eps / m + m / 2) - math.exp(eps) * norm.cdf(-eps / m - m / 2) - delta
    return brentq(f, 1e-3, 50)


def plan(task, eps, c):
    """sigma of the main run, the noise multipliers of the measurements, and the steps of each part."""
    T = c["T"] or task.steps
    m = max(2, round(c["m"] * T)) if c["K"] > 1 else 0
    mu = mu_of(eps)
    hist = 1 / (mu * math.sqrt(c["hist"])) if c["hist"] else 0.0
    score = 1 / (mu * math.sqrt(c["score"])) if c["K"] > 1 else 0.0
    path = RESULTS / "plans.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    main = T if c["mode"] == "restart" else T - m
    key = f"{eps} {task.q} {T} {m} {c['K']} {c['rho']} {c['hist']} {c['score']} {main}" + (f" {c['cut']}" if c["cut"] != 1 else "")
    if key not in known:
        def shape(s):
            events = [StepEvent(task.q, float(s), main)]
            if m: events.append(StepEvent(task.q / c["cut"], float(c["rho"] * s / c["cut"]), c["K"] * m))
            if hist: events.append(StepEvent(1.0, float(hist), 1))
            if score: events.append(StepEvent(1.0, float(score), 1))
            return events
        known[key] = calibrate_shape(eps, DELTA, shape)
        path.write_text(json.dumps(known, indent=0))
    return known[key], hist, score, T, m


def all_norms(pop, task, w):
    out = []
    for i in range(0, task.n, 2000):
        out.append(pop.grads(w[None], task.x[i:i + 2000], task.y[i:i + 2000], lambda ns: torch.zeros_like(ns))[1][:, 0])
    return torch.cat(out)


def median_norm(norms, noise, gen):
    """The noised histogram's median, half-octave bins from 2^-10 to 2^20; None where too few records are seen."""
    place = (2 * (norms.clamp_min(1e-30).log2() + 10)).floor().clamp(0, 59).long()
    h = torch.bincount(place, minlength=60).float() + noise * torch.randn(60, generator=gen)
    h = torch.where(h < 3 * noise, 0.0, h)
    if h.sum() <= 0: return None
    i = int((h.cumsum(0) >= h.sum() / 2).nonzero()[0])
    return 2 ** ((i + 0.5) / 2 - 10)


class Adam:
    def __init__(self, w, b2=0.99):
        self.w, self.m, self.v, self.t, self.avg, self.b2 = w, torch.zeros_like(w), torch.zeros_like(w), 0, w.clone(), b2

    def step(self, g, lr):
        self.t += 1
        self.m.mul_(0.9).add_(g, alpha=0.1)
        self.v.mul_(self.b2).addcmul_(g, g, value=1 - self.b2)
        self.w = self.w - lr * (self.m / (1 - 0.9**self.t)) / ((self.v / (1 - self.b2**self.t)).sqrt() + 1e-12)
        self.avg += min(1.0, 9 / (self.t + 8)) * (self.w - self.avg)

    def pick(self, k):
        one = Adam(self.w[k:k + 1].clone())
        one.m, one.v, one.avg, one.t, one.b2 = self.m[k:k+1].clone(), self.v[k:k+1].clone(), self.avg[k:k+1].clone(), self.t, self.b2
        return one


def likelihood(task, pop, w, lscale, w0=None):
    """The sum over all records of a score in [0, 1]: right or wrong, and exp(-loss) where there are no classes."""
    total = 0
    with torch.no_grad():
        for i in range(0, task.n, 2000):
            out, y = pop.forward(w, task.x[i:i + 2000]), task.y[i:i + 2000]
            one = (-losses(task, out, y) * lscale).exp().nan_to_num(0.0) if task.regression else (out.argmax(-1) == y[:, None]).float()
            if task.regression and w0 is not None:  # free of units: 1/2 as at first, 1 where the loss has gone
                first = losses(task, pop.forward(w0[None], task.x[i:i + 2000]), y)
                one = first / (first + losses(task, out, y)).clamp_min(1e-30)
                one = one.nan_to_num(0.0)
            total = total + one.sum(0)
    return total


def auto_run(task, seed, eps, c):
    pop = make(task, seed)
    gen = torch.Generator().manual_seed(104729 * seed + 17)
    sigma, hist, score, T, m = plan(task, eps, c)
    B, D, K = task.q * task.n, len(pop.w0), c["K"]
    weigh = weigher("auto")
    batch = lambda cut=1.0: torch.nonzero(torch.rand(task.n, generator=gen) < task.q / cut)[:, 0]
    J = median_norm(all_norms(pop, task, pop.w0), hist, gen) if hist else 1.0
    info = dict(sigma=sigma, J=J)
    J = J or 1.0
    if task.regression and c["gamma"]: weigh = lambda norms: 1 / (norms + c["gamma"] * J)
    guess = {"geo": 0.77 / math.sqrt(J * T), "J": 2 / (J * math.sqrt(T)), "const": 0.3 / math.sqrt(T)}[c["guess"]]
    state, lr = Adam(pop.w0[None].clone(), c["b2"]), guess
    if K > 1:
        rates = torch.tensor([guess * c["centre"] * c["spacing"] ** (k - (K - 1) / 2) for k in range(K)])
        race = Adam(pop.w0.repeat(K, 1), c["b2"])
        for t in range(m):
            i = batch(c["cut"])
            s, _ = pop.grads(race.w, task.x[i], task.y[i], weigh)
            race.step((c["cut"] * s + c["rho"] * sigma * torch.randn(K, D, generator=gen)) / B, rates[:, None])
        raw = likelihood(task, pop, race.avg, c["lscale"], pop.w0 if c["rel"] else None)
        seen = (raw + score * math.sqrt(K) * torch.randn(K, generator=gen)) / task.n
        k = int(seen.argmax())
        sd = score * math.sqrt(K) / task.n
        logits = seen / (c["tau"] + c["c"] * sd) - 0.5 * ((rates / (guess * c["centre"])).log() / c["prior"]) ** 2
        weights = logits.softmax(0)
        k = int(weights.argmax())
        best = float((weights * rates.log()).sum())
        info |= dict(rates=[round(float(r), 5) for r in rates], seen=[round(float(x), 4) for x in seen], raw=[round(float(x) / task.n, 4) for x in raw],
                     test=[round(float(x), 2) for x in evaluate(task, pop, race.avg, 2000)], win=k)
        lr = math.exp(best) * c["factor"]
        if c["mode"] == "continue":
            state = race.pick(k)
        elif c["mode"] == "rewind":  # as if the race had been run at the final rate: the same path, shortened; fresh moments
            state = Adam(pop.w0[None] + min(1.0, lr / float(rates[k])) * (race.w[k:k + 1] - pop.w0[None]), c["b2"])
        else:
            m = 0
    lr = c["fixed_lr"] or lr
    info["lr"] = lr
    ell = 0.0
    for t in range(m, T):
        i = batch()
        s, _ = pop.grads(state.w, task.x[i], task.y[i], weigh)
        g = (s + sigma * torch.randn(1, D, generator=gen)) / B
        if c["kappa"] and t >= c["start"] * T:
            d = state.w - state.avg
            z = float((g * d).sum() / (d.norm() * sigma / B + 1e-30))
            ell = min(max(ell - c["kappa"] * min(max(z, -1.0), 1.0), -c["reach"] * (1 - c["raise"])), c["reach"])
        f = {"const": 1.0, "linear": 1 - t / T, "tail": min(1.0, 2 * (1 - t / T))}[c["sched"]]
        state.step(g, lr * math.exp(ell) * f)
        if t == T // 2: info["half"] = round(float(evaluate(task, pop, state.avg, 2000)), 2)
    info["ell"] = ell
    info["last"], info["p8"] = float(evaluate(task, pop, state.w)), float(evaluate(task, pop, state.avg))
    return info


def prepared(name, c):
    change = {}
    if c["T"]: change["steps"] = c["T"]
    if c["q"]: change["q"] = c["q"]
    task = tasks.load(name, **change)
    if c["scale"] != 1: task.x, task.xt = task.x * c["scale"], task.xt * c["scale"]
    if c["n"]: task.x, task.y = task.x[:int(c["n"])], task.y[:int(c["n"])]
    return task


if __name__ == "__main__":
    name, seeds, spec = sys.argv[1:4]
    epss = [float(e) for e in sys.argv[4:]] or [1.0, 3.0, 8.0]
    c, tag = dict(CFG), []
    for part in spec.split():
        k, v = part.split("=")
        c[k] = v if isinstance(CFG[k], str) else type(CFG[k])(float(v))
        tag.append(part)
    task = prepared(name, c)
    path = RESULTS / "auto.jsonl"
    for seed in map(int, seeds.split(",")):
        for eps in epss:
            key = (name, seed, eps, " ".join(sorted(tag)))
            if key in {(r["task"], r["seed"], r["eps"], r["tag"]) for r in done(path)}: continue
            start = time.time()
            info = auto_run(task, seed, eps, c)
            append(path, dict(task=name, seed=seed, eps=eps, tag=key[3], time=round(time.time() - start, 1), **info))
            print(name, seed, eps, key[3], {k: info.get(k) for k in ("J", "rates", "seen", "test", "lr", "half", "last", "p8", "ell")}, f"{time.time() - start:.0f}s", flush=True)
