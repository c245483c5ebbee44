"""What classifier and regressor share: parameters, public ranges, the training itself, and outputs for new rows."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, _clone_parametrized
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from clipwise import validate
from clipwise.automatic.choice import is_automatic
from clipwise.loop.fit import fit
from clipwise.models import Records, get_architecture
from clipwise.statement import Statement
from clipwise.types import BadArgument

MODELS = ("mlp", "linear")  # by name; for rows of numbers
ROWS_AT_ONCE = 8192  # of outputs, so that memory stays small

NOT_SCALED = (
    "X has no public ranges: it is used as it is, and features on unlike scales train badly under clipping. Give ranges=(low, high), two "
    "numbers or two rows of one number a column, that do not come from these rows; or, where X was scaled by public numbers, scaled=True"
)
NOT_CHARGED = (
    "this estimator is a clone, as searches and cross-validation make them: each fit spends its own epsilon on these rows, and neither their "
    "sum nor the choice between them is charged. `clipwise tune` (clipwise.tune) searches within one budget"
)
UNCOUNTED = (
    "**fitted as a clone, as searches and cross-validation do**: other fits on the same rows, and a choice between them, are not "
    "counted here"
)


class PrivateEstimator(BaseEstimator):
    """Not for use by itself."""

    RATE = 0.01  # of Adam, where none is stated and none is found

    def __init__(
        self,
        epsilon: float = 3.0,
        *,
        delta: float | None = None,
        ranges: tuple[Any, Any] | None = None,
        scaled: bool = False,
        model: str | Callable[[int, int], nn.Module] = "mlp",
        epochs: int | None = None,
        expected_batch_size: int | None = None,
        method: str = "auto",
        learning_rate: float | None = None,
        ledger: str | Path | None = None,
        random_state: Any = None,
    ):
        self.epsilon = epsilon
        self.delta = delta
        self.ranges = ranges
        self.scaled = scaled
        self.model = model
        self.epochs = epochs
        self.expected_batch_size = expected_batch_size
        self.method = method
        self.learning_rate = learning_rate
        self.ledger = ledger
        self.random_state = random_state

    def __sklearn_clone__(self) -> Self:
        """A clone is how a search tries parameters; it remembers that it is one."""
        clone: Self = _clone_parametrized(self)
        clone._is_clone = True
        return clone

    def _train(self, inputs: Tensor, targets: Tensor, outputs: int, loss: Any, notes: list[str]) -> None:
        """Train a new model on rows that were checked; sets what ends in `_`."""
        rows, columns = inputs.shape
        seed = None if self.random_state is None else int(check_random_state(self.random_state).randint(2**31 - 1))
        tuning = {}
        if getattr(self, "_is_clone", False):
            warnings.warn(NOT_CHARGED, stacklevel=3)
            tuning = {"tuning": UNCOUNTED}
        done = fit(
            self._module(columns, outputs, seed),
            TensorDataset(inputs, targets),
            loss=loss,
            ledger=self.ledger,
            epsilon=self.epsilon,
            delta=_delta(rows) if self.delta is None else self.delta,
            method=self.method,
            seed=seed,
            **self._length_and_rate(rows),
        )
        self.model_: nn.Module = done.model.eval()
        self.statement_: Statement = dataclasses.replace(
            done.statement, notes=(*done.statement.notes, *notes), **tuning
        )
        self.epsilon_: float = done.epsilon
        self.delta_: float | None = done.delta
        self.history_: list[dict[str, Any]] = done.history

    def _length_and_rate(self, rows: int) -> dict[str, Any]:
        """What is stated; the rest is left to method='auto', and has a default with any other (and without privacy)."""
        stated = {"epochs": self.epochs, "expected_batch_size": self.expected_batch_size}
        if self.learning_rate is None and is_automatic(self.method) and self.epsilon != math.inf:
            return stated
        rate = self.RATE if self.learning_rate is None else validate.positive("learning_rate", self.learning_rate)
        plain = {"epochs": EPOCHS, "expected_batch_size": _batch(rows)}
        return {
            **{name: plain[name] if value is None else value for name, value in stated.items()},
            "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=rate),
        }

    def _module(self, columns: int, outputs: int, seed: int | None) -> nn.Module:
        """A new model; the global random state is left alone."""
        if isinstance(self.model, str):
            validate.choice("model", self.model, MODELS)
        elif not callable(self.model) or isinstance(self.model, nn.Module):
            raise BadArgument(
                f"model={type(self.model).__name__}: give 'mlp', 'linear', or a function of (columns, outputs) that makes a module"
            )
        with torch.random.fork_rng(devices=()):
            if seed is None:
                torch.seed()
            else:
                torch.manual_seed(seed)
            if isinstance(self.model, str):
                return get_architecture(self.model).build(Records((columns,), outputs), None)
            return self.model(columns, outputs)

    def _outputs(self, X: Any) -> np.ndarray:
        """One row of the model's outputs a row of X."""
        check_is_fitted(self)
        inputs = self._scaled(validate_data(self, X, reset=False, dtype=np.float64))
        self.model_.eval()
        with torch.no_grad():
            parts = [self.model_(part) for part in inputs.split(ROWS_AT_ONCE)]
        return np.asarray(torch.cat(parts).double().numpy())

    # -- public ranges
    # ----------------------------------------------------------------------------------------------

    def _checked_ranges(self, columns: int) -> list[str]:
        """Checks the ranges and warns where there are none, before anything is spent; what the statement says of it."""
        if self.ranges is not None:
            bounds("ranges", self.ranges, columns)
            return ["features were clipped to public ranges that the caller stated (ranges=), and scaled to -1..1"]
        if self.scaled:
            return [
                "declared by the caller: features were scaled by public numbers, not by these records (scaled=True)"
            ]
        warnings.warn(NOT_SCALED, stacklevel=4)
        return ["no public ranges were stated: features were used as they came"]

    def _scaled(self, X: np.ndarray) -> Tensor:
        """Each row by itself: clipped to the ranges and put on -1..1, or as it is."""
        if self.ranges is not None:
            X = to_unit(X, *bounds("ranges", self.ranges, X.shape[1]))
        return torch.tensor(X, dtype=torch.float32)


EPOCHS = 30  # a round number, looked at on digits and breast cancer at epsilon 3; the noise is calibrated for them


def _delta(rows: int) -> float:
    """Well below one over the number of rows."""
    return min(1e-5, 1 / (10 * rows))


def _batch(rows: int) -> int:
    """A tenth of the rows, at least 64 and at most 2,048: under noise large batches cost little and gain much."""
    return max(1, min(rows, max(64, min(2048, rows // 10))))


def bounds(name: str, ranges: Any, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The low and the high end, one number a column."""
    try:
        low, high = (np.broadcast_to(np.asarray(end, dtype=float), (columns,)) for end in ranges)
    except (TypeError, ValueError) as error:
        raise BadArgument(
            f"{name}={ranges!r}: give (low, high), each one number for all columns, or one for each of the {columns}"
        ) from error
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise BadArgument(f"{name}={ranges!r}: every low end must be a finite number below its high end")
    return low, high


def to_unit(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Clipped, and from low..high to -1..1."""
    return np.asarray((np.clip(values, low, high) - low) / (high / 2 - low / 2) - 1)
