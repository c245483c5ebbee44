"""The mean gradient norm along a run: DC-SGD's Figure 8 (SGD without privacy) and DP-SGD-Global-Adapt-V2's Figure 2, on MNIST.

Both with the 26k CNN and one seed. Figure 8: SGD at 0.1, batch 256. Figure 2: AdamW at 1e-3 with one-cycle, batch 64, at one noise
multiplier for all, with every decay as deep as over the paper's 100 epochs: the papers' own settings but for model and length.
The norms are those of the first records of public MNIST, looked at without noise: a picture, not a release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from clipwise.data import load
from clipwise.data.source import DataSet
from clipwise.lab.figures.seen import first_records, gradient_rows, weights_at
from clipwise.lab.report.figures import Figure, Point, Series
from clipwise.models import build_model

EPOCHS, RECORDS, POINTS = 1, 200, 12  # of a run; whose norms; in a curve
NOISE, PLAIN_BATCH, BATCH = (
    1.4929,
    256,
    64,
)  # sigma_0 of Figure 2: that of epsilon 1 over the paper's 100 epochs; records
_Optimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


def along_figures(data: str = "mnist", epochs: int = EPOCHS) -> list[Figure]:
    records = load(data)
    steps = epochs * len(records.train) // BATCH
    drop = f"step:decay=0.5,every={max(steps // 10, 1)},by=step"  # ten, as over the paper's 100 epochs
    v2 = {"method": "global-adapt-v2", "method_options": {"upper_schedule": drop}}
    runs: dict[str, Mapping[str, Any]] = {
        "global-adapt": {"method": "global-adapt"},
        "V2, constant noise": v2,
        "V2-L": v2 | {"schedule": f"linear:decay={0.99 ** (100 / steps):.8f},by=step"},
        "V2-T": v2 | {"schedule": f"time:decay={1 / steps:.8f},by=step"},  # 1 + 100 x 0.01 at the end
        "V2-S": v2 | {"schedule": drop},
    }
    private = [
        _curve(name, records, lambda them: AdamW(them, lr=1e-3), BATCH, epochs, **_PRIVATE, **how)
        for name, how in runs.items()
    ]
    plain = _curve("SGD", records, lambda them: SGD(them, lr=0.1), PLAIN_BATCH, epochs, epsilon=math.inf)
    where = f"{data}, 26k CNN, {epochs} epoch{'s' if epochs > 1 else ''}, mean over {min(RECORDS, len(records.train))} records"
    return [
        _figure("dc-sgd-figure-8", "DC-SGD, Figure 8: mean gradient norm, SGD without privacy", [plain], where),
        _figure("global-adapt-v2-figure-2", "Global-Adapt-V2, Figure 2: mean gradient norm", private, where),
    ]


_PRIVATE: Mapping[str, Any] = {"noise_multiplier": NOISE, "lr_schedule": "one-cycle"}


def _curve(name: str, records: DataSet, optimizer: _Optimizer, batch: int, epochs: int, **options: Any) -> Series:
    last = epochs * len(records.train) // batch
    steps = sorted({max(1, round(last * k / POINTS)) for k in range(POINTS + 1)})
    model = build_model("cnn-relu", records, seed=0)
    kept, _ = weights_at(model, records, steps, optimizer, batch=batch, **options)
    inputs, targets = first_records(records, min(RECORDS, len(records.train)))
    norms = [gradient_rows(model, weights, inputs, targets).norm(dim=1).mean() for weights in kept.values()]
    return Series(name, tuple(Point(step, float(norm)) for step, norm in zip(kept, norms, strict=True)))


def _figure(name: str, title: str, series: Sequence[Series], where: str) -> Figure:
    return Figure(
        name=name,
        title=title,
        x_label="step",
        y_label="mean gradient norm",
        series=tuple(series),
        y_log=True,
        note=where,
    )
