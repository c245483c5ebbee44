"""The lines of a ledger as a chain: each is sealed, and names the one before.

Formal guarantee: a line that `unseal` accepts holds the content that was sealed, and follows the line whose SHA-256 is
`head`. With a key, only who has the key can have sealed it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from clipwise.accounting.book import LedgerTampered
from clipwise.types import BadArgument

GENESIS = "0" * 64  # `prev` of the first line
LONGEST_LINE = 1 << 20  # bytes; facts, and the lines of steps, stay far under it, and a reader needs a bound
_SEAL = re.compile(rb'(?:,"mac":"([0-9a-f]{64})")?,"sum":"([0-9a-f]{64})"\}\Z')
_SEAL_LENGTH = 147  # bytes, with a mac


class Unsealed(NamedTuple):
    record: dict[str, Any]
    sealed: bool  # with a key


def digest(line: bytes) -> str:
    """What the next line calls this one."""
    return hashlib.sha256(line).hexdigest()


def seal(record: Mapping[str, Any], head: str, key: bytes | None) -> bytes:
    """The line that holds this record and follows the line `head`."""
    body = json.dumps({**record, "prev": head}, separators=(",", ":"), allow_nan=False)[:-1].encode()
    if key is not None:
        body += b',"mac":"' + _mac(key, body).encode() + b'"'
    line = body + b',"sum":"' + digest(body).encode() + b'"}'
    if len(line) >= LONGEST_LINE:
        raise BadArgument(f"a {record['kind']} line of {len(line)} bytes is too long; give fewer facts")
    return line


def unseal(line: bytes, head: str, key: bytes | None) -> Unsealed:
    """The record of a line that follows `head`, or an error that says what was done to it."""
    found = _SEAL.search(line, max(0, len(line) - _SEAL_LENGTH))
    if found is None:
        raise LedgerTampered("is not a ledger line")
    body, (mac, content_sum) = line[: found.start()], found.groups()
    if digest(line[: found.start(2) - len(b',"sum":"')]).encode() != content_sum:
        raise LedgerTampered("was edited: its sum does not fit its content")
    if key is not None and not hmac.compare_digest(_mac(key, body).encode(), mac or b""):
        raise LedgerTampered("is not sealed with this HMAC key")
    try:
        record = _DECODER.decode((body + b"}").decode())
    except (ValueError, RecursionError) as error:
        raise LedgerTampered(f"is not valid JSON ({error})") from error
    if not isinstance(record, dict) or record.pop("prev", None) != head:
        raise LedgerTampered("does not follow the line before it: a line was removed, repeated, moved or edited")
    return Unsealed(record, mac is not None)


def public(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the facts as they will read back, or an error before anything is written."""
    try:
        return dict(json.loads(json.dumps(dict(facts), allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadArgument(
            f"{name}={facts!r} is not JSON ({error}); give finite numbers, strings, lists and dicts"
        ) from error


def _mac(key: bytes, body: bytes) -> str:
    return hmac.new(key, body, hashlib.sha256).hexdigest()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_constant(text)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
