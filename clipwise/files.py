"""Files from outside, opened without trust: an ordinary file, or a named error at once.

Formal guarantee: `open_ordinary` never waits and never hands out anything but a regular file. A FIFO, a device, a
socket or a directory under the name is refused before a byte is read or written.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

MOST_BYTES = 64 << 20  # of a text (a config, a manifest, metrics of a very long run): far above all that were seen
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)


class NotOrdinary(OSError):
    """The path names something that is not a regular file."""


def open_ordinary(path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor, as of `os.open`, closed on exec. Every failure is an OSError, also that of an impossible name."""
    # Without O_NONBLOCK, to open a FIFO that nobody writes to waits for ever. Regular files do not know the flag.
    extra = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY"))
    try:
        file = os.open(path, flags | extra, mode)
    except ValueError as error:  # a NUL character in the name
        raise NotOrdinary(f"{str(path)!r} cannot be a file's name ({error})") from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise NotOrdinary(f"{path} is not an ordinary file")
    return file


def read_bytes(path: str | Path, *, most: int = MOST_BYTES, follow: bool = True) -> bytes:
    """The whole file, if it is ordinary and not above `most` bytes; follow=False refuses a link. Fails with an OSError."""
    with os.fdopen(open_ordinary(path, os.O_RDONLY | (0 if follow else _NOFOLLOW)), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise NotOrdinary(f"{path} is larger than {most} bytes, which no such file is")
    return data


def sha256_of(path: str | Path) -> tuple[str, int]:
    """Digest and size of an ordinary file that is no link, in bounded memory."""
    digest, size = hashlib.sha256(), 0
    with os.fdopen(open_ordinary(path, os.O_RDONLY | _NOFOLLOW), "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
            size += len(part)
    return digest.hexdigest(), size
