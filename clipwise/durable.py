"""Files that appear whole or not at all, and stay: written under another name, flushed to the disk, then renamed."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from clipwise.files import open_ordinary


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write(path: Path, content: str | bytes) -> None:
    """No reader, and no crash, sees half of it; the folder has one writer, so that one temporary name is enough."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        _write(temporary, content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """A folder with these files, which must not exist yet. What an earlier attempt left behind is removed."""
    temporary = path.with_name(f".{path.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        for name, content in files.items():
            _write(temporary / name, content)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def sync(folder: Path) -> None:
    """Names in a folder are on the disk only when the folder is. Where folders cannot be opened (Windows) the system sees to
    it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # of a process that was killed; a link is removed, and never followed
    with os.fdopen(open_ordinary(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
