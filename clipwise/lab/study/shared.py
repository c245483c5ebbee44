"""The plan behind a trial whose epsilon pays for a search: see `clipwise.lab.tuning.share`. Made when its run starts, and kept."""

from __future__ import annotations

import threading
from typing import Any

from clipwise.data.described import OwnData
from clipwise.lab.study.trial import Trial
from clipwise.lab.tuning.planning import SearchPlan
from clipwise.lab.tuning.share import Share
from clipwise.training.options import TrainConfig

_OF_DATA = {"data", "records", "standardize", "vocabulary", "model", "pretrained", "loss", *OwnData.model_fields}
_plans: dict[str, SearchPlan] = {}
_records: dict[str, tuple[TrainConfig, int]] = {}
_read: dict[str, Any] = {}  # the data set that was read last: the trials of a study mostly share one
_one_at_a_time = threading.Lock()  # runs start in threads


def check_share(trial: Trial) -> None:
    """Refuses a budget that is too small for the candidates that are to share it."""
    with _one_at_a_time:
        share, config, records = _asked(trial)
        share.check(config, records)


def shared_plan(trial: Trial) -> SearchPlan:
    with _one_at_a_time:
        if trial.id not in _plans:
            share, config, records = _asked(trial)
            _plans[trial.id] = share.plan(config, records)
        return _plans[trial.id]


def _asked(trial: Trial) -> tuple[Share, TrainConfig, int]:
    """Its share, its options in full, and how many records it trains on."""
    from clipwise.training.execute import load_asked
    from clipwise.training.resolve import resolve

    if trial.share is None:
        raise ValueError("this trial has all of its epsilon to itself")
    if trial.id not in _records:
        key = repr(trial.config.model_dump(include=_OF_DATA))
        if key not in _read:
            _read.clear()
            _read[key] = load_asked(trial.config)
        dataset = _read[key]
        _records[trial.id] = resolve(trial.config, dataset), len(dataset.train)
    return trial.share, *_records[trial.id]
