"""Reads a run folder to report on it. A folder that is no run, or holds a damaged file, is refused by name; a run that
failed or is still going is read as far as it came, and says so in `problems`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from clipwise import files
from clipwise.accounting import ACCOUNTANTS, TradeOff, trade_off
from clipwise.accounting.history import read_history
from clipwise.accounting.ledger import Ledger, LedgerError
from clipwise.lab.report.attack import RATES
from clipwise.lab.report.search import SearchRecord
from clipwise.proportion import wilson
from clipwise.statement import stated_head
from clipwise.training.verify import NotVerified, verify
from clipwise.types import BadArgument
from clipwise.validate import finite_or_none

FILES = (
    "statement.md",
    "plan.json",
    "search.jsonl",
    "ledger.jsonl",
    "config.toml",
    "metrics.jsonl",
    "path.jsonl",
    "result.json",
    "predictions.npz",
    "model.safetensors",
)
_ANY_OF = ("config.toml", "result.json", "metrics.jsonl", "ledger.jsonl", "plan.json")


class Charged(NamedTuple):
    """What the ledger says."""

    steps: int
    epsilon: float | None  # where no result states it
    attack: TradeOff | None  # the most that any attack can reach, by all that counts


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    path: Path
    config: Mapping[str, Any]
    lines: tuple[Mapping[str, Any], ...]  # of metrics.jsonl, one an epoch
    steps: tuple[Mapping[str, Any], ...]  # of path.jsonl, one a step
    result: Mapping[str, Any]  # empty while the run goes on
    statement: str | None
    charged: Charged | None  # None without a good ledger
    problems: tuple[str, ...]
    search: SearchRecord | None = None  # that chose the options of this run

    @property
    def finished(self) -> bool:
        return bool(self.result) and "error" not in self.result

    @property
    def files(self) -> list[str]:
        return [name for name in FILES if (self.path / name).is_file()]

    @property
    def target_epsilon(self) -> float | None:
        """Of the run's own chart; a tuned run's budget is that of its search, which the chart does not show."""
        return finite_or_none(self.config.get("epsilon"))

    @property
    def test_size(self) -> int | None:
        """Records that accuracy was measured on: as the result states it, or as every edition of the data set has it."""
        from clipwise.data import DATASETS

        stated = self.result.get("test_size")
        if isinstance(stated, int) and stated > 0:
            return stated
        source = DATASETS.get(str(self.config.get("data")))
        sizes = {edition.test_count for edition in source.editions} if source else set()
        return sizes.pop() if len(sizes) == 1 else None

    def summary(self) -> dict[str, Any]:
        """The figures at the top of the page, and what `clipwise report --json` gives."""
        last = self.lines[-1] if self.lines else {}
        accuracy = finite_or_none(self.result.get("accuracy", last.get("accuracy")))
        spent = self.charged.epsilon if self.charged and not self.finished else None
        interval = wilson(accuracy, self.test_size) if accuracy is not None and self.test_size else (None, None)
        return {
            "method": self.result.get("method", self.config.get("method")),
            "data": self.config.get("data"),
            "model": self.config.get("model"),
            "finished": self.finished,
            "private": bool(self.result.get("private")) if self.finished else finite_or_none(spent) is not None,
            "epsilon": finite_or_none(self.result.get("epsilon") if self.finished else spent),
            "delta": finite_or_none(self.result.get("delta") if self.finished else self.config.get("delta")),
            "target_epsilon": self.target_epsilon,
            "accuracy": accuracy,
            "accuracy_interval": None if interval[0] is None else list(interval),
            "test_size": self.test_size,
            "steps": self.result.get("steps", self.charged.steps if self.charged else last.get("step")),
            "noise_multiplier": finite_or_none(self.result.get("noise_multiplier", last.get("noise_multiplier"))),
            "attack": self.result.get("attack"),
            "last": dict(last),
            **({} if self.search is None else {"tuning": dict(self.search.plan), "chosen": self.search.chosen}),
        }


def read_run(path: str | Path) -> RunRecord:
    path = Path(path)
    if not path.is_dir():
        found = "is not a folder" if path.exists() else "does not exist"
        raise BadArgument(f"run={str(path)!r} {found}; give the folder that `clipwise train` made (see its --out)")
    if not any((path / name).is_file() for name in _ANY_OF):
        raise BadArgument(
            f"run={str(path)!r} holds none of a run's files (config.toml, metrics.jsonl, result.json, ledger.jsonl); "
            "give the folder that `clipwise train` made"
        )
    problems: list[str] = []
    try:
        verify(path)
    except NotVerified as error:
        problems.append(f"Not verified: {error}.")
    config = _toml(path / "config.toml")
    lines = _lines(path / "metrics.jsonl")
    result = _object(path / "result.json", _text(path / "result.json") or "{}", "the file")
    search = _search(path, result)
    if search is not None and (warning := search.warning()):
        problems.append(warning)
    if "error" in result:
        problems.append(f"The run failed: {result.get('kind', 'error')}: {result['error']}")
    elif not result and search is not None:
        problems.append(
            "The search has not ended, or it was killed; the same command with the same --out goes on with it."
        )
    elif not result:
        problems.append("There is no result.json: the run has not finished, or it was killed.")
    if not lines and (search is None or result):
        problems.append("There are no metrics: the run did not complete an epoch.")
    charged = _charged(path / "ledger.jsonl", config, result, problems, searched=search is not None)
    return RunRecord(
        path=path,
        config=config,
        lines=tuple(lines),
        steps=tuple(_lines(path / "path.jsonl")),
        result=result,
        statement=_text(path / "statement.md"),
        charged=charged,
        problems=tuple(problems),
        search=search,
    )


def read_so_far(path: str | Path) -> RunRecord:
    """What a run has written up to now, without looking at its ledger or verifying anything: cheap, for looking again and
    again. A file that is not there yet is empty."""
    path = Path(path)
    result = _object(path / "result.json", _text(path / "result.json") or "{}", "the file")
    return RunRecord(
        path=path,
        config=_toml(path / "config.toml"),
        lines=tuple(_lines(path / "metrics.jsonl")),
        steps=tuple(_lines(path / "path.jsonl")),
        result=result,
        statement=None,
        charged=None,
        problems=(f"The run failed: {result.get('kind', 'error')}: {result['error']}",) if "error" in result else (),
    )


def _search(path: Path, result: Mapping[str, Any]) -> SearchRecord | None:
    """The search that left this folder; the part of it that is secret is not looked at."""
    plan = _object(path / "plan.json", _text(path / "plan.json") or "{}", "the file")
    if not plan:
        return None
    return SearchRecord(
        plan, () if plan.get("runs_are_secret") else _lines(path / "search.jsonl"), result.get("chosen")
    )


def anchor(run: Path) -> str | None:
    """The line of the ledger that the run's statement, or the result of a run that failed, says it contains."""
    result = _object(run / "result.json", _text(run / "result.json") or "{}", "the file")
    return stated_head(_text(run / "statement.md")) or result.get("ledger_head")


def _charged(
    path: Path, config: Mapping[str, Any], result: Mapping[str, Any], problems: list[str], *, searched: bool
) -> Charged | None:
    """What the ledger charges, after its chain of hashes was checked; epsilon only where no result states it."""
    if not path.is_file():
        if result.get("private"):
            problems.append("The ledger is missing: what this run spent cannot be checked.")
        return None
    try:
        ledger = Ledger.read(path)
        read_history(path, head=anchor(path.parent))
    except (LedgerError, OSError) as error:
        problems.append(f"The ledger does not pass its check: {error}")
        return None
    steps = sum(event.count for event in ledger.events())
    stated = result.get("steps")
    if stated is not None and stated != steps:
        problems.append(f"result.json states {stated} steps, and the ledger charges {steps}.")
    delta = finite_or_none(config.get("delta"))
    asked = config.get("accountant")
    accountant = asked if asked in ACCOUNTANTS else "best"
    if (result and "error" not in result) or not delta or not steps:
        told, spent = finite_or_none(result.get("epsilon")), None
    else:
        told = spent = ledger.epsilon(delta, accountant).value
    # A search costs more than the ledger of the run that it chose: then its own pair alone counts.
    whole = accountant != "rdp" and not searched
    attack = trade_off(ledger.events(), told, delta, RATES, whole_curve=whole) if steps else None
    return Charged(steps, spent, attack)


def _text(path: Path) -> str | None:
    try:
        return files.read_bytes(path, follow=False).decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BadArgument(f"run: {path} cannot be read ({error}); restore the file") from error


def _toml(path: Path) -> dict[str, Any]:
    try:
        return files.parse_toml(_text(path) or "")
    except files.Malformed as error:
        raise BadArgument(f"run: {path} is not valid TOML ({error}); restore the file") from error


def _lines(path: Path) -> list[dict[str, Any]]:
    texts = (_text(path) or "").split("\n")  # not splitlines: JSON text may hold a line separator of Unicode
    return [_object(path, text, f"line {place}") for place, text in enumerate(texts, start=1) if text.strip()]


def _object(path: Path, text: str, where: str) -> dict[str, Any]:
    try:
        value = files.parse_json(text)
    except files.Malformed as error:
        raise BadArgument(f"run: {where} of {path} is not JSON ({error}); restore the file") from error
    if not isinstance(value, dict):
        raise BadArgument(f"run: {where} of {path} is not a JSON object; restore the file")
    return value
