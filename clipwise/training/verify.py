"""Whether the files of a run folder are those that its run wrote, and say the same: `clipwise verify RUN`.

Formal guarantee: where `verify` returns a finished run, every file that the run wrote has the SHA-256 and size of the
manifest, the ledger's chain is whole and its closing line holds the manifest's SHA-256 (and that of weights, statement and
result), no file of a run is there that the manifest does not list, and epsilon and steps in result and statement are
what the ledger's charges give when they are accounted for anew. Links inside the folder are not followed.

What it does not see: someone who rewrites everything, the ledger's charges among it, in one consistent forgery. Against
that, keep the ledger's head (or the manifest's SHA-256) elsewhere, or seal the ledger with a key.

| what is there                                        | answer                                                |
| ---------------------------------------------------- | ----------------------------------------------------- |
| manifest, and everything agrees                      | `Verified`, finished                                  |
| no manifest, no result or an error, a good ledger    | `Verified`, not finished: the ledger alone was checked |
| a folder of version 0.1 (no manifest, ledger schema 1) | `NotVerified`                                       |
| anything else                                        | `RunTampered`, which names the file                   |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clipwise import files
from clipwise.accounting import ACCOUNTANTS
from clipwise.accounting.ledger import Ledger, LedgerError
from clipwise.statement import shown_epsilon, stated_head
from clipwise.training.folder import FILES, LEDGER, MANIFEST, VOUCHED
from clipwise.types import BadArgument, ClipwiseError

RUN_MANIFEST = "run_manifest.json"  # in the folder of a search: the manifest of the run that was chosen
_REPLACED_BY_SEARCH = ("statement.md", "result.json")
_NOT_LINKS = (
    *FILES,
    LEDGER,
    MANIFEST,
    RUN_MANIFEST,
    "plan.json",
    "search.jsonl",
    "report",
    "report.html",
    "tensorboard",
)
_CLOSE = 1e-9  # relative; the same charges by the same accountant, perhaps on another machine


class RunTampered(ClipwiseError, RuntimeError):
    """The files of a run do not agree, or are not what was written: the message names the file."""


class NotVerified(ClipwiseError, RuntimeError):
    """Nothing speaks against the folder, and nothing vouches for it."""


@dataclass(frozen=True)
class Verified:
    path: Path
    finished: bool
    private: bool
    epsilon: float | None  # of a finished private run; None where it is infinite
    delta: float | None
    steps: int  # that the ledger charges
    files: tuple[str, ...]  # whose content was compared with the manifest


def verify(run: str | Path) -> Verified:
    """Follow the chain from the ledger to every file of a run folder, or raise what is wrong with it."""
    path = Path(run)
    try:
        if not path.is_dir():
            raise BadArgument(f"run={str(path)!r} is not a folder; give the folder that `clipwise train` made")
        links = [name for name in _NOT_LINKS if (path / name).is_symlink()]
    except (OSError, ValueError) as error:
        raise BadArgument(f"run={str(path)[:200]!r} cannot be read ({error}); give the folder of a run") from error
    if links:
        raise RunTampered(f"{path / links[0]} is a link, and links in a run folder are not followed; restore the file")
    result = _json(path / "result.json") if (path / "result.json").exists() else {}
    if (path / MANIFEST).exists():
        return _finished(path, result)
    return _without_manifest(path, result)


def _finished(path: Path, result: Mapping[str, Any]) -> Verified:
    checked = _check_files(path, MANIFEST)
    private = _is_private(path, result)
    if not private:
        if (path / LEDGER).exists():
            raise RunTampered(
                f"{path / LEDGER} is there, and result.json says that the run was not private; restore both"
            )
        return Verified(path, True, False, None, result.get("delta"), _count(result), checked)
    ledger, search = read_ledger(path), (path / RUN_MANIFEST).exists()
    if search:
        _check_files(path, RUN_MANIFEST, but=_REPLACED_BY_SEARCH)
    for what, name in VOUCHED.items():
        if search and name in _REPLACED_BY_SEARCH:
            continue
        if ledger.facts.get(what) is None and not (path / name).exists():
            continue  # a run of an earlier version had none
        if ledger.facts.get(what) != files.sha256_of(path / name)[0]:
            raise RunTampered(
                f"{path / name} is not the one that the ledger's closing line names: it was changed, or is of another run"
            )
    epsilon = _check_figures(path, ledger, result, search)
    return Verified(path, True, True, epsilon, result.get("delta"), _count(result), checked)


def read_ledger(path: Path) -> Ledger:
    """The ledger of a run folder, with its end: of a run that has ended, up to the closing line that names the manifest."""
    result = _json(path / "result.json") if (path / "result.json").exists() else {}
    head = stated_head(_text(path / "statement.md")) or result.get("ledger_head")
    try:
        ledger = Ledger.read(path / LEDGER, must_contain=head)
    except (LedgerError, BadArgument) as error:
        raise RunTampered(f"the ledger does not pass its check: {error}") from error
    vouched = next((path / name for name in (RUN_MANIFEST, MANIFEST) if (path / name).exists()), None)
    if vouched is not None and not ledger.closed:
        raise RunTampered(f"{path / LEDGER} has no closing line, and the run has ended: lines were cut off its end")
    if vouched is not None and not (path / LEDGER).read_bytes().endswith(b"\n"):
        raise RunTampered(f"{path / LEDGER}: something follows its closing line, and the run has ended")
    if vouched is not None and ledger.facts.get("manifest") != files.sha256_of(vouched)[0]:
        raise RunTampered(
            f"{vouched} is not the one that the ledger's closing line names: one of them is of another run"
        )
    return ledger


def _check_files(path: Path, manifest: str, but: tuple[str, ...] = ()) -> tuple[str, ...]:
    listed = _json(path / manifest).get("files")
    if not isinstance(listed, dict) or not all(_plain(name, about) for name, about in listed.items()):
        raise RunTampered(f"{path / manifest} lists no files, or in another form than it should; restore the file")
    for name in FILES:
        if name not in listed and (path / name).exists():
            raise RunTampered(f"{path / name} is not in {manifest}: it is of another run, or was added; remove it")
    for name, about in listed.items():
        if name in but:
            continue
        try:
            found = files.sha256_of(path / name)
        except OSError as error:
            raise RunTampered(f"{path / name} cannot be read, and {manifest} lists it ({error}); restore it") from error
        if found != (about["sha256"], about["size"]):
            raise RunTampered(
                f"{path / name} is not what the run wrote: {manifest} has another SHA-256; restore the file"
            )
    return tuple(listed)


def _plain(name: Any, about: Any) -> bool:
    known = isinstance(name, str) and Path(name).name == name and isinstance(about, dict)
    return known and isinstance(about.get("sha256"), str) and type(about.get("size")) is int


def _is_private(path: Path, result: Mapping[str, Any]) -> bool:
    """Whether the run was to be private; an unsound method says so in the statement, and keeps a ledger."""
    return bool(result.get("private")) or (path / LEDGER).exists()


def _check_figures(path: Path, ledger: Ledger, result: Mapping[str, Any], search: bool) -> float | None:
    steps, (stated, delta, accountant) = _steps(ledger), (result.get(key) for key in ("epsilon", "delta", "accountant"))
    if result.get("steps") != steps:
        raise RunTampered(
            f"{path / 'result.json'} states {result.get('steps')!r} steps, and the ledger charges {steps}"
        )
    if delta is None:
        return None
    sound = all(segment.run.get("sound", True) is not False for segment in ledger.book.segments)
    spent = ledger.epsilon(delta, accountant if accountant in ACCOUNTANTS else "best").value if sound else math.inf
    told = math.inf if stated is None else stated
    if not isinstance(told, int | float) or not (
        told >= spent * (1 - _CLOSE) if search else told == spent or math.isclose(told, spent, rel_tol=_CLOSE)
    ):
        raise RunTampered(
            f"{path / 'result.json'} states epsilon {told!r}, and the ledger's charges give {spent!r} at delta {delta!r}"
        )
    if math.isfinite(told) and shown_epsilon(told) not in _text(path / "statement.md"):
        raise RunTampered(f"{path / 'statement.md'} does not state epsilon {shown_epsilon(told)}, as result.json does")
    return told if math.isfinite(told) else None


def _without_manifest(path: Path, result: Mapping[str, Any]) -> Verified:
    ended = bool(result) and "error" not in result
    if not (path / LEDGER).exists():
        if result.get("private"):
            raise RunTampered(f"{path / LEDGER} is missing, and result.json says that the run was private; restore it")
        if ended:
            raise NotVerified(f"{path} has no manifest.json: it was made by version 0.1, which wrote none")
        return Verified(path, False, False, None, None, 0, ())
    ledger = read_ledger(path)
    if ledger.book.segments[0].schema == 1:
        raise NotVerified(f"{path} has no manifest.json: it was made by version 0.1, which wrote none")
    if ended or "manifest" in ledger.facts:
        raise RunTampered(f"{path / MANIFEST} is missing, and the run has ended; restore it")
    return Verified(path, False, True, None, None, _steps(ledger), ())


def _steps(ledger: Ledger) -> int:
    return sum(event.count for event in ledger.events())


def _count(result: Mapping[str, Any]) -> int:
    steps = result.get("steps")
    return steps if type(steps) is int else 0


def _text(path: Path) -> str:
    try:
        return files.read_bytes(path, follow=False).decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadArgument(f"run: {path} cannot be read ({error}); restore the file") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        value = files.parse_json(_text(path))
    except files.Malformed as error:
        raise BadArgument(f"run: {path} is not JSON ({error}); restore the file") from error
    if not isinstance(value, dict):
        raise BadArgument(f"run: {path} is not a JSON object; restore the file")
    return value
