"""Fetching a data set's files from where its publisher keeps them: resumable, checked, and whole or not at all.

A file is received in a folder of its own, `downloads` in the user's cache, where no data set is looked for. Only when
all its bytes are there and have the sha256 on record is it moved, in one stroke, to where it is found. A transfer that is
cut goes on where it stopped, now or on the next call.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from clipwise import __version__
from clipwise.data.source import Edition, File, Source, cache_folder, sha256_of
from clipwise.types import BadArgument, ClipwiseError

Progress = Callable[[str, int, int], None]  # file, bytes so far, bytes in all

_CHUNK = 256 * 1024  # bytes read at once: progress is shown after each
_TIMEOUT = 30.0  # seconds without a byte
_MOST_CUTS = 5  # in a row, without a byte between them
_MOST_REQUESTS = 100  # for one file
_PAUSE = 0.5  # seconds before going on after a cut, doubled each time


class FetchFailed(ClipwiseError, RuntimeError):
    """The files could not be had; nothing was put where data sets are looked for."""


class _Unavailable(Exception):
    """This mirror does not have the file, or cannot be reached: try the next."""


class _Damaged(Exception):
    """All bytes came, and they are not the right ones."""


def fetch(source: Source, progress: Progress | None = None) -> tuple[Path, list[dict[str, object]]]:
    """All files of the data set in the user's cache: the folder, and what was done for each file."""
    edition = source.fetchable
    if edition is None:
        raise BadArgument(f"data={source.name!r} cannot be fetched; to get it: {source.how_to_get}")
    root = cache_folder()
    done: list[dict[str, object]] = []
    for name, file in edition.files.items():
        target = root / name
        there = target.is_file() and file.accepts(sha256_of(target))
        if not there:
            try:
                _fetch_file(name, file, target, progress or (lambda *_: None))
            except (_Unavailable, _Damaged) as error:
                raise FetchFailed(f"{name} could not be fetched: {error}. {by_hand(edition, root)}") from error
        done.append({"file": name, "bytes": target.stat().st_size, "sha256": file.sha256, "fetched": not there})
    return root, done


def by_hand(edition: Edition, root: Path) -> str:
    """What to do without a network, in full."""
    lines = [
        f"  {file.urls[0]}  ->  {root / name}  ({file.size:,} bytes, sha256 {file.sha256})"
        for name, file in edition.files.items()
    ]
    return (
        "Without a network: fetch these files on a machine that has one, and put them here (or under another folder, named "
        "by CLIPWISE_DATA):\n" + "\n".join(lines)
    )


def _fetch_file(name: str, file: File, target: Path, progress: Progress) -> None:
    size, sha256 = file.size, file.sha256
    if size is None or sha256 is None:
        raise BadArgument(f"{name}: no size and sha256 are on record, so what would come cannot be checked")
    folder = cache_folder() / "downloads"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = folder / f"{sha256}.part"
        with _locked(part) as handle:
            have = handle.seek(0, os.SEEK_END)
            if (free := shutil.disk_usage(folder).free) < size - have:
                raise FetchFailed(
                    f"{name} needs {size - have:,} bytes in {folder}, and {free:,} are free; make room there"
                )
            _receive_from_any(file.urls, handle, size, sha256, lambda have: progress(name, have, size))
            handle.flush()
            os.fsync(handle.fileno())
            os.replace(part, target)
    except OSError as error:
        raise FetchFailed(
            f"{error.filename or folder} cannot be written ({error.strerror or error}); make it writable"
        ) from error


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """The half-received file, for this process alone."""
    with part.open("a+b") as handle:
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # no such locks on Windows
        except BlockingIOError as error:
            raise FetchFailed(f"{part} is being received by another process; wait for it to end") from error
        if not part.exists() or os.fstat(handle.fileno()).st_ino != part.stat().st_ino:
            raise FetchFailed(f"{part} was received by another process a moment ago; call again")
        yield handle


def _receive_from_any(
    urls: tuple[str, ...], handle: BinaryIO, size: int, sha256: str, progress: Callable[[int], None]
) -> None:
    """The right bytes, from the first mirror that has them."""
    problems: list[str] = []
    for url in urls:
        try:
            resumed = _receive(url, handle, size, progress)
            # The first bytes may have been another mirror's, or of an old version: once more, from the start.
            if resumed and _digest(handle) != sha256:
                handle.truncate(0)
                _receive(url, handle, size, progress)
            if (actual := _digest(handle)) == sha256:
                return
            handle.truncate(0)
            problems.append(f"{url} gave other bytes: their sha256 is {actual}, expected {sha256}")
        except _Unavailable as error:
            problems.append(f"{url}: {error}")
    kind = _Damaged if any("sha256" in problem for problem in problems) else _Unavailable
    raise kind("; ".join(problems))


def _receive(url: str, handle: BinaryIO, size: int, progress: Callable[[int], None]) -> bool:
    """Bytes up to `size` in the file, going on after cuts; True if some were there before."""
    have = handle.seek(0, os.SEEK_END)
    if have > size:
        handle.truncate(0)
        have = 0
    resumed, cuts = have > 0, 0
    for attempt in range(_MOST_REQUESTS):
        if have == size:
            break
        progress(have)
        before = have
        try:
            have = _receive_once(url, handle, have, size, progress)
            problem = f"the connection was cut after {have:,} of {size:,} bytes"
        except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
            have = handle.seek(0, os.SEEK_END)
            problem = f"the connection was cut after {have:,} of {size:,} bytes ({error or type(error).__name__})"
        if have < size:
            cuts = cuts + 1 if have <= before else 0
            if cuts >= _MOST_CUTS or attempt == _MOST_REQUESTS - 1:
                raise _Unavailable(f"{problem}; call again to go on from there")
            time.sleep(_PAUSE * 2**cuts)
    progress(have)
    return resumed


def _receive_once(url: str, handle: BinaryIO, have: int, size: int, progress: Callable[[int], None]) -> int:
    """One request, for the bytes from `have` on; a server that cannot do that starts again from the first."""
    headers = {"User-Agent": f"clipwise/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and have:  # it has fewer bytes than are here: not the same file
                handle.truncate(0)
                return 0
            if error.code in (429, 500, 502, 503, 504):
                raise ConnectionError(f"the server answered {error.code} {error.reason}") from error
            raise _Unavailable(f"the server answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _Unavailable(f"it cannot be reached ({error.reason})") from error
    with response:
        if have:
            goes_on = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            if response.status != 206 or not goes_on:
                handle.truncate(0)
                have = 0
            if response.status == 206 and not goes_on:
                return 0  # bytes from somewhere else in the file: ask again, for all of it
        while have < size:
            # Nothing past the end is written: a server that never stops does not fill the disk.
            if not (chunk := _read(response, min(_CHUNK, size - have))):
                break
            handle.write(chunk)
            have += len(chunk)
            progress(have)
        if have == size and _read(response, 1):
            handle.truncate(0)
            raise _Unavailable(f"it has more than the {size:,} bytes on record")
    return have


def _read(response: http.client.HTTPResponse, count: int) -> bytes:
    try:
        return response.read(count)
    except OSError as error:  # of the network; those of the disk come from elsewhere
        raise ConnectionError(str(error)) from error


def _digest(handle: BinaryIO) -> str:
    handle.flush()
    handle.seek(0)
    return hashlib.file_digest(handle, "sha256").hexdigest()  # type: ignore[arg-type]
