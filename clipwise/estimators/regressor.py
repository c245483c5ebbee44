"""`PrivateRegressor`: see the package for the guarantee."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data
from torch import Tensor

from clipwise import validate
from clipwise.estimators.base import PrivateEstimator, bounds, to_unit

LOSSES = ("squared-error", "huber")
NO_TARGET_RANGE = (
    "y has no public range: it is used as it is, and targets far from -1..1 train badly under clipping. Give target_range=(low, high), two "
    "numbers that do not come from these rows"
)


class PrivateRegressor(RegressorMixin, PrivateEstimator):
    """A regressor that trains under differential privacy, with the manners of scikit-learn.

        PrivateRegressor(epsilon=3, ranges=(low, high), target_range=(0, 100)).fit(X, y).predict(X_new)

    Parameters, beside those of `PrivateClassifier` (but `classes`; a method other than `auto` has a rate of 0.003 here):
        target_range: (low, high) of y, public: targets are clipped to it, and so are predictions.
        loss: "squared-error", or "huber", which counts large errors by their size: for targets with outliers.

    After fit: n_features_in_, epsilon_, delta_, statement_, history_, model_.
    """

    RATE = 0.003

    def __init__(
        self,
        epsilon: float = 3.0,
        *,
        delta: float | None = None,
        ranges: tuple[Any, Any] | None = None,
        scaled: bool = False,
        target_range: tuple[float, float] | None = None,
        loss: str = "squared-error",
        model: Any = "mlp",
        epochs: int | None = None,
        expected_batch_size: int | None = None,
        method: str = "auto",
        learning_rate: float | None = None,
        ledger: Any = None,
        random_state: Any = None,
    ):
        super().__init__(
            epsilon,
            delta=delta,
            ranges=ranges,
            scaled=scaled,
            model=model,
            epochs=epochs,
            expected_batch_size=expected_batch_size,
            method=method,
            learning_rate=learning_rate,
            ledger=ledger,
            random_state=random_state,
        )
        self.target_range = target_range
        self.loss = loss

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows X with numbers y. Everything is checked before anything is spent."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        validate.choice("loss", self.loss, LOSSES)
        notes = self._checked_ranges(X.shape[1])
        if self.target_range is None:
            warnings.warn(NO_TARGET_RANGE, stacklevel=2)
            notes.append("no public range of the targets was stated: they were used as they came")
        else:
            y = to_unit(y, *(end[0] for end in bounds("target_range", self.target_range, 1)))
            notes.append("targets were clipped to a public range that the caller stated (target_range=)")
        targets = torch.tensor(y, dtype=torch.float32).unsqueeze(1)
        self._train(self._scaled(X), targets, 1, "squared-error" if self.loss == "squared-error" else huber, notes)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """One number a row, within the target range where there is one."""
        found = self._outputs(X)[:, 0]
        if self.target_range is None:
            return found
        low, high = (end[0] for end in bounds("target_range", self.target_range, 1))
        return np.asarray(low + (np.clip(found, -1, 1) + 1) * (high - low) / 2)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        tags.non_deterministic = self.random_state is None
        return tags


def huber(output: Tensor, target: Tensor) -> Tensor:
    """One loss a row; beyond 1, half of the target range, an error counts by its size."""
    return F.huber_loss(output, target, reduction="none").mean(dim=1)
