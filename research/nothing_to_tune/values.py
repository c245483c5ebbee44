"""What `auto` makes of values: ./run.sh research/nothing_to_tune/values.py EPSILON SEEDS [CASE...]

100 R^2 for each seed, the rates that were found, and J and l: hours a week from adult's other columns, and made values of several sizes and units."""

import sys
import warnings

import numpy as np
import torch
from robust import mlp, numbers, trained
from torch.utils.data import TensorDataset

from clipwise import data as sets

torch.set_num_threads(1)
warnings.simplefilter("ignore")


def hours():
    found = sets.load("adult")
    at = next(i for i, name in enumerate(found.feature_names) if name.startswith("hours"))
    column = found.train.tensors[0][:, at]
    mean, std = column.mean(), column.std()

    def made(x, y):
        others = [x[:, :at], x[:, at + 1 :], y[:, None].float()]
        return TensorDataset(torch.cat(others, 1), ((x[:, at] - mean) / std / 2)[:, None])

    return tuple(made(*part.tensors[:2]) for part in (found.train, found.test))


def sine(shift=0.0, scale=1.0, records=4000):
    """As in tests/test_automatic.py."""
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(records + 2000, 6, generator=gen)
    y = x[:, :1] + torch.sin(2 * x[:, 1:2]) + 0.3 * torch.randn(records + 2000, 1, generator=gen)
    y = shift + scale * y / 1.2
    return TensorDataset(x[:records], y[:records]), TensorDataset(x[records:], y[records:])


CASES = {
    "hours": (hours, 128),
    "sine": (sine, 32),
    "sine, 500": (lambda: sine(records=500), 32),
    "30 sine": (lambda: sine(0.0, 30.0), 32),
    "100 + 30 sine": (lambda: sine(100.0, 30.0), 32),
    "tanh": (lambda: numbers(1.0), 64),
    "tanh, 1000": (lambda: numbers(1.0, 1000), 64),
}


def main():
    epsilon, seeds = float(sys.argv[1]), int(sys.argv[2])
    for name in sys.argv[3:] or CASES:
        load, width = CASES[name]
        data = load()
        inputs = data[0].tensors[0].shape[1]
        case = (data, lambda inputs=inputs, width=width: mlp(width, 1, inputs, 1), {"epsilon": epsilon})
        runs = [trained(case, seed) for seed in range(seeds)]
        rates = [line.split()[2] for _, said in runs for line in said if line.startswith("learning rate")]
        seen = next(line for line in runs[0][1] if line.startswith("median norm"))
        scores = [round(score, 1) for score, _ in runs]
        print(f"{name}, epsilon {epsilon:g}: {np.mean(scores):.1f} {scores}; rates {rates}; {seen}", flush=True)


if __name__ == "__main__":
    main()
