"""What `clipwise.fit` with an epsilon alone makes of badly scaled inputs, losses, models and sizes: ./run.sh research/nothing_to_tune/robust.py [NAME...]

One line of a Markdown table for each case: the accuracy (or 100 R^2) of `auto` with four seeds, the best of five of Adam's rates on auto-s with the
first of them (uncharged, averaged as `auto` is, inputs as they are), the rates that were found, and what the statements say beside. Digits at epsilon 3 where nothing else is said; made data has
a linear teacher with flipped answers.
"""

import sys
import warnings

import torch
from torch import nn
from torch.utils.data import TensorDataset

import clipwise
from clipwise import data as sets

torch.set_num_threads(1)
warnings.simplefilter("ignore")
RATES = (0.003, 0.012, 0.05, 0.2, 0.8)
SAID = ("are few", "hardly more than", "far from", "no bin", "badly scaled", "limited by noise", "limited by its steps", "limited by the model")
SEEDS = 4


def digits(scale=1.0, records=10**9):
    found = sets.load("digits")
    (x, y), (xt, yt) = (part.tensors[:2] for part in (found.train, found.test))
    return TensorDataset(scale * x.flatten(1)[:records], y[:records]), TensorDataset(scale * xt.flatten(1), yt)


def made(records, width=20, classes=2):
    gen = torch.Generator().manual_seed(1)
    x = torch.randn(records + 5000, width, generator=gen)
    y = (x @ torch.randn(width, classes, generator=gen) + 2 * torch.randn(len(x), classes, generator=gen)).argmax(1)
    return TensorDataset(x[:-5000], y[:-5000]), TensorDataset(x[-5000:], y[-5000:])


def numbers(scale, records=5000):
    gen = torch.Generator().manual_seed(2)
    x = torch.randn(records + 2000, 8, generator=gen)
    y = scale * ((x @ torch.randn(8, 1, generator=gen)).tanh() + 0.1 * torch.randn(len(x), 1, generator=gen))
    return TensorDataset(x[:records], y[:records]), TensorDataset(x[records:], y[records:])


def mlp(width=128, hidden=1, inputs=64, outputs=10):
    layers = [nn.Linear(inputs, width), nn.Tanh()]
    for _ in range(hidden - 1):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def times(k):
    return lambda output, target: k * nn.functional.cross_entropy(output, target, reduction="none")


CASES = {
    "as it is": (digits, mlp, {}),
    "inputs x 0.01": (lambda: digits(0.01), mlp, {}),
    "inputs x 100": (lambda: digits(100.0), mlp, {}),
    "loss x 0.1": (digits, mlp, {"loss": times(0.1)}),
    "loss x 10": (digits, mlp, {"loss": times(10.0)}),
    "10 times wider": (digits, lambda: mlp(1280), {}),
    "10 hidden layers": (digits, lambda: mlp(hidden=10), {}),
    "500 records": (lambda: digits(records=500), mlp, {}),
    "500 records, epsilon 1": (lambda: digits(records=500), mlp, {"epsilon": 1.0}),
    "10^6 made records, linear": (lambda: made(10**6), lambda: nn.Linear(20, 2), {"effort": "quick"}),
    "values": (lambda: numbers(1.0), lambda: mlp(64, 1, 8, 1), {}),
    "values x 0.01": (lambda: numbers(0.01), lambda: mlp(64, 1, 8, 1), {}),
    "values x 100": (lambda: numbers(100.0), lambda: mlp(64, 1, 8, 1), {}),
}


def score(model, test):
    x, y = test.tensors
    with torch.no_grad():
        out = model(x)
    if not out.isfinite().all():
        return float("nan")
    if y.is_floating_point():
        return 100 * float(1 - (out - y).square().mean() / y.var())
    return 100 * float((out.argmax(1) == y).float().mean())


def trained(case, seed, **more):
    (train, test), make, options = case
    torch.manual_seed(1000 + seed)
    model = make()
    done = clipwise.fit(
        model, train, **{"epsilon": 3.0, "delta": 1e-5 if len(train) < 10**5 else 1e-7, "seed": seed, **options, **more}
    )
    return score(model, test), done.statement.automatic


def main():
    print(
        "| case | auto | best of five rates (rate) | rate found | said |",
        "| --- | --- | --- | --- | --- |",
        sep="\n",
        flush=True,
    )
    for name, (data, *rest) in CASES.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        case = (data(), *rest)
        runs = [trained(case, seed) for seed in range(SEEDS)]
        grid = {rate: trained(case, 0, lr=rate)[0] for rate in RATES} if "10^6" not in name else {}
        best = max(grid, key=grid.get, default=None)
        rates = ", ".join(line.split()[2] for _, said in runs for line in said if line.startswith("learning rate"))
        said = "; ".join(dict.fromkeys(words for words in SAID if any(words in line for _, all_of_it in runs for line in all_of_it)))
        shown = "not run" if best is None else f"{grid[best]:.1f} ({best:g})"
        print(f"| {name} | {', '.join(f'{found:.1f}' for found, _ in runs)} | {shown} | {rates} | {said} |", flush=True)


if __name__ == "__main__":
    main()
