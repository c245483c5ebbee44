"""From the chosen run to the folder of the search: its files, a statement that covers the search, and the result.

`result.json` is written last, so that a search without it is one that was cut.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipwise.accounting import trade_off
from clipwise.lab.tuning.planning import SearchPlan
from clipwise.lab.tuning.record import PLAN
from clipwise.lab.tuning.search import Search
from clipwise.lab.tuning.trial import STATEMENT
from clipwise.training.folder import FILES, MANIFEST, RunFolder, as_json
from clipwise.training.verify import RUN_MANIFEST
from clipwise.types import ClipwiseError

if TYPE_CHECKING:
    from clipwise.statement import Statement


@dataclass(frozen=True)
class Tuned:
    """The outcome. All of it may be shown."""

    chosen: Mapping[str, Any]
    result: Mapping[str, Any]
    statement: Statement
    plan: SearchPlan
    path: Path


@dataclass(frozen=True)
class Finished:
    """A run that ended, by what it left in its folder."""

    chosen: Mapping[str, Any]
    run: Path

    def result(self) -> dict[str, Any]:
        return self._read("result.json")

    def statement(self) -> Statement:
        from clipwise.statement import Statement

        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in self._read(STATEMENT).items()
        }
        known = {field.name for field in fields(Statement)}
        return Statement(**{name: value for name, value in values.items() if name in known})

    def _read(self, name: str) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads((self.run / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ClipwiseError(
                f"{self.run / name} of a run that ended cannot be read ({error}); restore the file"
            ) from error
        return value


def finish(search: Search, chosen: Finished, folder: RunFolder) -> Tuned:
    plan, of_run = search.plan, chosen.statement()
    attack = trade_off((), plan.epsilon_total, plan.delta, whole_curve=False)  # of the search there is no whole curve
    statement = replace(
        of_run,
        epsilon=plan.epsilon_total,
        delta=plan.delta,
        target_epsilon=plan.target_epsilon,
        accountant=f"strategy {plan.strategy.name}",
        attack=attack.pairs(),
        attack_source=attack.source,
        ledger="ledger.jsonl (the chosen run; the search is in plan.json)",
        tuning=_sentence(search) + _before(of_run.tuning),
        search_charged=plan.strategy.charged,
        searched=tuple(chosen.chosen) if plan.strategy.charged else (),
        notes=(*of_run.notes, *_notes(search)),
    )
    result = {
        **chosen.result(),
        "epsilon": plan.epsilon_total,
        "attack": list(attack.pairs()),
        "run_dir": str(folder.path),
        "chosen": dict(chosen.chosen),
        "tuning": plan.to_dict(),
    }
    for file in chosen.run.iterdir():
        if file.name not in (STATEMENT, "statement.md", "result.json"):  # theirs do not know of the search
            shutil.copyfile(file, folder.path / file.name)
    (folder.path / MANIFEST).replace(folder.path / RUN_MANIFEST)  # the chosen run's, which its ledger vouches for
    folder.write("statement.md", statement.to_markdown())
    folder.write_manifest((*FILES, RUN_MANIFEST, PLAN), to_come={"result.json": as_json(result)})
    folder.write_json("result.json", result)
    return Tuned(chosen.chosen, result, statement, plan, folder.path)


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
    from clipwise.statement import Statement

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
            f"The choice was made by errors on about {search.pieces[-1] if search.pieces else 0} records kept back, with noise of "
            f"standard deviation {plan.score_noise:.4g}, covered by epsilon."
        )
    else:
        notes.append("The choice was made by the exponential mechanism on a part kept back, covered by epsilon.")
    if search.pieces is not None:
        notes.append(
            f"Each run trained on about {search.pieces[0]} of the records, each chosen by a keyed hash of its own content; config.toml names the whole data set."
        )
    if not plan.strategy.losers_are_public:
        notes.append(
            "Epsilon covers the chosen run alone: the folder secret/ (the other runs, and how many there were) and the time that "
            "the search took must not be shown."
        )
    if not plan.strategy.charged:
        notes.append("The search was not charged: no guarantee covers the choice of options.")
    return notes
