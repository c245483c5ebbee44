"""One training run of a study. It is known by the hash of its options, and of the file that it trains on, so that a study
that was cut goes on where it stopped, and on other data begins anew."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from clipwise.lab.identity import content_of
from clipwise.lab.tuning.share import Share
from clipwise.training.options import TrainConfig


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
        options = self.config.model_dump(exclude={"out", "tensorboard"}, exclude_none=True)
        if self.share is not None:
            options["tuning"] = asdict(self.share)
        if (content := content_of(self.config)) is not None:
            options["content"] = content
        written = json.dumps(options, sort_keys=True, default=str)  # inf and nan read as such, which is enough here
        return hashlib.sha256(written.encode()).hexdigest()[:12]
