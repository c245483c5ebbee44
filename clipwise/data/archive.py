"""Members of .zip and .tar.gz archives, read by name and size; nothing is ever unpacked to disk.

So a member's path cannot lead out of a folder, and a small archive cannot swell: what is read is bounded by what the
caller expects, whatever the archive claims.
"""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from clipwise.types import BadArgument

_MOST_MEMBERS = 1000  # of an archive: far above the data sets here, against one made to fill a disk
_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
)


def members(path: Path, wanted: Mapping[str, int]) -> dict[str, bytes]:
    """The named members of an archive, none larger than the size given for it."""
    try:
        found = _from_zip(path, wanted) if path.suffix == ".zip" else _from_tar(path, wanted)
    except BadArgument:
        raise
    except _BROKEN as error:
        raise BadArgument(f"{path} cannot be read as an archive ({error}); put a fresh copy there") from error
    if missing := [name for name in wanted if name not in found]:
        raise BadArgument(f"{path} does not hold {missing[0]}; put a fresh copy there")
    return found


def _from_zip(path: Path, wanted: Mapping[str, int]) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        found = {}
        for name in wanted:
            if name in archive.NameToInfo:
                with archive.open(name) as handle:
                    found[name] = handle.read(wanted[name] + 1)
                _refuse_above(path, name, len(found[name]), wanted[name])
        return found


def _from_tar(path: Path, wanted: Mapping[str, int]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    most = sum(wanted.values()) + 64 * 1024 * 1024  # beside what is wanted, room for read-me files and headers
    # A stream: members come one by one and are not kept; gzip.open unpacks it a little at a time, unlike tarfile's own.
    with gzip.open(path) as unpacked, tarfile.open(fileobj=unpacked, mode="r|") as archive:
        passed = 0
        for count, member in enumerate(archive):
            passed += member.size
            if count >= _MOST_MEMBERS or passed > most:
                raise BadArgument(f"{path} unpacks to more than its data set could be; put a fresh copy there")
            if member.name not in wanted or not member.isfile():
                continue
            _refuse_above(path, member.name, member.size, wanted[member.name])
            handle = archive.extractfile(member)
            if handle is not None:
                found[member.name] = handle.read(wanted[member.name] + 1)
            if len(found) == len(wanted):
                break
    return found


def _refuse_above(path: Path, name: str, size: int, most: int) -> None:
    if size > most:
        raise BadArgument(f"{path}: {name} unpacks to more than the {most} bytes it could be; put a fresh copy there")


def unzipped(path: Path, most: int) -> bytes:
    """The content of a .gz or .xz file, `most` bytes at most."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else lzma.open(path) as handle:
            data = handle.read(most + 1)
    except _BROKEN as error:
        raise BadArgument(f"{path} cannot be unpacked ({error}); put a fresh copy there") from error
    if len(data) > most:
        raise BadArgument(f"{path} unpacks to more than the {most} bytes it could be; put a fresh copy there")
    return data
