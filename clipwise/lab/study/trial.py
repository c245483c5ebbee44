"""One training run of a study. It is known by the hash of what changes its result, and of the file that it trains on, so
that a study that was cut goes on where it stopped, and on other data begins anew.

An option that is left at its default is no part of the hash: one that Clipwise gets later leaves the runs of today what
they are, and results that were published keep their names. Were a default itself to change, runs that leave it alone would
be other runs of the same name: its option then goes into `_ALWAYS` (a test holds the defaults).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from clipwise.lab.identity import content_of
from clipwise.lab.tuning.share import Share
from clipwise.mechanism import Performance
from clipwise.training.options import TrainConfig

_NO_PART = {
    "out",
    "tensorboard",
    "log_to",
    "unit",
    "unsafe_diagnostics",
    *Performance.model_fields,
}  # where, how fast, in which words
_DEFAULTS = {name: known.get_default(call_default_factory=True) for name, known in TrainConfig.model_fields.items()}
_ALWAYS = {"data", "method"}  # the default of method was fixed once; data is what a run is on


@dataclass(frozen=True)
class Trial:
    """One training run of a study."""

    variant: str
    config: TrainConfig
    published: Mapping[str, float] = field(default_factory=dict)
    published_gap: Mapping[str, float] = field(default_factory=dict)  # privacy cost gap, for `clipwise fairness`
    share: Share | None = None  # of its epsilon, where that pays for a search

    @property
    def id(self) -> str:
        chosen = self.config.model_dump(exclude=_NO_PART, exclude_none=True)
        options = {name: value for name, value in chosen.items() if name in _ALWAYS or value != _DEFAULTS[name]}
        if self.share is not None:
            options["tuning"] = asdict(self.share)
        if (content := content_of(self.config)) is not None:
            options["content"] = content
        written = json.dumps(options, sort_keys=True, default=str)  # inf and nan read as such, which is enough here
        return hashlib.sha256(written.encode()).hexdigest()[:12]
