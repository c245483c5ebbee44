"""Lines of results that survive a crash, and a folder that one runner has to itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clipwise.locks import Held, holding
from clipwise.types import BadArgument


def read_results(path: Path) -> list[dict[str, Any]]:
    """The lines of results.jsonl; a last line that a crash tore is left out, any other that is damaged is refused."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    results = []
    for number, text in enumerate(lines, start=1):
        try:
            line = json.loads(text)
            if not (isinstance(line, dict) and isinstance(line.get("id"), str)):
                raise ValueError("it has no id")
        except ValueError as error:
            if number == len(lines):
                break
            raise BadArgument(
                f"{path}, line {number} is damaged ({error}); delete that line to run it again"
            ) from error
        results.append(line)
    return results


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    with path.open("a+b") as file:
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)  # what follows was torn by a crash
        file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def only_one(folder: Path, what: str) -> Iterator[None]:
    """Two runners on one folder would run every trial twice."""
    try:
        with holding(folder / ".lock"):
            yield
    except Held as error:
        raise BadArgument(f"out={str(folder)!r}: another {what} runs there; wait for it or name another") from error
