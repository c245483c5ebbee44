"""Files and texts from outside, taken without trust: what they should be, or a named error at once.

Formal guarantee: `open_ordinary` never waits and never hands out anything but a regular file. A FIFO, a device, a
socket or a directory under the name is refused before a byte is read or written. The parsers execute nothing, refuse what
is nested too deeply or refers to itself, and never take a number that is too large for infinity.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 64 << 20  # of a text (a config, a manifest, metrics of a very long run): far above all that were seen
MOST_CONFIG = 1 << 18  # bytes of options: PyYAML reads some 100 kB a second
_DEEPEST = 32  # levels of nesting, and parts of a dotted key; options have three
_LARGEST_INT = 2**63  # in size: what 64 bits hold, which is all that TOML promises
_SHOWN = 40  # characters of a number in a message
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


def is_ordinary(path: str | Path) -> bool:
    """Whether there is an ordinary file of that name; False also for a name that cannot be one."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def is_folder(path: str | Path) -> bool:
    """Whether there is a folder of that name; False also for a name that cannot be one."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


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


class Malformed(ValueError):
    """A text that is not what it should be; the message says where, or what."""


def number(text: str) -> float:
    """A real number as written. One that is too large for a float is refused: only the word `inf` means infinity."""
    value = float(text)
    if math.isinf(value) and not text.strip().lstrip("+-").lower().startswith("inf"):
        raise Malformed(f"{text[:_SHOWN]} is too large for a number; write inf for infinity")
    return value


def parse_toml(text: str) -> dict[str, Any]:
    # tomllib takes time by the square of the parts of a dotted key: 30,000 of them would take a minute.
    if any(part.count(".") > _DEEPEST for part in re.split(r"[={},\[\]\n]", text)):
        raise Malformed(f"a key has more than {_DEEPEST} parts")
    values: dict[str, Any] = _parsed(lambda: tomllib.loads(text, parse_float=number))
    return values


def parse_json(text: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise Malformed(f"{constant} is not JSON")

    return _parsed(lambda: json.loads(text, parse_float=number, parse_constant=refuse))


def parse_yaml(text: str) -> Any:
    """Plain YAML: numbers, text, lists and mappings. Needs PyYAML (ModuleNotFoundError)."""
    import yaml

    class Plain(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):  # a page of them can stand for more than any memory holds
                raise Malformed("aliases (*name) are not read; write the value out")
            return super().compose_node(parent, index)

    def real(loader: Any, node: Any) -> float:
        value = yaml.SafeLoader.construct_yaml_float(loader, node)
        if math.isinf(value) and "inf" not in node.value.lower():
            raise Malformed(f"{node.value[:_SHOWN]} is too large for a number; write .inf for infinity")
        return value

    Plain.add_constructor("tag:yaml.org,2002:float", real)

    def load() -> Any:
        try:
            return yaml.load(text, Loader=Plain)  # a SafeLoader
        except yaml.YAMLError as error:
            raise Malformed(str(error)) from error

    return _parsed(load)


def _parsed(parse: Callable[[], Any]) -> Any:
    """What the parser gives, if nothing in it is deeper or larger than an option, a fact or a figure can be."""
    try:
        value = parse()
    except RecursionError as error:
        raise Malformed("it is nested too deeply") from error
    except Malformed:
        raise
    except (ValueError, OverflowError, LookupError, TypeError, AttributeError) as error:  # PyYAML lets some of them out
        raise Malformed(str(error)) from error
    level = [value]
    for _ in range(_DEEPEST):
        if any(isinstance(each, int) and abs(each) > _LARGEST_INT for each in level):
            raise Malformed("a whole number in it is too large; none may be above 2^63")
        level = [part for each in level for part in _parts(each)]
        if not level:
            return value
    raise Malformed(f"it is nested more than {_DEEPEST} deep")


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return (*value.keys(), *value.values())
    return value if isinstance(value, list | tuple | set) else ()
