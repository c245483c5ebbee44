"""scikit-learn estimators that train privately: `clipwise.PrivateClassifier` and `clipwise.PrivateRegressor`.

    model = clipwise.PrivateClassifier(epsilon=3, ranges=(0, 16)).fit(X, y)
    model.predict(X_new), model.epsilon_, print(model.statement_.to_markdown())

Formal guarantee: what `fit` leaves in the estimator (its weights and all names that end in `_`) is (epsilon, delta)-differentially
private with respect to one row of X and y, under what `statement_` says. `fit` trains with `clipwise.fit`: sampling, noise and
ledger are those of every run. Treated as public, and said so in the statement:

| what                      | because                                                                          |
| ------------------------- | -------------------------------------------------------------------------------- |
| number of rows, columns   | the rate and the model follow from them                                          |
| ranges, target range      | you state them; rows are clipped to them, each by itself                         |
| classes                   | you state them, or they are read off y, which tells that each of them occurred   |
| that X is scaled          | you declare it (scaled=True); a scaler fitted on these rows would be outside     |

Each fit spends its own epsilon. Fits of clones, as GridSearchCV and cross-validation make them, are not charged together, nor is the
choice between them: each warns. `clipwise tune` (`clipwise.tune`) searches within one budget.
"""

from __future__ import annotations

from clipwise.estimators.classifier import PrivateClassifier
from clipwise.estimators.regressor import PrivateRegressor

__all__ = ["PrivateClassifier", "PrivateRegressor"]
