"""Whether a classifier's probabilities are what they say: expected calibration error, and the bins that a reliability diagram
shows.

Records are sorted by the probability of the class that is predicted, into bins of equal width; in each bin the share that is
right is compared with the mean of that probability. ECE is the mean difference, weighted by records (Naeini et al. 2015, Guo
et al. 2017). Exact functions of the records they are given, like all figures of this room.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clipwise.fairness.metrics import Array
from clipwise.proportion import wilson
from clipwise.types import BadArgument

BINS = 15  # of equal width, as in Guo et al. 2017


def calibration(targets: Array, probabilities: Array, bins: int = BINS) -> dict[str, Any]:
    """ECE, and the bins that have records, ready for JSON."""
    if probabilities.ndim != 2 or len(targets) != len(probabilities):
        raise BadArgument(
            f"probabilities of shape {probabilities.shape} for {len(targets)} records; give a row a record, a column a class"
        )
    sure, right = probabilities.max(1), probabilities.argmax(1) == targets
    places = np.clip((sure * bins).astype(int), 0, bins - 1)
    found, error = [], 0.0
    for place in np.unique(places):
        inside = places == place
        records, hits, mean = int(inside.sum()), int(right[inside].sum()), float(sure[inside].mean())
        error += records / len(targets) * abs(hits / records - mean)
        found.append(
            {
                "from": float(place) / bins,
                "to": (float(place) + 1) / bins,
                "records": records,
                "probability": mean,
                "right": hits / records,
                "interval": list(wilson(hits / records, records)),
            }
        )
    return {"ece": error, "bins": found}
