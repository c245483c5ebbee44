"""A search, checked and planned before anything is spent: candidates, score, the parts of the records, the noise of each run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clipwise import validate
from clipwise.lab.tuning import make_strategy
from clipwise.lab.tuning.candidates import Axis, Candidate, make_candidates
from clipwise.lab.tuning.planning import SearchPlan, Size, make_search_plan
from clipwise.lab.tuning.strategy import Strategy
from clipwise.lab.tuning.trial import pieces
from clipwise.training.config import make_config
from clipwise.training.options import TrainConfig
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.data import DataSet

_LEAST_PART = 20  # records expected in a part: its size is random, and with 20 it is empty once in 5e8 times (e^-20)
_HELD_OUT = 0.1  # share of the records that score, by default; a common choice, not tuned


@dataclass(frozen=True)
class Search:
    """A search, checked and planned; nothing is spent yet."""

    plan: SearchPlan
    public_data: str | None
    pieces: tuple[int, ...] | None  # of the records, where a part is kept back
    seed: int | None
    tested: bool  # whether there is data to run on


def prepare(
    options: Mapping[str, Any],
    search: Mapping[str, Axis],
    *,
    epsilon: float,
    delta: float | None = None,
    strategy: str = "grid-rdp",
    score: str | None = None,
    held_out: float | None = None,
    public_data: str | None = None,
    draw: str = "grid",
    candidates: int | None = None,
    repetitions: str | None = None,
    mean_runs: float | None = None,
    uncharged: bool = False,
    samples: int | None = None,
    steps: int | None = None,
) -> Search:
    """Check everything and make the plan. With `samples`, `steps` and a batch size no data is read, and it cannot be run."""
    made = make_strategy(strategy, repetitions=repetitions, mean_runs=mean_runs)
    score = score or made.scores[0]
    held_out = _checked_share(held_out, made, score)
    _check_strategy(made, uncharged, public_data)
    kept = {name: value for name, value in options.items() if name not in ("epsilon", "delta", "out")}
    seed = kept.get("seed")
    listed = make_candidates(kept, search, draw=draw, number=candidates, seed=seed)
    _refuse_other_sampling(listed)
    cut = score == "held-out"
    parts = len(listed) if made.parts else None
    if samples is not None or steps is not None:
        sizes, cuts, delta = _stated(listed, samples, steps, delta, cut, parts, held_out)
        plan = make_search_plan(made, listed, sizes, epsilon=epsilon, delta=delta, score=score)
        return Search(plan, public_data, cuts, seed, tested=False)
    from clipwise.models import get_architecture
    from clipwise.training.execute import load_asked, make_network
    from clipwise.training.resolve import resolve

    if public_data is not None:
        load_asked(make_config({**kept, "data": public_data}))  # refuses now what it would refuse later
    dataset = load_asked(listed[0].config)
    if dataset.unlearned is not None or dataset.numbers:
        what = (
            "what is learned of the records first is not"
            if dataset.unlearned
            else "a number to be predicted has no accuracy"
        )
        raise BadArgument(
            f"data={listed[0].config.data!r}: {what} part of a search; state public ranges and categories, and search over classifiers"
        )
    cuts = pieces(len(dataset.train), parts=parts, held_out=held_out) if cut else None
    _check_data(listed[0].config.data, dataset, score, cuts)
    listed = [replace(c, config=resolve(c.config.model_copy(update={"delta": delta}), dataset)) for c in listed]
    for each in {each.config.model: each for each in listed}.values():
        make_network(each.config, dataset)  # refuses now what it would refuse later
        if get_architecture(str(each.config.model)).reconstructs:
            raise BadArgument(f"model={each.config.model!r} has no accuracy to choose by; search over classifiers")
    sizes = [size_of_run(each.config, len(dataset.train) if cuts is None else cuts[0]) for each in listed]
    delta = float(listed[0].config.delta or 0)
    plan = make_search_plan(made, listed, sizes, epsilon=epsilon, delta=delta, score=score)
    return Search(plan, public_data, cuts, seed, tested=True)


def _refuse_other_sampling(listed: Sequence[Candidate]) -> None:
    for each in listed:
        if each.config.sampling != "poisson":
            raise BadArgument(
                f"sampling={each.config.sampling!r}: what a search costs is known for Poisson sampling alone; leave it out"
            )


def _check_strategy(strategy: Strategy, uncharged: bool, public_data: str | None) -> None:
    if strategy.charged == uncharged:
        raise BadArgument(
            f"strategy={strategy.name!r} leaves the search out of the bill, which voids the guarantee for the choice; say "
            "--uncharged (uncharged=True) if that is meant"
            if uncharged is False
            else f"uncharged=True goes with strategy='none' alone, not with {strategy.name!r}; leave it out"
        )
    if (public_data is None) == (strategy.name == "public"):
        raise BadArgument(
            "public_data=None: strategy 'public' searches on public data; name it, --public-data NAME"
            if public_data is None
            else f"public_data={public_data!r} is for strategy='public', not for {strategy.name!r}; leave it out"
        )


def _checked_share(held_out: float | None, strategy: Strategy, score: str) -> float:
    """The share of the records that score."""
    if held_out is not None and (score != "held-out" or strategy.parts):
        raise BadArgument(f"held_out={held_out!r} is the share of records that score; it goes with score='held-out'")
    share = _HELD_OUT if held_out is None else held_out
    return validate.probability("held_out", share, one_allowed=False, remedy="give a share such as 0.1")


def _check_data(name: str, dataset: DataSet, score: str, cuts: Sequence[int] | None) -> None:
    if score == "public" and dataset.test is None:
        raise BadArgument(f"data={name!r} has no test part to choose by; use score='held-out', which is charged")
    if cuts is not None and min(cuts) < _LEAST_PART:
        raise BadArgument(f"data={name!r} has too few records for {len(cuts)} parts; search over fewer")


def size_of_run(config: TrainConfig, records: int) -> Size:
    batch, epochs = int(config.expected_batch_size or 0), int(config.epochs or 0)
    if config.size == "private":
        raise BadArgument(
            "size='private': a search plans its runs by the number of records, as a public figure; leave it out"
        )
    if batch > records:
        raise BadArgument(f"batch={batch!r} is above the {records} records that a run trains on; give a smaller one")
    return Size(records, batch, epochs * math.ceil(records / batch - 1e-9), epochs)


def _stated(
    listed: Sequence[Candidate],
    samples: int | None,
    steps: int | None,
    delta: float | None,
    cut: bool,
    parts: int | None,
    held_out: float,
) -> tuple[list[Size], tuple[int, ...] | None, float]:
    if samples is None or steps is None:
        raise BadArgument(f"samples={samples!r} and steps={steps!r}: a plan without data needs both, and a batch size")
    validate.count("samples", samples)
    validate.count("steps", steps)
    cuts = pieces(samples, parts=parts, held_out=held_out) if cut else None
    records = samples if cuts is None else cuts[0]
    sizes = []
    for candidate in listed:
        batch = candidate.config.expected_batch_size
        if batch is None:
            raise BadArgument("batch=None: a plan without data needs --batch, the expected batch size")
        if not batch <= records:
            raise BadArgument(
                f"batch={batch!r} is above the {records} records that a run trains on; give a smaller one"
            )
        sizes.append(Size(records, int(batch), steps, steps * batch / records))
    delta = 1e-5 if delta is None else delta
    if delta >= 1 / samples:
        raise BadArgument(
            f"delta={delta!r} is not below 1 / {samples}, the number of records; give {0.1 / samples:.0e}"
        )
    return sizes, cuts, delta
