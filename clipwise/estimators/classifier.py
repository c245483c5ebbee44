"""`PrivateClassifier`: see the package for the guarantee."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from clipwise.accounting.later import special
from clipwise.estimators.base import PrivateEstimator
from clipwise.types import BadArgument


class PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """A classifier that trains under differential privacy, with the manners of scikit-learn.

        PrivateClassifier(epsilon=3, ranges=(0, 16)).fit(X, y).predict(X_new)

    Parameters:
        epsilon: what one fit may spend; inf trains without privacy, for comparison.
        delta: below 1 / rows; by default the smaller of 1e-5 and a tenth of that.
        ranges: (low, high) of the features, public: one number for all columns or one a column. Rows are clipped to them.
        scaled: True declares that X was scaled by public numbers, not by a scaler fitted on these rows; the statement quotes it.
        classes: the public list of classes; by default it is read off y, and the statement says so.
        model: "mlp", "linear", or a function of (columns, classes) that makes a torch module.
        epochs, expected_batch_size, method, learning_rate: of the training (Adam). With method='auto', the default, what is not stated is
            found or chosen by rule, and the statement says how; any other has 30 epochs, batches of a tenth and a rate of 0.01.
        ledger: a file for the privacy ledger; what an existing one holds counts in the budget.
        random_state: for studies and tests; without one, randomness is the system's own.

    After fit: classes_, n_features_in_, epsilon_, delta_, statement_, history_, model_.
    """

    def __init__(
        self,
        epsilon: float = 3.0,
        *,
        delta: float | None = None,
        ranges: tuple[Any, Any] | None = None,
        scaled: bool = False,
        classes: Any = None,
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
        self.classes = classes

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows X with classes y. Everything is checked before anything is spent."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        notes = self._checked_ranges(X.shape[1])
        classes, note = self._classes(y)
        place = np.searchsorted(classes, y)
        self._train(
            self._scaled(X), torch.tensor(place, dtype=torch.long), len(classes), "cross-entropy", [*notes, note]
        )
        self.classes_ = classes
        return self

    def _classes(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        found = np.unique(y)
        if self.classes is not None:
            public = np.unique(np.asarray(self.classes))
            if not np.isin(found, public).all():
                raise BadArgument("classes: y holds classes that are not in the list; give all that may occur")
            found, note = public, "the list of classes is public, stated by the caller (classes=)"
        else:
            note = "the list of classes was read off the labels and is treated as public: it tells that each of them occurred"
        if len(found) < 2:
            raise BadArgument(f"y has {len(found)} class; a classifier needs two or more: name them all with classes=")
        return found, note

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each of `classes_`, a row a row of X."""
        return np.asarray(special.softmax(self._outputs(X), axis=1))

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row."""
        place = self._outputs(X).argmax(axis=1)
        return np.asarray(self.classes_[place])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # noise on a few hundred rows costs what the checks ask for
        tags.non_deterministic = self.random_state is None
        return tags
