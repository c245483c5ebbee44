"""What clipping does to real gradients during a private run: DC-SGD's Figure 4 and OSO-DPSGD's Figure 1, on MNIST.

One run of DP-SGD (the 26k CNN, C = 1, Adam at its defaults, batch 256, epsilon 8: what DC-SGD states for its figure) is
stopped at five steps. There, over one batch: the expected squared error by threshold (DC-SGD, equation 4), and the cosine
between the clipped, averaged and noised gradient and the true average (OSO-DPSGD), a mean over 20 draws of the noise.
The true gradients are public MNIST's and are looked at without noise: a picture, not a release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from clipwise.clipping.dc_sgd_e import expected_error
from clipwise.data import load
from clipwise.data.source import DataSet
from clipwise.lab.report.figures import Figure, Point, Series
from clipwise.loop.fit import fit
from clipwise.models import build_model

STEPS = (100, 250, 500, 750, 950)  # of OSO-DPSGD's figure
THRESHOLDS = tuple(10.0 ** (k / 4) for k in range(-12, 9))  # 0.001 to 100
BATCH, DRAWS, EPSILON = 256, 20, 8.0  # records; draws of the noise in a mean; as DC-SGD states for its figure


def seen_figures(data: str = "mnist", steps: Sequence[int] = STEPS) -> list[Figure]:
    records = load(data)
    model = build_model("cnn", records, seed=0)
    kept, noise = weights_at(
        model,
        records,
        steps,
        lambda them: torch.optim.Adam(them, lr=1e-3),
        batch=BATCH,
        method="fixed",
        epsilon=EPSILON,
    )
    inputs, targets = first_records(records, BATCH)
    errors, cosines = [], []
    for step, weights in kept.items():
        gradients = gradient_rows(model, weights, inputs, targets)
        norms = gradients.norm(dim=1).double()
        shares = torch.full_like(norms, 1 / len(norms))
        variance = noise**2 * gradients.shape[1] / BATCH**2
        found = expected_error(torch.tensor(THRESHOLDS, dtype=torch.float64), shares, norms, variance)
        errors.append(_series(step, found.tolist()))
        cosines.append(_series(step, [_cosine(gradients, c, noise, step) for c in THRESHOLDS]))
    where = f"{data}, 26k CNN, fixed C = 1, epsilon {EPSILON:g}, one batch of {BATCH}"
    return [
        Figure(
            name="dc-sgd-figure-4",
            title="DC-SGD, Figure 4: expected squared error by threshold",
            x_label="threshold",
            y_label="expected squared error",
            series=tuple(errors),
            x_log=True,
            y_log=True,
            note=where,
        ),
        Figure(
            name="oso-dpsgd-figure-1",
            title="OSO-DPSGD, Figure 1: noised against true gradient",
            x_label="threshold",
            y_label="cosine similarity",
            series=tuple(cosines),
            x_log=True,
            note=where,
        ),
    ]


def weights_at(
    model: nn.Module,
    records: DataSet,
    steps: Sequence[int],
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    *,
    batch: int,
    **options: Any,
) -> tuple[dict[int, dict[str, Tensor]], float]:
    """The weights after each of these steps of a run, and its noise multiplier."""
    kept: dict[int, dict[str, Tensor]] = {}
    size = len(records.train)

    def keep(line: Mapping[str, Any], _: int) -> None:
        if line["step"] in steps:
            kept[line["step"]] = {name: p.detach().clone() for name, p in model.named_parameters()}

    run = fit(
        model,
        records.train,
        optimizer=optimizer,
        delta=1e-5,
        epochs=math.ceil(max(steps) * batch / size),
        expected_batch_size=min(batch, size),
        seed=0,
        on_step=keep,
        **options,
    )
    return kept, run.noise_multiplier


def first_records(records: DataSet, count: int) -> tuple[Tensor, Tensor]:
    rows = [records.train[k] for k in range(count)]  # the order of the file is random
    return torch.stack([x for x, _ in rows]), torch.tensor([int(y) for _, y in rows])


def gradient_rows(model: nn.Module, weights: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
    """The gradient of each record as a row, one after the other."""
    parameters = {name: value.requires_grad_() for name, value in weights.items()}
    rows = []
    for x, y in zip(inputs, targets, strict=True):
        loss = nn.functional.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(parameters.values()))]))
    return torch.stack(rows)


def _cosine(gradients: Tensor, threshold: float, noise: float, seed: int) -> float:
    random = torch.Generator().manual_seed(seed)
    weights = (threshold / gradients.norm(dim=1).clamp_min(1e-12)).clamp_max(1.0)
    clipped, true = (weights[:, None] * gradients).sum(0), gradients.sum(0)
    draws = torch.randn(DRAWS, len(true), generator=random) * (noise * threshold)
    return float(nn.functional.cosine_similarity(clipped + draws, true[None], dim=1).mean())


def _series(step: int, values: Sequence[float]) -> Series:
    return Series(f"step {step}", tuple(Point(x, y) for x, y in zip(THRESHOLDS, values, strict=True)))
