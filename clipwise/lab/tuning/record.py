"""What a search writes down: before anything is spent, and then line by line, so that one that was killed can go on.

`plan.json` is written last of all that is decided before the first run: a folder without it has spent nothing.
`search.jsonl` holds the plan, what was drawn (which candidate each run trains), each run before it starts and after it
ended, and the choice before anything of it is copied. A draw or a choice is never made twice: only the first was paid for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clipwise.lab.identity import content_of
from clipwise.lab.results import append_line, read_results
from clipwise.lab.tuning.search import Search
from clipwise.training.folder import RunFolder, finite
from clipwise.types import BadArgument

PLAN, LEDGER, SECRET = "plan.json", "search.jsonl", "secret"
ENDED, FAILED, STARTED = "ended", "failed, and charged", "started"
AGAIN = "killed before anything was seen; runs again"
ON = "killed; goes on from its last checkpoint"


@dataclass(frozen=True)
class Record:
    """`search.jsonl`, read and appended to. Each line has an id: plan, drawn, chosen, or the name of a run."""

    path: Path
    lines: list[dict[str, Any]]
    _one_writer: threading.Lock = field(default_factory=threading.Lock)  # runs start in threads of their own

    def add(self, name: str, **values: Any) -> None:
        line = {"id": name, **values}
        with self._one_writer:
            append_line(self.path, line)
            self.lines.append(line)

    def last(self, name: str) -> Mapping[str, Any] | None:
        return next((line for line in reversed(self.lines) if line["id"] == name), None)


def begin(search: Search, folder: RunFolder, draw: Callable[[], Mapping[str, Any]]) -> Record:
    """The record of a search that starts now."""
    place = place_of(search, folder.path)
    place.mkdir(mode=0o700, exist_ok=True)  # nobody but the owner, if it is the secret one
    (place / "trials").mkdir()
    record = Record(place / LEDGER, [])
    record.add("plan", **search.plan.to_dict())
    record.add("drawn", **draw())
    folder.write_json(PLAN, described(search))
    return record


def is_cut(path: Path) -> bool:
    """Whether the folder holds a search that was begun and has no outcome."""
    if not (path / PLAN).is_file():
        return False
    try:
        result = json.loads((path / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
    return not (isinstance(result, dict) and "tuning" in result)


def go_on(search: Search, path: Path) -> Record:
    """The record of a search that was cut; one with another plan is refused."""
    try:
        before = json.loads((path / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unknown(path, f"{PLAN} cannot be read ({error})") from error
    now = json.loads(json.dumps(described(search)))
    for name in dict.fromkeys((*before, *now)):
        if before.get(name) != now.get(name):
            raise BadArgument(
                f"out={str(path)!r} holds a search with another plan: {name} was {_short(before.get(name))}, and is "
                f"{_short(now.get(name))}; give the same options to go on with it, or name another folder"
            )
    ledger = place_of(search, path) / LEDGER
    record = Record(ledger, read_results(ledger))
    if record.last("drawn") is None:
        raise _unknown(path, f"{ledger} is missing or damaged")
    return record


def place_of(search: Search, path: Path) -> Path:
    """Where runs and their ledger lie: in the folder itself, or in a part of it that nobody may see."""
    return path if search.plan.strategy.losers_are_public else path / SECRET


def described(search: Search) -> dict[str, Any]:
    """All that decides what is run and what it costs; it may be shown."""
    plan = search.plan
    content = content_of(plan.candidates[0].config.model_copy(update={"seed": search.seed}))
    options = [each.config.model_dump(exclude={"out", "seed"}, exclude_none=True) for each in plan.candidates]
    return finite(
        {
            **plan.to_dict(),
            "options": {
                name: value for name, value in options[0].items() if all(each.get(name) == value for each in options)
            },
            "searched": [dict(each.chosen) for each in plan.candidates],
            "public_data": search.public_data,
            "pieces": None if search.pieces is None else list(search.pieces),
            "seed": search.seed,
            **({} if content is None else {"content": content}),
        }
    )


def _unknown(path: Path, why: str) -> BadArgument:
    return BadArgument(
        f"out={str(path)!r}: {why}, so that nobody can say what this search has spent; start another in another folder, and "
        "count this one as spent in full"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
