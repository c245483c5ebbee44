"""The estimators with `auto-s` at their old defaults and with `auto`, on tables that come with scikit-learn: ./run.sh research/nothing_to_tune/estimators.py

Accuracy (or R^2) in per cent on 30 % of the rows, three splits and seeds. Ranges are read off the data, which is public.
"""

import warnings

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import train_test_split

import clipwise

torch.set_num_threads(1)
warnings.simplefilter("ignore")
for load, kind, more in (
    (load_breast_cancer, clipwise.PrivateClassifier, {}),
    (load_diabetes, clipwise.PrivateRegressor, {"target_range": (0, 400)}),
):
    X, y = load(return_X_y=True)
    ranges = (X.min(0), X.max(0) + 1e-9)
    for epsilon in (1.0, 3.0):
        found = {}
        for method in ("auto-s", "auto"):
            scores = []
            for seed in range(3):
                x, xt, t, tt = train_test_split(X, y, test_size=0.3, random_state=seed)
                made = kind(epsilon, ranges=ranges, random_state=seed, method=method, **more)
                scores.append(100 * made.fit(x, t).score(xt, tt))
            found[method] = f"{np.mean(scores):.1f} {np.round(scores, 1).tolist()}"
        print(load.__name__, epsilon, found, flush=True)
