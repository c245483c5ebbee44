"""What is searched over: a grid of values, or points drawn at random from ranges. Chosen before the data is looked at.

The candidates are a list that is fixed in advance: no sampler here learns from scores, since a score that steers the
search is a release like any other. Ranges need `draw="random"` or `"quasi-random"` (Optuna's samplers, an extra).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from clipwise import validate
from clipwise.training.config import make_config
from clipwise.training.options import TrainConfig
from clipwise.types import BadArgument

DRAWS = ("grid", "random", "quasi-random")
# Options of a run that may differ between candidates, beside those of the method. Budget, data and seed are the search's.
SEARCHABLE = (
    *(
        "method",
        "model",
        "lr",
        "lr_schedule",
        "epochs",
        "batch",
        "optimizer",
        "momentum",
        "weight_decay",
        "average_weights",
        "loss",
        "schedule",
    ),
)
MOST_CANDIDATES = 10_000  # of a grid: more is a typing error, and each is checked before the first run


@dataclass(frozen=True)
class Range:
    """Every number from low to high; by its logarithm if `log`."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        bounds = (self.low, self.high)
        if not all(map(math.isfinite, bounds)) or self.low >= self.high or (self.log and self.low <= 0):
            raise BadArgument(
                f"search: {self.low!r} to {self.high!r} is not a range; give two numbers, low before high"
                + (", both above 0" if self.log else "")
            )


Axis = Sequence[Any] | Range
_METHOD = "fixed"  # where a search names none and the recipe is automatic: a search finds what that would have found


@dataclass(frozen=True)
class Candidate:
    chosen: Mapping[str, Any]  # what distinguishes it
    config: TrainConfig


def parse_axis(text: str) -> tuple[str, Axis]:
    """NAME=V1,V2,... or NAME=LOW..HIGH or NAME=log:LOW..HIGH."""
    name, equals, values = text.partition("=")
    if not (equals and name and values.strip(", ")):
        raise BadArgument(f"--search {text!r} names no values; write it as NAME=V1,V2,... or NAME=LOW..HIGH")
    if ".." in values:
        log, _, bounds = values.rpartition(":")
        try:
            low, high = map(float, bounds.split(".."))
            if log not in ("", "log"):
                raise ValueError(log)
        except ValueError as error:
            raise BadArgument(
                f"--search {text!r} is not a range; write it as NAME=LOW..HIGH or NAME=log:LOW..HIGH"
            ) from error
        return name, Range(low, high, bool(log))
    return name, [_value(value) for value in values.split(",") if value]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def make_candidates(
    options: Mapping[str, Any],
    search: Mapping[str, Axis],
    *,
    draw: str = "grid",
    number: int | None = None,
    seed: int | None = None,
) -> list[Candidate]:
    """The candidates, each checked as `clipwise train` would: whatever is wrong with the last is said before the first runs."""
    validate.choice("draw", draw, DRAWS)
    if not search:
        raise BadArgument("search: it is empty; name what to try, such as --search lr=0.1,0.5")
    for name, axis in search.items():
        if name in ("epsilon", "delta", "noise_multiplier", "data", "seed", "out", "accountant"):
            raise BadArgument(
                f"search: {name!r} belongs to the search as a whole and is not searched over; leave it out"
            )
        if not isinstance(axis, Range) and not len(axis):
            raise BadArgument(f"search: {name!r} has no values; give some, such as {name}=0.1,0.5")
    for name in ("group_counts", "clipped_counts", "unsafe_diagnostics"):
        if options.get(name):
            raise BadArgument(
                f"{name}={options[name]!r} shows more of the data than the plan of a search counts; leave it out, and ask for it "
                "in a run of its own"
            )
    points = _grid(search, number) if draw == "grid" else _drawn(search, draw, number, seed)
    points = list({json.dumps(point, sort_keys=True, default=str): point for point in points}.values())
    if len(points) < 2:
        raise BadArgument(
            f"search: there is one candidate, {points[0]}, so that there is nothing to choose; use clipwise train, which costs less"
        )
    return [_candidate(options, point) for point in points]


def _grid(search: Mapping[str, Axis], number: int | None) -> list[dict[str, Any]]:
    for name, axis in search.items():
        if isinstance(axis, Range):
            raise BadArgument(
                f"search: {name!r} is a range; a grid needs values: list them, or draw at random (--draw random)"
            )
    if number is not None:
        raise BadArgument(
            f"candidates={number!r} is for drawing at random; a grid has all combinations, so leave it out"
        )
    size: int = math.prod([len(axis) for axis in search.values()])  # type: ignore[arg-type, misc]
    if size > MOST_CANDIDATES:
        raise BadArgument(f"search: {size} combinations are more than {MOST_CANDIDATES}; list fewer values")
    return [dict(zip(search, point, strict=True)) for point in itertools.product(*search.values())]  # type: ignore[arg-type]


def _drawn(search: Mapping[str, Axis], draw: str, number: int | None, seed: int | None) -> list[dict[str, Any]]:
    number = validate.count("candidates", number, least=2, remedy="say how many to draw, at least 2")
    if number > MOST_CANDIDATES:
        raise BadArgument(f"candidates={number!r} is more than {MOST_CANDIDATES}; draw fewer")
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise BadArgument(
            f"draw={draw!r} needs Optuna; pip install 'clipwise[tuning]' brings it, or give a grid"
        ) from error
    import warnings

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the quasi-random sampler is marked experimental
        sampler = (
            optuna.samplers.RandomSampler(seed)
            if draw == "random"
            else optuna.samplers.QMCSampler(seed=seed, scramble=True)
        )
        study = optuna.create_study(sampler=sampler)
        space = {name: _distribution(axis) for name, axis in search.items()}
        points = []
        for _ in range(number):
            # A quasi-random point is of the space of a trial that has ended: its score is the same for all.
            trial = study.ask(space)
            points.append(
                {
                    name: axis[trial.params[name]] if not isinstance(axis, Range) else trial.params[name]
                    for name, axis in search.items()
                }
            )
            study.tell(trial, 0.0)
    return points


def _distribution(axis: Axis) -> Any:
    from optuna.distributions import FloatDistribution, IntDistribution

    return (
        FloatDistribution(axis.low, axis.high, log=axis.log)
        if isinstance(axis, Range)
        else IntDistribution(0, len(axis) - 1)
    )


def _candidate(options: Mapping[str, Any], point: Mapping[str, Any]) -> Candidate:
    from clipwise.clipping import METHODS, make_method

    asked = {**options, **point}
    recommended = make_config({name: asked[name] for name in ("data", "model") if name in asked}, "the search").method
    recommended = _METHOD if METHODS[recommended].automatic else recommended
    method = validate.choice("method", asked.get("method", recommended), METHODS)
    own = {field.name for field in fields(METHODS[method])}
    values = {"method": recommended, **options}
    of_method = dict(values.pop("method_options", {}))
    for name, value in point.items():
        if name in own:
            of_method[name] = value
        elif name in SEARCHABLE:
            values[name] = value
        else:
            raise BadArgument(
                f"search: {name!r} is not an argument of a run with method {method!r}; it has "
                f"{', '.join([*SEARCHABLE, *sorted(own)])}"
            )
    config = make_config({**values, **({"method_options": of_method} if of_method else {})}, "the search")
    made = make_method(config.method, **config.method_options)
    if not made.sound:
        raise BadArgument(
            f"method={config.method!r} has no valid guarantee, so that no search over it can be paid for; use "
            f"{made.alternative or 'another'}"
        )
    if made.automatic and config.lr is None:
        raise BadArgument(
            f"method={config.method!r} finds its own learning rate, and pays for it, which the plan of a search does not count; run "
            "clipwise train, give or search lr, or search another method"
        )
    return Candidate(dict(point), config)
