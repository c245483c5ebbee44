"""Runs a search that was planned: trials side by side, one folder with the chosen model and a statement of what all of it cost.

The folder of a search:

    plan.json                      what was agreed to before anything was spent
    model.safetensors ...          the chosen run, as `clipwise train` leaves one, with the search on its statement
    search.jsonl, trials/          every run with its options and score; for a strategy whose losers are secret they lie in
                                   secret/ instead, which nobody but the owner of the data may see

Each run is written to search.jsonl before it starts. One that was killed before it left anything that could be seen is run
again (with fresh randomness, if there is no seed): nobody has learnt anything from it. One that had left figures is charged
as it is and not repeated: it keeps its place with the lowest score. The plan pays for all runs in advance, so nothing is ever
charged twice.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipwise import run_folder, validate
from clipwise.keystream import Key
from clipwise.run_folder import RunFolder
from clipwise.study.processes import side_by_side
from clipwise.study.runner import append_line
from clipwise.tuning.candidates import Axis, Candidate
from clipwise.tuning.coins import Coins
from clipwise.tuning.planning import SearchPlan, with_noise
from clipwise.tuning.search import Search, prepare
from clipwise.tuning.trial import Part, Spec
from clipwise.types import BadArgument, ClipwiseError

if TYPE_CHECKING:
    from clipwise.report import Statement

_TRIES = 3  # of a run that is killed, again and again


@dataclass(frozen=True)
class Tuned:
    """The outcome. All of it may be shown."""

    chosen: Mapping[str, Any]
    result: Mapping[str, Any]
    statement: Statement
    plan: SearchPlan
    path: Path


@dataclass
class _Trial:
    number: int
    candidate: Candidate
    score: float = -math.inf  # of a run that failed
    outcome: Mapping[str, Any] | None = None


def run(
    search: Search, *, out: str | None = None, jobs: int | None = None, on_end: Callable[[int, int], None] | None = None
) -> Tuned:
    """Spend what was planned. `on_end` hears how many runs have ended, and of how many, where that is no secret."""
    if not search.tested:
        raise BadArgument(
            "samples and steps describe a run without data: that can be planned, but not run; leave them out"
        )
    jobs = validate.count("jobs", jobs or os.cpu_count() or 1)
    plan, strategy = search.plan, search.plan.strategy
    coins = Coins(Key.fresh() if search.seed is None else Key.from_seed(search.seed))
    first = plan.candidates[0].config
    folder = run_folder.create(out, Path(first.data).stem, "tuned")
    folder.write_json("plan.json", {**plan.to_dict(), "searched": [dict(each.chosen) for each in plan.candidates]})
    place = folder.path if strategy.losers_are_public else folder.path / "secret"
    place.mkdir(mode=0o700, exist_ok=True)  # nobody but the owner, if it is the secret one
    (place / "trials").mkdir()
    ledger = place / "search.jsonl"
    append_line(ledger, {"id": "plan", **plan.to_dict()})
    drawn = strategy.draw(len(plan.candidates), coins)
    trials = [_Trial(number, plan.candidates[index]) for number, index in enumerate(drawn)]
    part_seed = coins.whole()

    def part(trial: _Trial) -> Part | None:
        if search.pieces is None:
            return None
        return Part(part_seed, search.pieces, trial.number if strategy.parts else 0)

    _run_all(trials, search, place, ledger, jobs, coins, part, on_end if strategy.losers_are_public else None)
    if not trials:
        raise ClipwiseError(
            "the number of runs was drawn as 0, which a Poisson number can be: there is no model, and the budget is spent; "
            "a geometric number is at least 1"
        )
    if all(trial.outcome is None for trial in trials):
        raise ClipwiseError("every run failed, and no model can be shown; the budget is spent (see search.jsonl)")
    chosen = trials[strategy.select([trial.score for trial in trials], plan.epsilon_total, coins)]
    if search.public_data is not None:
        chosen = _final(chosen, search, place, ledger, coins)
    return _finish(chosen, search, folder, place)


def _run_all(
    trials: Sequence[_Trial],
    search: Search,
    place: Path,
    ledger: Path,
    jobs: int,
    coins: Coins,
    part: Callable[[_Trial], Part | None],
    on_end: Callable[[int, int], None] | None,
) -> None:
    seeds = [_seed(search.seed, trial.number) for trial in trials]
    tries = dict.fromkeys((trial.number for trial in trials), 0)

    def command(trial: _Trial) -> list[str]:
        run = place / "trials" / str(trial.number)
        shutil.rmtree(run, ignore_errors=True)  # what a killed run left behind, and nobody saw
        config = with_noise(
            trial.candidate.config, search.plan.noise_multiplier, search.plan.delta, seeds[trial.number]
        )
        if search.public_data is not None:
            config = config.model_copy(update={"data": search.public_data})
        spec = place / "trials" / f"{trial.number}.json"
        spec.write_text(Spec(config, str(run), part(trial)).to_json(), encoding="utf-8")
        tries[trial.number] += 1
        append_line(ledger, {"id": f"{trial.number}", "event": "started", "options": dict(trial.candidate.chosen)})
        return ["clipwise.tuning.trial", str(spec)]

    waiting, done = list(trials), 0
    while waiting:
        again = []
        for trial, ended in side_by_side(waiting, command, jobs):
            if (
                ended.killed
                and tries[trial.number] < _TRIES
                and not _seen(place / "trials" / str(trial.number), search)
            ):
                append_line(ledger, {"id": f"{trial.number}", "event": "killed before anything was seen; runs again"})
                again.append(trial)
                continue
            (place / "trials" / f"{trial.number}.json").unlink(missing_ok=True)
            trial.outcome = ended.result
            line: dict[str, Any] = {"id": f"{trial.number}", "event": "ended", "seconds": round(ended.seconds, 1)}
            if ended.result is None:
                line |= {"event": "failed, and charged", "error": ended.error}
            else:
                trial.score, shown = _score(ended.result, search.plan, coins)
                line["score"] = shown
            append_line(ledger, line)
            done += 1
            if on_end:
                on_end(done, len(trials))
        waiting = again


def _score(outcome: Mapping[str, Any], plan: SearchPlan, coins: Coins) -> tuple[float, float | None]:
    """What chooses, and what of it may be written down."""
    if plan.score == "public":
        return outcome["result"]["accuracy"], outcome["result"]["accuracy"]
    errors = float(outcome["errors"])
    if plan.score_noise is None:
        return -errors, None  # the exponential mechanism takes the count itself, which stays private
    noised = -float(coins.noised(errors, plan.score_noise))
    return noised, noised


def _seen(run: Path, search: Search) -> bool:
    """Whether a run that was killed may have shown something: its folder is public and holds figures of an epoch."""
    return search.plan.strategy.losers_are_public and search.public_data is None and (run / "metrics.jsonl").exists()


def _seed(seed: int | None, number: int) -> int | None:
    """Runs never share randomness: two with the same noise would cancel it."""
    return None if seed is None else int.from_bytes(Key.from_seed(seed).derive(f"trial {number}").secret[:6], "big")


def _final(chosen: _Trial, search: Search, place: Path, ledger: Path, coins: Coins) -> _Trial:
    """The one run on the protected data, after a search on public data."""
    last = _Trial(0, chosen.candidate)
    here = place / "final"
    (here / "trials").mkdir(parents=True)
    private = replace(search, public_data=None, seed=None if search.seed is None else search.seed + 1)
    _run_all([last], private, here, ledger, 1, coins, lambda _: None, None)
    if last.outcome is None:
        raise ClipwiseError("the run with the chosen options failed; what it spent is in its ledger (see search.jsonl)")
    return last


def _finish(chosen: _Trial, search: Search, folder: RunFolder, place: Path) -> Tuned:
    from clipwise.report import Statement

    outcome, plan = chosen.outcome or {}, search.plan
    source = Path(outcome["result"]["run_dir"])
    for file in source.iterdir():
        shutil.copyfile(file, folder.path / file.name)
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in outcome["statement"].items()
    }
    known = {field.name for field in fields(Statement)}
    values = {name: value for name, value in values.items() if name in known}
    statement = replace(
        Statement(**values),
        epsilon=plan.epsilon_total,
        delta=plan.delta,
        target_epsilon=plan.target_epsilon,
        accountant=f"strategy {plan.strategy.name}",
        ledger="ledger.jsonl (the chosen run; the search is in plan.json)",
        tuning=_sentence(search) + _before(values["tuning"]),
        notes=(*values.get("notes", ()), *_notes(search)),
    )
    result = {
        **outcome["result"],
        "epsilon": plan.epsilon_total,
        "run_dir": str(folder.path),
        "chosen": dict(chosen.candidate.chosen),
        "tuning": plan.to_dict(),
    }
    folder.write("statement.md", statement.to_markdown())
    folder.write_json("result.json", result)
    if place == folder.path:
        append_line(place / "search.jsonl", {"id": "chosen", "options": dict(chosen.candidate.chosen)})
    return Tuned(chosen.candidate.chosen, result, statement, plan, folder.path)


def _sentence(search: Search) -> str:
    """The statement's line on tuning."""
    plan = search.plan
    if not plan.strategy.charged:
        return (
            f"**NOT CHARGED**: chosen from {len(plan.candidates)} runs on this data, of which epsilon counts one; all of them "
            f"together cost {plan.epsilon_composed:.4f}"
        )
    if search.public_data is not None:
        return f"{len(plan.candidates)} candidates tried on public data ({search.public_data}); one run on the protected data"
    return (
        f"{plan.strategy.name} over {len(plan.candidates)} candidates, covered by epsilon; one run alone would be "
        f"{plan.epsilon_per_run:.4f}"
    )


def _before(tuning: str) -> str:
    """What the statement of the run itself says of tuning: a built-in recipe may have been found on data."""
    from clipwise.report import Statement

    usual = next(field.default for field in fields(Statement) if field.name == "tuning")
    return "" if tuning == usual else f". Before the search: {tuning}"


def _notes(search: Search) -> list[str]:
    plan = search.plan
    notes = []
    if plan.score == "public":
        notes.append(
            "The choice was made by accuracy on the test part, which is treated as public: it is not protected, and the accuracy "
            "of the chosen run on it is optimistic."
        )
    elif plan.score_noise is not None:
        notes.append(
            f"The choice was made by errors on {search.pieces[-1] if search.pieces else 0} records kept back, with noise of "
            f"standard deviation {plan.score_noise:.4g}, covered by epsilon."
        )
    else:
        notes.append("The choice was made by the exponential mechanism on a part kept back, covered by epsilon.")
    if search.pieces is not None:
        notes.append(f"Each run trained on {search.pieces[0]} of the records; config.toml names the whole data set.")
    if not plan.strategy.losers_are_public:
        notes.append(
            "Epsilon covers the chosen run alone: the folder secret/ (the other runs, and how many there were) and the time that "
            "the search took must not be shown."
        )
    if not plan.strategy.charged:
        notes.append("The search was not charged: no guarantee covers the choice of options.")
    return notes


def tune(
    options: Mapping[str, Any],
    search: Mapping[str, Axis],
    *,
    epsilon: float,
    out: str | None = None,
    jobs: int | None = None,
    **how: Any,
) -> Tuned:
    """Search over `search` (name -> values or a Range) for the run that `options` describe, with a total of (epsilon, delta).

    `options` are those of `clipwise train`; `how` are the arguments of `prepare`: strategy, delta, score, ...
    """
    return run(prepare(options, search, epsilon=epsilon, **how), out=out, jobs=jobs)
