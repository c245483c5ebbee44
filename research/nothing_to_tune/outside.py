"""Writes the own files of `clipwise study nothing_to_tune_outside`: python research/nothing_to_tune/outside.py (into runs/outside)

Nothing is fetched: breast cancer comes with scikit-learn, the others are made, from seeds. Columns are brought to mean 0 and deviation 1 and cut
at ±3, which stands in for public figures that a user would state.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, make_classification, make_friedman1

FOLDER = Path("runs/outside")


def write(name, x, y, form):
    x = np.clip((x - x.mean(0)) / x.std(0), -3, 3)
    heads = [f"x{i}" for i in range(x.shape[1])] + ["y"]
    order = np.random.default_rng(0).permutation(len(x))
    np.savetxt(
        FOLDER / name,
        np.c_[x, y][order],
        delimiter=",",
        header=",".join(heads),
        comments="",
        fmt=["%.4f"] * x.shape[1] + [form],
    )


FOLDER.mkdir(parents=True, exist_ok=True)
write("breast_cancer.csv", *load_breast_cancer(return_X_y=True), "%d")
made = dict(n_features=54, n_informative=12, n_redundant=12, n_classes=7, class_sep=1.5, random_state=0)
write("seven_classes.csv", *make_classification(10000, **made), "%d")
x, y = make_friedman1(10000, n_features=10, noise=1.0, random_state=0)
write("friedman.csv", x, np.clip(y, 0, 30), "%.4f")
