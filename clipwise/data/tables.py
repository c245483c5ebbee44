"""Rows of the .csv and .tsv files of published data sets, plain or compressed; their bytes are known by sha256."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from clipwise.data.archive import members, unzipped
from clipwise.types import BadArgument

_MOST_BYTES = 256 * 1024 * 1024  # far above the largest of these files


def read_rows(
    path: Path, fields: int, *, tab: bool = False, header: bool = False, member: str | None = None
) -> list[list[str]]:
    """The rows, each with that many fields at least. `tab`: GLUE's form, where a quote is a character like others."""
    if member is not None:
        data = members(path, {member: _MOST_BYTES})[member]
    elif path.suffix == ".gz":
        data = unzipped(path, _MOST_BYTES)
    else:
        with path.open("rb") as handle:
            data = handle.read(_MOST_BYTES)
    try:
        text = io.StringIO(data.decode("utf-8"), newline="")
        form = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tab else {}
        rows = list(csv.reader(text, **form))[int(header) :]  # type: ignore[arg-type]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadArgument(f"{path} cannot be read as a table ({error}); put a fresh copy there") from error
    rows = [row for row in rows if row]
    if not rows or min(map(len, rows)) < fields:
        raise BadArgument(f"{path} has no rows, or rows of fewer than {fields} fields; put a fresh copy there")
    return rows


def labels(path: Path, texts: Sequence[str], names: Sequence[str]) -> list[int]:
    """The labels as class numbers: the place of each in `names`."""
    places = {name: place for place, name in enumerate(names)}
    try:
        return [places[text] for text in texts]
    except KeyError as error:
        raise BadArgument(f"{path} has a label that is none of {', '.join(names)}; put a fresh copy there") from error
