"""Public or released figures that may foretell the best rate, one line a task: J, and how far noise on the weights moves the outputs."""

import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import curves
import family
import torch


def moved(nets, x, std, seeds=6):
    """Median length of the change of centred outputs (root mean square over outputs), moved by noise of this std on every weight."""
    gen = torch.Generator().manual_seed(5)
    w = nets.first + std * torch.randn(seeds, len(nets.first), generator=gen)
    d = nets.forward(w, x)[0] - nets.forward(nets.first[None], x)[0]
    if not nets.task.values:
        d = d - d.mean(-1, keepdim=True)
    return float(d.square().mean(-1).sqrt().median())


def at_level(nets, x, level):
    """The std where it is `level`, by bisection in log."""
    low, high = math.log(1e-5), math.log(30)
    for _ in range(30):
        mid = (low + high) / 2
        low, high = (mid, high) if moved(nets, x, math.exp(mid)) < level else (low, mid)
    return math.exp(low)


out = open(sys.argv[1], "w")
for number in eval(sys.argv[2]):
    task = family.load(number)
    for seed in range(2):
        nets = curves.Nets(task, task.first(seed))
        made = torch.randn(500, task.x.shape[1], generator=torch.Generator().manual_seed(1))
        line = dict(number=number, seed=seed, J=float(nets.norms(task.x, task.y).median()), D=len(nets.first), n=task.n, values=task.values,
                    depth=len(task.widths) - 2, relu=task.relu, features=task.x.shape[1], outputs=task.widths[-1], widest=max(task.widths[:-1]))  # fmt: skip
        line["x"] = float(task.x.norm(dim=1).median())
        for level in (0.3, 1.0, 3.0):
            line[f"real {level}"] = at_level(nets, task.x[:500], level) / math.sqrt(200)
            line[f"made {level}"] = at_level(nets, made, level) / math.sqrt(200)
        out.write(json.dumps(line) + "\n")
