"""A study as a TOML file: options common to all runs, a grid of options, and variants, one a line of the table.

    title = "Every method on MNIST"
    source = "DC-SGD, Table II"             # what it compares with
    differs = "another model; 10 epochs"    # from that source
    minutes = 40                            # on 2 cores
    tuning = "thresholds are the papers' defaults; nothing was tuned"

    [common]                                # options of `clipwise train`
    data = "mnist"
    [grid]                                  # every combination of these
    epsilon = [1, 3]
    seed = [0, 1, 2]
    [[variant]]                             # and each of these, which may override both
    name = "fixed, C = 0.1"
    method = "fixed"
    method_options = { threshold = 0.1 }
    published = { "1" = 95.1, "3" = 97.2 }  # the source's own figures in per cent, by epsilon
    published_gap = { "1" = 9.4 }            # and its privacy cost gap (see `clipwise fairness`)

    [quick]                                 # what `--quick` changes: common, grid, and which variants
    variants = ["fixed, C = 0.1"]

A trial is known by the hash of its options, so that a study that was cut goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clipwise.config import TrainConfig, make_config
from clipwise.types import BadArgument

_FACTS = {"title": "", "source": "", "differs": "", "minutes": 0.0, "tuning": "not said"}
_KEYS = {*_FACTS, "common", "grid", "variant", "quick"}
_ABOUT = "study.json"
_OWN = {"name", "published", "published_gap"}  # of a variant, beside options


@dataclass(frozen=True)
class Trial:
    """One training run of a study."""

    variant: str
    config: TrainConfig
    published: Mapping[str, float] = field(default_factory=dict)
    published_gap: Mapping[str, float] = field(default_factory=dict)  # privacy cost gap, for `clipwise fairness`

    @property
    def id(self) -> str:
        options = self.config.model_dump(exclude={"out"}, exclude_none=True)
        written = json.dumps(options, sort_keys=True, default=str)  # inf and nan read as such, which is enough here
        return hashlib.sha256(written.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class About:
    """What a table or a page says of a study; kept beside its results as study.json."""

    name: str
    title: str
    source: str
    differs: str
    minutes: float
    tuning: str
    trials: int
    published: Mapping[str, Mapping[str, float]]  # for each variant, in order: the source's own figures by epsilon
    command: str

    def write(self, folder: Path) -> None:
        (folder / _ABOUT).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> About:
        try:
            return cls(**json.loads((folder / _ABOUT).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise BadArgument(
                f"{folder / _ABOUT} is damaged ({error}); run the study again, which keeps its results"
            ) from error


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    source: str
    differs: str
    minutes: float
    tuning: str
    trials: tuple[Trial, ...]

    def about(self, command: str) -> About:
        published = {trial.variant: dict(trial.published) for trial in self.trials}
        facts = {name: getattr(self, name) for name in ("name", *_FACTS)}
        return About(**facts, trials=len(self.trials), published=published, command=command)


def read_study(path: Path, *, quick: bool = False) -> Study:
    """The study with all its trials, checked: whatever is wrong with the hundredth is said before the first runs."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadArgument(f"study={str(path)!r} cannot be read ({error}); give a TOML file, see studies/") from error
    return make_study(values, path, quick=quick)


def make_study(values: Mapping[str, Any], path: Path, *, quick: bool = False) -> Study:
    """The study of these values; `path` names it, in messages too."""
    if unknown := values.keys() - _KEYS:
        raise BadArgument(f"study={str(path)!r}: {sorted(unknown)} unknown; known are {', '.join(sorted(_KEYS))}")
    common, grid = _table(values, "common", path), _table(values, "grid", path)
    variants = values.get("variant", [])
    if not (isinstance(variants, list) and variants):
        raise BadArgument(f"study={str(path)!r} has no [[variant]]; give at least one, with a name")
    if quick:
        short = _table(values, "quick", path)
        if unknown := short.keys() - {"common", "grid", "variants"}:
            raise BadArgument(f"study={str(path)!r}: [quick] has {sorted(unknown)}; it may have common, grid, variants")
        common, grid = {**common, **short.get("common", {})}, {**grid, **short.get("grid", {})}
        if (chosen := short.get("variants")) is not None:
            if unknown := set(chosen) - {variant.get("name") for variant in variants}:
                raise BadArgument(f"study={str(path)!r}: [quick] names {sorted(unknown)}, which are no variants")
            variants = [variant for variant in variants if variant["name"] in chosen]
    trials = [trial for variant in variants for trial in _trials(path, common, grid, variant)]
    facts = {name: values.get(name, default) for name, default in _FACTS.items()}
    unique = {trial.id: trial for trial in reversed(trials)}  # a variant that overrides the grid meets itself
    return Study(path.stem, **facts, trials=tuple(reversed(unique.values())))


def _table(values: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    table = values.get(name, {})
    if not isinstance(table, dict):
        raise BadArgument(f"study={str(path)!r}: {name} is not a table; write [{name}] above its options")
    return table


def _trials(path: Path, common: dict[str, Any], grid: dict[str, Any], variant: dict[str, Any]) -> list[Trial]:
    name = variant.get("name")
    if not isinstance(name, str) or not name:
        raise BadArgument(f"study={str(path)!r}: a [[variant]] has no name; give each one")
    own = {key: value for key, value in variant.items() if key not in _OWN}
    free = {key: values for key, values in grid.items() if key not in own}
    for key, values in free.items():
        if not isinstance(values, list) or not values:
            raise BadArgument(f"study={str(path)!r}: grid.{key}={values!r} is not a list of values; write [{values!r}]")
    trials = []
    for chosen in itertools.product(*free.values()):
        options = {**common, **dict(zip(free, chosen, strict=True)), **own}
        for key in ("epsilon", "lr"):  # TOML tells 3 from 3.0; people do not
            if isinstance(options.get(key), int):
                options[key] = float(options[key])
        config = make_config(options, f"{path}, variant {name!r}")
        if config.seed is None:
            raise BadArgument(f"study={str(path)!r}, variant {name!r}: no seed; add one to [common] or [grid]")
        _check(config)
        trials.append(Trial(name, config, variant.get("published", {}), variant.get("published_gap", {})))
    return trials


def _check(config: TrainConfig) -> None:
    """What make_config leaves to the run itself: method, model and data by name."""
    from clipwise import validate
    from clipwise.clipping import make_method
    from clipwise.data import DATASETS, is_file
    from clipwise.models import MODELS

    if config.epsilon != math.inf:
        make_method(config.method, **config.method_options)
    if config.model is not None:
        validate.choice("model", config.model, MODELS)
    if not is_file(config.data):
        source = DATASETS[validate.choice("data", config.data, DATASETS)]
        if source.find() is None:
            raise BadArgument(
                f"data={config.data!r} is not here; {source.how_to_get}, under the folder that CLIPWISE_DATA names"
            )
