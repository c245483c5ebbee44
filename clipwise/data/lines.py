"""Lines of a text file that may be anything: a file of one endless line must not fill the memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from clipwise.types import BadArgument

LONGEST_LINE = 16 * 1024 * 1024  # characters: far above any record; a file without line ends is not read whole


def bounded(handle: TextIO, path: Path, longest: int | None = None) -> Iterator[str]:
    """The lines of an open file; one that is longer than `longest` is refused without reading on."""
    most = LONGEST_LINE if longest is None else longest
    while line := handle.readline(most + 1):
        if len(line) > most:
            raise BadArgument(f"{path} has a line above {most} characters; give a file with a record a line")
        yield line


def bounded_lines(path: Path, longest: int | None = None) -> Iterator[str]:
    """The lines of a UTF-8 file, bounded as above."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            yield from bounded(handle, path, longest)
    except (OSError, UnicodeDecodeError) as error:
        raise BadArgument(f"{path} cannot be read as text ({error}); save it as UTF-8") from error
