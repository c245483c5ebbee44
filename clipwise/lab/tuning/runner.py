"""Runs a search that was planned: trials side by side, one folder with the chosen model and a statement of what all of it cost.

The folder of a search:

    plan.json                      what was agreed to before anything was spent
    model.safetensors ...          the chosen run, as `clipwise train` leaves one, with the search on its statement
    search.jsonl, trials/          every run with its options and score; for a strategy whose losers are secret they lie in
                                   secret/ instead, which nobody but the owner of the data may see

Each run is written to search.jsonl before it starts. One that was killed goes on from its last checkpoint where that costs no
more than was planned for it: with a seed, or stopped at a checkpoint. Else, one that had not left anything that could be
seen is run again (with fresh randomness): nobody has learnt anything from it; and one that had left figures is charged as it
is and not repeated: it keeps its place with the lowest score. The plan pays for all runs in advance, so nothing is ever
charged twice. The same holds when the whole search is killed: called again with the same folder, it goes on.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clipwise import validate
from clipwise.accounting import Ledger
from clipwise.checkpoint import Checkpoints
from clipwise.keystream import Key
from clipwise.lab.results import only_one
from clipwise.lab.tuning import record as records
from clipwise.lab.tuning.candidates import Axis, Candidate
from clipwise.lab.tuning.coins import Coins
from clipwise.lab.tuning.executors import Executor, get_executor
from clipwise.lab.tuning.outcome import Finished, Tuned, finish
from clipwise.lab.tuning.planning import SearchPlan, with_noise
from clipwise.lab.tuning.record import AGAIN, ENDED, FAILED, ON, STARTED, Record
from clipwise.lab.tuning.search import Search, prepare
from clipwise.lab.tuning.trial import STATEMENT, Part, Spec, count_errors
from clipwise.locks import Held, holding
from clipwise.training import folder as run_folder
from clipwise.training import unfinished
from clipwise.training.folder import RunFolder
from clipwise.types import BadArgument, ClipwiseError

_TRIES = 3  # of a run that is killed, again and again
_PATIENCE = 30.0  # seconds for a run whose search is gone to end


@dataclass
class _Trial:
    name: str  # 0, 1, ...; or final
    candidate: Candidate
    spec: Spec
    score: float = -math.inf  # of a run that failed
    finished: bool = False
    tries: int = 0

    @property
    def run(self) -> Path:
        return Path(self.spec.out)

    @property
    def spec_file(self) -> Path:
        return self.run.with_name(f"{self.name}.json")


def run(
    search: Search,
    *,
    out: str | None = None,
    jobs: int | None = None,
    executor: str = "local",
    on_end: Callable[[int, int], None] | None = None,
) -> Tuned:
    """Spend what was planned, or what is left of it: a folder that holds the same search, cut, goes on.

    `on_end` hears how many runs have ended, and of how many, where that is no secret; also of those that ended before.
    """
    if not search.tested:
        raise BadArgument(
            "samples and steps describe a run without data: that can be planned, but not run; leave them out"
        )
    side_by_side = get_executor(executor)
    jobs = None if jobs is None else validate.count("jobs", jobs)
    plan, strategy = search.plan, search.plan.strategy
    key = Key.fresh() if search.seed is None else Key.from_seed(search.seed)
    with _opened(search, out, key) as (folder, record):
        drawn = record.last("drawn") or {}
        place = record.path.parent
        trials = [
            _trial(str(number), plan.candidates[index], search, place / "trials", _part(search, drawn, number), number)
            for number, index in enumerate(drawn["candidates"])
        ]
        _run_all(trials, search, record, jobs, side_by_side, key, on_end if strategy.losers_are_public else None)
        if not trials:
            raise ClipwiseError(
                "the number of runs was drawn as 0, which a Poisson number can be: there is no model, and the budget is spent; "
                "a geometric number is at least 1"
            )
        if not any(trial.finished for trial in trials):
            raise ClipwiseError("every run failed, and no model can be shown; the budget is spent (see search.jsonl)")
        chosen = trials[_choice(trials, plan, record, key)]
        if search.public_data is not None:
            chosen = _final(chosen, search, record, side_by_side, key)
        return finish(search, Finished(chosen.candidate.chosen, chosen.run), folder)


@contextmanager
def _opened(search: Search, out: str | None, key: Key) -> Iterator[tuple[RunFolder, Record]]:
    """The folder and the record, of a new search or of one that goes on, for this process alone."""
    if out is not None and records.is_cut(Path(out)):
        with only_one(Path(out), "search"):
            yield RunFolder(Path(out)), records.go_on(search, Path(out))
        return

    def draw() -> Mapping[str, Any]:
        strategy = search.plan.strategy
        runs = strategy.draw(len(search.plan.candidates), Coins(key, "draw"))
        return {"candidates": runs, "part_seed": Coins(key, "parts").whole()}

    folder = run_folder.create(out, Path(search.plan.candidates[0].config.data).stem, "tuned")
    with only_one(folder.path, "search"):
        yield folder, records.begin(search, folder, draw)


def _trial(
    name: str, candidate: Candidate, search: Search, where: Path, part: Part | None, number: int, salt: str = "trial"
) -> _Trial:
    config = with_noise(
        candidate.config, search.plan.noise_multiplier, search.plan.delta, _seed(search.seed, f"{salt} {number}")
    )
    if search.public_data is not None:
        config = config.model_copy(update={"data": search.public_data})
    if part is not None:  # how many records it has is private: the rate is that of the plan
        rate = float(config.expected_batch_size or 0) / part.pieces[part.trains]
        config = config.model_copy(update={"sample_rate": rate})
    return _Trial(name, candidate, Spec(config, str((where / name).resolve()), part))


def _part(search: Search, drawn: Mapping[str, Any], number: int) -> Part | None:
    if search.pieces is None:
        return None
    return Part(drawn["part_seed"], search.pieces, number if search.plan.strategy.parts else 0)


def _run_all(
    trials: Sequence[_Trial],
    search: Search,
    record: Record,
    jobs: int | None,
    side_by_side: Executor,
    key: Key,
    on_end: Callable[[int, int], None] | None,
) -> None:
    """Every trial to its end; those that ended before, or were seen, are taken as they are."""
    waiting = [trial for trial in trials if not _taken_over(trial, search, record, key)]
    done = len(trials) - len(waiting)
    if on_end and done:
        on_end(done, len(trials))

    def command(trial: _Trial) -> list[str]:
        if not _can_go_on(trial, search):
            shutil.rmtree(trial.run, ignore_errors=True)  # what a killed run left behind, and nobody saw
        trial.spec_file.write_text(trial.spec.to_json(), encoding="utf-8")
        trial.tries += 1
        record.add(trial.name, event=STARTED, options=dict(trial.candidate.chosen))
        return ["clipwise.lab.tuning.trial", str(trial.spec_file)]

    while waiting:
        again = []
        for trial, ended in side_by_side(waiting, command, jobs):
            if ended.killed:
                _wait_for(trial)
            goes_on = ended.killed and _can_go_on(trial, search)
            if ended.killed and trial.tries < _TRIES and (goes_on or not _seen(trial, search)):
                record.add(trial.name, event=ON if goes_on else AGAIN)
                again.append(trial)
                continue
            if ended.result is None:
                _fail(trial, record, str(ended.error))
            else:
                _score(trial, ended.result["errors"], search.plan, record, key, seconds=round(ended.seconds, 1))
            done += 1
            if on_end:
                on_end(done, len(trials))
        waiting = again


def _taken_over(trial: _Trial, search: Search, record: Record, key: Key) -> bool:
    """Whether a trial of a search that goes on needs no run: it ended, or it was killed after it had been seen."""
    before = record.last(trial.name)
    if before is None:
        return False
    if before.get("event") == FAILED:
        return True
    if before.get("event") == ENDED:
        trial.finished = True
        trial.score = -count_errors(trial.spec) if before["score"] is None else before["score"]
        return True
    _wait_for(trial)
    if (trial.run / STATEMENT).is_file():  # it ended, and the search was killed before it heard of that
        errors = None if trial.spec.part is None else count_errors(trial.spec)
        _score(trial, errors, search.plan, record, key)
        return True
    if _seen(trial, search) and not _can_go_on(trial, search):
        _fail(trial, record, "the search was killed while it ran")
        return True
    return False


def _wait_for(trial: _Trial) -> None:
    """Until the process of a run, whose search or worker was killed, has ended as well."""
    if not trial.spec_file.exists():
        return
    try:
        with holding(trial.spec_file, wait=_PATIENCE):
            pass
    except Held as error:
        raise BadArgument(
            f"run {trial.name} of an earlier search still goes on in another process, with {trial.spec_file}; end it, then go on"
        ) from error


def _score(
    trial: _Trial, errors: int | None, plan: SearchPlan, record: Record, key: Key, seconds: float | None = None
) -> None:
    """What chooses, and what of it may be written down."""
    if plan.score == "public":
        trial.score = shown = Finished(trial.candidate.chosen, trial.run).result()["accuracy"]
    elif plan.score_noise is None:  # the exponential mechanism takes the count itself, which stays private
        trial.score, shown = -float(errors or 0), None
    else:
        noise = Coins(key, f"score of {trial.name}")
        trial.score = shown = -noise.noised(float(errors or 0), plan.score_noise)
    trial.finished = True
    record.add(trial.name, event=ENDED, seconds=seconds, score=shown)
    trial.spec_file.unlink(missing_ok=True)


def _fail(trial: _Trial, record: Record, error: str) -> None:
    record.add(trial.name, event=FAILED, error=error)
    trial.spec_file.unlink(missing_ok=True)


def _seen(trial: _Trial, search: Search) -> bool:
    """Whether a run that was killed may have shown something: its folder is public and holds figures of an epoch."""
    public = search.plan.strategy.losers_are_public and search.public_data is None
    return public and (trial.run / "metrics.jsonl").exists()


def _can_go_on(trial: _Trial, search: Search) -> bool:
    """Whether a run that was killed goes on at no more than was planned for it: with a seed its steps are redone bit for bit and
    charged once; without one nothing may be redone, so that it must have stopped at its last checkpoint."""
    folder = RunFolder(trial.run)
    try:
        kept = Checkpoints(folder.checkpoints).newest()
        if kept is None or unfinished.ended(folder):
            return False
        book = Ledger.read(folder.ledger)
        return search.seed is not None or (book.closed and sum(event.count for event in book.events()) == kept.step)
    except ClipwiseError:
        return False  # damaged


def _seed(seed: int | None, purpose: str) -> int | None:
    """Runs never share randomness: two with the same noise would cancel it."""
    return None if seed is None else int.from_bytes(Key.from_seed(seed).derive(purpose).secret[:6], "big")


def _choice(trials: Sequence[_Trial], plan: SearchPlan, record: Record, key: Key) -> int:
    """Made once, and written down before anything of it can be seen."""
    before = record.last("chosen")
    if before is not None:
        return int(before["run"])
    index = plan.strategy.select([trial.score for trial in trials], plan.epsilon_total, Coins(key, "choice"))
    record.add("chosen", run=index, options=dict(trials[index].candidate.chosen))
    return index


def _final(chosen: _Trial, search: Search, record: Record, side_by_side: Executor, key: Key) -> _Trial:
    """The one run on the protected data, after a search on public data."""
    private = replace(search, public_data=None)
    last = _trial("final", chosen.candidate, private, record.path.parent / "trials", None, 0, salt="final")
    _run_all([last], private, record, 1, side_by_side, key, None)
    if not last.finished:
        raise ClipwiseError("the run with the chosen options failed; what it spent is in its ledger (see search.jsonl)")
    return last


def tune(
    options: Mapping[str, Any],
    search: Mapping[str, Axis],
    *,
    epsilon: float,
    out: str | None = None,
    jobs: int | None = None,
    executor: str = "local",
    **how: Any,
) -> Tuned:
    """Search over `search` (name -> values or a Range) for the run that `options` describe, with a total of (epsilon, delta).

    `options` are those of `clipwise train`; `how` are the arguments of `prepare`: strategy, delta, score, ...
    With an `out` that holds the same search, cut, it goes on where it stopped.
    """
    return run(prepare(options, search, epsilon=epsilon, **how), out=out, jobs=jobs, executor=executor)
