"""A study as a TOML file: options common to all runs, a grid of options, and variants, one a line of the table.

title = "Every method on MNIST"
source = "DC-SGD, Table II"             # what it compares with
differs = "another model; 10 epochs"    # from that source
minutes = 40                            # on 2 cores
tuning_cost = "not charged"             # to epsilon; or charged, or none: nothing was tuned
tuning = "learning rates were chosen by test accuracy"

[common]                                # options of `clipwise train`
data = "mnist"
[grid]                                  # every combination of these; [[grid]], twice or more: all of each
epsilon = [1, 3]
seed = [0, 1, 2]
[[variant]]                             # and each of these, which may override both
name = "fixed, C = 0.1"
method = "fixed"
method_options = { threshold = 0.1 }
tuning = { strategy = "grid-rdp", candidates = 10 }  # epsilon pays for this search; one candidate is run (docs/tuning.md)
published = { "1" = 95.1, "3" = 97.2 }  # the source's own figures in per cent, by epsilon
published_gap = { "1" = 9.4 }            # and its privacy cost gap (see `clipwise fairness`)

[picture]                               # accuracy against an option: a line for the methods that are given it,
x = "threshold"                         # a level for all others

[quick]                                 # what `--quick` changes: common, the (first) grid, and which variants
variants = ["fixed, C = 0.1"]
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clipwise import files, validate
from clipwise.lab.study.trial import Trial
from clipwise.lab.tuning.share import Share
from clipwise.training.config import make_config
from clipwise.types import BadArgument

_FACTS = {"title": "", "source": "", "differs": "", "minutes": 0, "tuning_cost": "not said", "tuning": ""}
_KEYS = {*_FACTS, "common", "grid", "variant", "picture", "quick"}
_COSTS = ("none", "charged", "not charged", "not said")
_ABOUT = "study.json"
NOT_CHARGED = " (SEARCH NOT CHARGED)"
_OWN = {"name", "tuning", "published", "published_gap"}  # of a variant, beside options


@dataclass(frozen=True)
class About:
    """What a table or a page says of a study; kept beside its results as study.json."""

    name: str
    title: str
    source: str
    differs: str
    minutes: float
    tuning: str
    trials: tuple[
        str, ...
    ]  # their ids: a folder may hold results of what the file said before, or of its quick version
    published: Mapping[str, Mapping[str, float]]  # for each variant, in order: the source's own figures by epsilon
    command: str
    tuning_cost: str = "not said"  # of the epsilon in the table: none, charged or not charged
    picture: str | None = None  # the option that accuracy is drawn against

    def write(self, folder: Path) -> None:
        (folder / _ABOUT).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> About:
        try:
            values = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
            return cls(**{**values, "trials": tuple(values["trials"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
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
    tuning_cost: str
    tuning: str
    picture: str | None
    trials: tuple[Trial, ...]

    def about(self, command: str) -> About:
        published = {trial.variant: dict(trial.published) for trial in self.trials}
        facts = {name: getattr(self, name) for name in ("name", "picture", *_FACTS)}
        return About(**facts, trials=tuple(trial.id for trial in self.trials), published=published, command=command)


def read_study(path: Path, *, quick: bool = False, check: bool = True) -> Study:
    """The study with all its trials, checked: whatever is wrong with the hundredth is said before the first runs.

    Without `check`, data and models are left alone, for those who only want to know what is in the file.
    """
    try:
        values = files.parse_toml(files.read_bytes(path, most=files.MOST_CONFIG).decode())
    except (OSError, UnicodeDecodeError, files.Malformed) as error:
        raise BadArgument(f"study={str(path)!r} cannot be read ({error}); give a TOML file, see studies/") from error
    return make_study(values, path, quick=quick, check=check)


def make_study(values: Mapping[str, Any], path: Path, *, quick: bool = False, check: bool = True) -> Study:
    """The study of these values; `path` names it, in messages too."""
    if unknown := values.keys() - _KEYS:
        raise BadArgument(f"study={str(path)!r}: {sorted(unknown)} unknown; known are {', '.join(sorted(_KEYS))}")
    common, grids = _table(values, "common", path), _grids(values, path)
    variants = values.get("variant", [])
    if not (isinstance(variants, list) and variants):
        raise BadArgument(f"study={str(path)!r} has no [[variant]]; give at least one, with a name")
    if quick:
        common, grids, variants = _shortened(_table(values, "quick", path), common, grids, variants, path)
    trials = [
        trial
        for grid in grids  # every variant at one point, then the next: a part of a study compares them all
        for point in itertools.zip_longest(*(_trials(path, common, grid, variant) for variant in variants))
        for trial in point
        if trial is not None
    ]
    unique = {trial.id: trial for trial in reversed(trials)}  # a variant that overrides the grid meets itself
    study = Study(
        path.stem, **_facts(values, path), picture=_picture(values, path), trials=tuple(reversed(unique.values()))
    )
    if check:
        from clipwise.lab.study.check import check_trials  # imports torch

        check_trials(study.trials)
    return study


def _facts(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    facts = {name: values.get(name, default) for name, default in _FACTS.items()}
    for name, value in facts.items():
        wanted, words = (int | float, "a number") if name == "minutes" else (str, "text")
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise BadArgument(f"study={str(path)!r}: {name}={value!r} is not {words}; write {words} there")
    validate.choice("tuning_cost", facts["tuning_cost"], _COSTS)
    return facts


def _picture(values: Mapping[str, Any], path: Path) -> str | None:
    table = _table(values, "picture", path)
    if table and (table.keys() != {"x"} or not isinstance(table["x"], str)):
        raise BadArgument(f'study={str(path)!r}: [picture] is {table!r}; it has one entry, such as x = "threshold"')
    return table.get("x")


def _grids(values: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    """One grid, [grid], or several, [[grid]]: a study has every combination of each."""
    grids = values.get("grid", {})
    grids = grids if isinstance(grids, list) and grids else [grids]
    return [_table({"grid": grid}, "grid", path) for grid in grids]


def _shortened(
    short: dict[str, Any],
    common: dict[str, Any],
    grids: list[dict[str, Any]],
    variants: list[dict[str, Any]],
    path: Path,
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """The quick version: fewer variants, one grid, other options."""
    if not short:
        raise BadArgument(f"study={str(path)!r} has no [quick] version; run it whole, or add one")
    if unknown := short.keys() - {"common", "grid", "variants"}:
        raise BadArgument(f"study={str(path)!r}: [quick] has {sorted(unknown)}; it may have common, grid, variants")
    common, grids = {**common, **short.get("common", {})}, [{**grids[0], **short.get("grid", {})}]
    if (chosen := short.get("variants")) is not None:
        if unknown := set(chosen) - {variant.get("name") for variant in variants}:
            raise BadArgument(f"study={str(path)!r}: [quick] names {sorted(unknown)}, which are no variants")
        variants = [variant for variant in variants if variant["name"] in chosen]
    return common, grids, variants


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
    share = Share.read(variant["tuning"], f"study={str(path)!r}, variant {name!r}") if "tuning" in variant else None
    if share is not None and share.uncharged:
        name += NOT_CHARGED  # in the name, so that no table, picture or page can leave it out
    trials = []
    for chosen in itertools.product(*free.values()):
        options = {**common, **dict(zip(free, chosen, strict=True)), **own}
        for key in ("epsilon", "lr"):  # TOML tells 3 from 3.0; people do not
            if isinstance(options.get(key), int):
                options[key] = float(options[key])
        config = make_config(options, f"{path}, variant {name!r}")
        if config.seed is None:
            raise BadArgument(f"study={str(path)!r}, variant {name!r}: no seed; add one to [common] or [grid]")
        if config.epsilon is None:
            raise BadArgument(
                f"study={str(path)!r}, variant {name!r}: no epsilon, and methods are compared at equal ones; add it to "
                "[common] or [grid], or epsilon = inf to the variant without privacy"
            )
        published, gap = (_by_epsilon(variant, key, path) for key in ("published", "published_gap"))
        if share is not None and config.epsilon == float("inf"):
            raise BadArgument(
                f"study={str(path)!r}, variant {name!r}: tuning with epsilon = inf: there is no budget to share; leave tuning out"
            )
        trials.append(Trial(name, config, published, gap, share))
    return trials


def _by_epsilon(variant: Mapping[str, Any], key: str, path: Path) -> dict[str, float]:
    """Figures of the source by epsilon, as the table looks them up; inf for the run without privacy."""
    try:
        return {f"{float(epsilon):g}": float(figure) for epsilon, figure in variant.get(key, {}).items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise BadArgument(
            f"study={str(path)!r}, variant {variant['name']!r}: {key}={variant[key]!r} does not give figures by epsilon; "
            'write { "1" = 94.5, "inf" = 99.0 }'
        ) from error
