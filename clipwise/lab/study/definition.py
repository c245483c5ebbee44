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
epsilon = [1, 3]                        # or noise_multiplier, sigma_0: then the honest epsilon of each run is reported
seed = [0, 1, 2]
[grid.method_options]                   # also of the method's options
threshold = [0.1, 1]
[[variant]]                             # and each of these, which may override both
name = "fixed, C = {threshold}"         # an option in braces makes a line for each of its values
method = "fixed"
tuning = { strategy = "grid-rdp", candidates = 10 }  # epsilon pays for this search; one candidate is run (docs/tuning.md)
published = { "1" = 95.1, "3" = 97.2 }  # the source's own figures in per cent, by epsilon (or by sigma_0)
published_gap = { "1" = 9.4 }            # and its privacy cost gap (see `clipwise fairness`)

[picture]                               # accuracy against an option: a line for the methods that are given it,
x = "threshold"                         # a level for all others. With y, another option: a heat map for each method

[regret]                                # points below the best of a grid: see regret.py
[quick]                                 # what `--quick` changes: common, the (first) grid, and which variants
variants = ["fixed, C = {threshold}"]

A file may begin from another: with `extends = "NAME"` (beside it, or one of ours) it has all of that one and says what differs.
Its [common] adds to that file's, its [grid] stands in its place, a [[variant]] of a known name changes that variant and any other
joins them, and `variants` names those that stay. Title, differs, minutes and what else it states are its own.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from clipwise import files, validate
from clipwise.lab.study.regret import check_regret
from clipwise.lab.study.trial import Trial
from clipwise.lab.tuning.share import Share
from clipwise.training.config import make_config
from clipwise.types import BadArgument

FILES = Path(__file__).parent / "files"  # studies that come with Clipwise
_FACTS = {"title": "", "source": "", "differs": "", "minutes": 0, "tuning_cost": "not said", "tuning": ""}
_KEYS = {*_FACTS, "common", "grid", "variant", "picture", "regret", "quick", "extends", "variants"}
_COSTS = ("none", "charged", "not charged", "not said")
_ABOUT = "study.json"
Keyed = Literal["epsilon", "noise"]
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
    picture_y: str | None = None  # and the other one, of a heat map
    keyed: Keyed = "epsilon"
    regret: Mapping[str, Any] | None = None  # which variant is judged against which grid: see regret.py

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
    picture_y: str | None
    trials: tuple[Trial, ...]
    regret: Mapping[str, Any] | None = None

    @property
    def keyed(self) -> Keyed:
        """What a column of its table stands for: one epsilon, or one first noise multiplier."""
        return "noise" if any(trial.config.noise_multiplier is not None for trial in self.trials) else "epsilon"

    def about(self, command: str) -> About:
        published = {trial.variant: dict(trial.published) for trial in self.trials}
        facts = {name: getattr(self, name) for name in ("name", "picture", "picture_y", "keyed", "regret", *_FACTS)}
        return About(**facts, trials=tuple(trial.id for trial in self.trials), published=published, command=command)


def located(path: Path) -> Path:
    """A file, or by its name alone one of those that come with Clipwise (`clipwise study quick`)."""
    ours = FILES / f"{path.name}.toml"
    return ours if path.parent == Path() and not path.suffix and not path.is_file() and ours.is_file() else path


def read_study(path: Path, *, quick: bool = False, check: bool = True) -> Study:
    """The study with all its trials, checked: whatever is wrong with the hundredth is said before the first runs.

    Without `check`, data and models are left alone, for those who only want to know what is in the file.
    """
    path = located(path)
    return make_study(_extended(_read(path), path), path, quick=quick, check=check)


def _read(path: Path) -> dict[str, Any]:
    try:
        return files.parse_toml(files.read_bytes(path, most=files.MOST_CONFIG).decode())
    except (OSError, UnicodeDecodeError, files.Malformed) as error:
        raise BadArgument(
            f"study={str(path)!r} cannot be read ({error}); give a TOML file, or a name from `clipwise study --list`"
        ) from error


def _extended(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """With what it takes from the file that it extends, which may not extend a third."""
    if not (values.keys() & {"extends", "variants"}):
        return values
    name = values.get("extends")
    if not isinstance(name, str):
        raise BadArgument(
            f'study={str(path)!r}: extends={name!r} is no study; write extends = "NAME" (or drop variants)'
        )
    beside = path.parent / f"{name}.toml"
    base = _read(beside if beside.is_file() else located(Path(name)))
    if "extends" in base:
        raise BadArgument(f"study={str(path)!r} extends {name!r}, which extends another; extend that one")
    known = {variant.get("name"): variant for variant in base.get("variant", [])}
    for variant in values.get("variant", []):
        known[variant.get("name")] = {**known.get(variant.get("name"), {}), **variant}
    chosen = values.get("variants", list(known))
    if unknown := set(chosen) - known.keys():
        raise BadArgument(f"study={str(path)!r}: variants names {sorted(unknown)}, which are no variants")
    own = {key: value for key, value in values.items() if key not in ("extends", "variants")}
    common = {**base.get("common", {}), **values.get("common", {})}
    return {**base, **own, "common": common, "variant": [known[name] for name in chosen]}


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
        path.stem,
        **_facts(values, path),
        **_picture(values, path),
        trials=tuple(reversed(unique.values())),
        regret=check_regret(_table(values, "regret", path), path),
    )
    if study.keyed == "noise" and any(trial.config.epsilon not in (None, math.inf) for trial in study.trials):
        raise BadArgument(
            f"study={str(path)!r} states epsilon for some runs and noise_multiplier for others, and a column of its table is one "
            "of the two; make two studies of it"
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


def _picture(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    table = _table(values, "picture", path)
    if table and not ("x" in table and table.keys() <= {"x", "y"} and all(isinstance(v, str) for v in table.values())):
        raise BadArgument(
            f'study={str(path)!r}: [picture] is {table!r}; it has an option, such as x = "threshold", and perhaps another, y'
        )
    return {"picture": table.get("x"), "picture_y": table.get("y")}


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
    free = _free(path, grid, own)
    share = Share.read(variant["tuning"], f"study={str(path)!r}, variant {name!r}") if "tuning" in variant else None
    if share is not None and share.uncharged:
        name += NOT_CHARGED  # in the name, so that no table, picture or page can leave it out
    trials = []
    for chosen in itertools.product(*free.values()):
        options = _joined(common, dict(zip(free, chosen, strict=True)), own)
        config = make_config(options, f"{path}, variant {name!r}")
        if config.seed is None:
            raise BadArgument(f"study={str(path)!r}, variant {name!r}: no seed; add one to [common] or [grid]")
        if config.epsilon is None and config.noise_multiplier is None:
            raise BadArgument(
                f"study={str(path)!r}, variant {name!r}: no epsilon, and methods are compared at equal ones; add it to "
                "[common] or [grid] (or noise_multiplier there, and epsilons are reported), or epsilon = inf to the variant without privacy"
            )
        published, gap = (_by_epsilon(variant, key, path) for key in ("published", "published_gap"))
        if share is not None and config.epsilon in (None, math.inf):
            raise BadArgument(
                f"study={str(path)!r}, variant {name!r}: tuning with epsilon = {config.epsilon}: there is no budget to share; leave tuning "
                "out"
            )
        trials.append(Trial(_named(name, options, path), config, published, gap, share))
    return trials


def _free(path: Path, grid: Mapping[str, Any], own: Mapping[str, Any]) -> dict[tuple[str, ...], list[Any]]:
    """The lists of the grid that the variant does not override: by the name of an option, or ("method_options", name)."""
    lists: dict[tuple[str, ...], Any] = {(key,): values for key, values in grid.items() if key != "method_options"}
    of_method = grid.get("method_options", {})
    if isinstance(of_method, dict):
        lists |= {("method_options", key): values for key, values in of_method.items()}
    else:
        lists["method_options",] = of_method
    budgets = {"epsilon", "noise_multiplier"}
    taken: set[tuple[str, ...]] = {(key,) for key in own} | {
        ("method_options", key) for key in own.get("method_options", {})
    }
    if own.keys() & budgets:  # either decides the other
        taken |= {(key,) for key in budgets}
    if own.get("epsilon") == math.inf:  # no method to have options
        taken |= {key for key in lists if key[0] == "method_options"}
    free = {key: values for key, values in lists.items() if key not in taken}
    for key, values in free.items():
        if not isinstance(values, list) or not values:
            raise BadArgument(
                f"study={str(path)!r}: grid.{'.'.join(key)}={values!r} is not a list of values; write [{values!r}]"
            )
    return free


def _joined(common: Mapping[str, Any], point: Mapping[tuple[str, ...], Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one run: those of the variant win over the grid's point, and these over the common ones."""
    options = {**common, **{key[0]: value for key, value in point.items() if len(key) == 1}, **own}
    of_method = {
        **common.get("method_options", {}),
        **{key[1]: value for key, value in point.items() if len(key) == 2},
        **own.get("method_options", {}),
    }
    if own.get("epsilon") == math.inf:  # no noise, and no method to have options
        of_method = own.get("method_options", {})
        options.pop("noise_multiplier", None)
        options.pop("method_options", None)
    if of_method:
        options["method_options"] = of_method
    for key in ("epsilon", "lr", "noise_multiplier"):  # TOML tells 3 from 3.0; people do not
        if isinstance(options.get(key), int):
            options[key] = float(options[key])
    return options


def _named(name: str, options: Mapping[str, Any], path: Path) -> str:
    """With the values of the options that its name has in braces."""

    def value(found: re.Match[str]) -> str:
        known = {**options, **options.get("method_options", {})}
        if found[1] not in known:
            raise BadArgument(f"study={str(path)!r}, variant {name!r}: {found[0]} is no option of this run")
        given = known[found[1]]
        return f"{given:g}" if isinstance(given, int | float) and not isinstance(given, bool) else str(given)

    return re.sub(r"\{(\w+)\}", value, name)


def _by_epsilon(variant: Mapping[str, Any], key: str, path: Path) -> dict[str, float]:
    """Figures of the source by epsilon (or by sigma_0), as the table looks them up; inf for the run without privacy."""
    try:
        return {f"{float(epsilon):g}": float(figure) for epsilon, figure in variant.get(key, {}).items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise BadArgument(
            f"study={str(path)!r}, variant {variant['name']!r}: {key}={variant[key]!r} does not give figures by epsilon; "
            'write { "1" = 94.5, "inf" = 99.0 }'
        ) from error
