"""The estimators with `auto-s` at their own rates and with `auto`: ./run.sh research/nothing_to_tune/estimators.py [NAME...]

Accuracy (or 100 R^2) of tables that come with scikit-learn on 30 % of the rows, four splits and seeds, and of made ones on 1,000 others. Ranges are read off the data, which is
public.
"""

import sys
import warnings

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, make_friedman1
from sklearn.model_selection import train_test_split

from clipwise import PrivateClassifier, PrivateRegressor

torch.set_num_threads(1)
warnings.simplefilter("ignore")


def table(load, kind, **more):
    x, y = load(return_X_y=True)

    def split(seed):
        return train_test_split(x, y, test_size=0.3, random_state=seed)

    return split, kind, {"ranges": (x.min(0), x.max(0) + 1e-9), **more}


def friedman(records):
    def split(seed):
        x, y = make_friedman1(records + 1000, noise=1.0, random_state=seed)
        return x[:records], x[records:], y[:records], y[records:]

    return split, PrivateRegressor, {"ranges": (0, 1), "target_range": (0, 30)}


CASES = {
    "breast cancer": table(load_breast_cancer, PrivateClassifier),
    "diabetes": table(load_diabetes, PrivateRegressor, target_range=(0, 400)),
    "friedman 100": friedman(100),
    "friedman 400": friedman(400),
    "friedman 2000": friedman(2000),
}

for name in sys.argv[1:] or CASES:
    split, kind, more = CASES[name]
    for epsilon in (1.0, 3.0):
        found = {}
        for method in ("auto-s", "auto"):
            scores = []
            for seed in range(4):
                x, xt, t, tt = split(seed)
                scores.append(100 * kind(epsilon, random_state=seed, method=method, **more).fit(x, t).score(xt, tt))
            found[method] = f"{np.mean(scores):.1f} {np.round(scores, 1).tolist()}"
        print(name, epsilon, found, flush=True)
