"""A fuzzer for everything that reads files: valid files, damaged in many ways, must be refused by name or read, at once.

    outcome = fuzz(READERS["ledger"](), seconds=60, seed=0)

What counts as a failure: an error that is no ClipwiseError (a crash without a name), a trial above ten seconds (a hang),
code that was run or a file that was written elsewhere (`sys.addaudithook` watches), and, for readers that vouch for every
bit, a damaged file that was read as if nothing had happened (silent). A failure names the trial: the same seed makes the
same files.

A reader joins by a function that gives valid files and the call that reads them, and a line in `READERS`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clipwise.types import ClipwiseError

_PATIENCE = 10.0  # seconds of one trial; the slowest honest one, 256 kB of YAML, takes three
_MOST_FAILURES = 20  # that are kept in full
_HOSTILE = (  # texts that mean harm somewhere
    b"1e400", b"-1", b"NaN", b"Infinity", b"9" * 5000, b"0x" + b"f" * 5000, b"null", b"true", b"{}", b"[]", b'""', b"\x00",
    b"[" * 2000, b"{" * 2000, b'{"a":' * 500, b"a." * 3000, b"&a [*a, *a]", b"!!python/object/apply:os.system ['true']",
    b"cos\nsystem\n(S'true'\ntR.", b"../" * 50, b"\xff\xfe", b"\xe2\x80\xa8", b"inf", b"-0.0", b"1e-400", b"__import__('os')",
)  # fmt: skip
_ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    10**18,
    10**30,
    1e308,
    -0.0,
    "",
    "x" * 500,
    [],
    {},
    [[]],
    {"a": {}},
    "inf",
    "poisson",
)


@dataclass(frozen=True)
class Reader:
    """Valid files by name, and the call that reads them from their folder."""

    name: str
    files: Mapping[str, bytes]
    read: Callable[[Path], object]
    strict: bool = False  # whether it must notice any change
    rebuild: Callable[[bytes, random.Random], bytes] | None = None  # a damage below checksums, of the first file


@dataclass
class Outcome:
    reader: str
    trials: int = 0
    refused: int = 0
    read: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.failures


def fuzz(reader: Reader, seconds: float, seed: int = 0, *, trials: int | None = None) -> Outcome:
    """Damage the reader's files again and again, for so many seconds (or trials)."""
    outcome, end = Outcome(reader.name), time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="clipwise-fuzz-") as place, _watched(Path(place)) as deeds:
        _try(
            reader, reader.files, Path(place)
        )  # what it imports, it imports now; the files are good, so this must pass
        deeds.clear()
        while time.monotonic() < end and (trials is None or outcome.trials < trials):
            number = outcome.trials
            chance = random.Random(f"{reader.name} {seed} {number}")
            damaged, rebuilt = _damaged(reader, chance)
            if damaged == reader.files:
                outcome.trials += 1
                continue
            failure = _trial(reader, damaged, rebuilt, Path(place), outcome, deeds)
            if failure and len(outcome.failures) < _MOST_FAILURES:
                outcome.failures.append(f"{reader.name}, seed {seed}, trial {number}: {failure}")
            outcome.trials += 1
    return outcome


def _trial(
    reader: Reader, files: Mapping[str, bytes], rebuilt: bool, place: Path, outcome: Outcome, deeds: list[str]
) -> str | None:
    start, failure = time.monotonic(), None
    try:
        with _alarm():
            _try(reader, files, place)
        outcome.read += 1
        if reader.strict and not rebuilt:
            failure = "silent: a file was changed, and nothing was said"
    except ClipwiseError as error:
        outcome.refused += 1
        if len(str(error)) > 5000:
            failure = f"a message of {len(str(error))} characters"
    except _Hang:
        failure = f"hang: above {_PATIENCE:g} s"
    except BaseException as error:  # whatever came has no name: that is what is looked for
        if isinstance(error, KeyboardInterrupt):
            raise
        failure = f"{type(error).__name__}: {str(error)[:200]}"
    if deeds:
        failure = f"it did {deeds[0]}"
        deeds.clear()
    return failure or (f"hang: {time.monotonic() - start:.0f} s" if time.monotonic() - start > _PATIENCE else None)


def _try(reader: Reader, files: Mapping[str, bytes], place: Path) -> None:
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    with contextlib.redirect_stderr(io.StringIO()):
        reader.read(place)


# Damage


def _damaged(reader: Reader, chance: random.Random) -> tuple[dict[str, bytes], bool]:
    files = dict(reader.files)
    first = next(iter(files))
    if reader.rebuild is not None and chance.random() < 0.5:
        files[first] = reader.rebuild(files[first], chance)
        return files, True
    name = chance.choice(list(files))
    content = files[name]
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        content = chance.choice(_WAYS)(content, chance)
    files[name] = content
    return files, False


def _flip(data: bytes, chance: random.Random) -> bytes:
    if not data:
        return b"\x01"
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _insert(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data) + 1)
    return (
        data[:place]
        + chance.choice((chance.randbytes(chance.randrange(1, 40)), chance.choice(_HOSTILE)))
        + data[place:]
    )


def _remove(data: bytes, chance: random.Random) -> bytes:
    first, last = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data[:first] + data[last:]


def _repeat(data: bytes, chance: random.Random) -> bytes:
    first, last = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data[:last] + data[first:last] * chance.choice((1, 2, 50)) + data[last:]


def _another_number(data: bytes, chance: random.Random) -> bytes:
    numbers = list(re.finditer(rb"-?\d+(?:\.\d+)?(?:e-?\d+)?", data))
    if not numbers:
        return _insert(data, chance)
    found = chance.choice(numbers)
    return data[: found.start()] + chance.choice(_HOSTILE) + data[found.end() :]


def _lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    chance.shuffle(lines)
    return b"".join(lines)


def _noise(_: bytes, chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 100, 10_000)))


_WAYS = (_flip, _flip, _cut, _insert, _insert, _remove, _repeat, _another_number, _another_number, _lines, _noise)


def _other_values(record: Any, chance: random.Random) -> Any:
    """A JSON value with one of its parts, at any depth, made odd."""
    if isinstance(record, dict) and record and chance.random() < 0.9:
        name = chance.choice(list(record))
        return {**record, name: _other_values(record[name], chance)}
    if isinstance(record, list) and record and chance.random() < 0.7:
        place = chance.randrange(len(record))
        return [*record[:place], _other_values(record[place], chance), *record[place + 1 :]]
    return chance.choice(_ODD)


# What is watched


class _Hang(BaseException):
    """The alarm."""


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield  # no alarm outside the main thread: a slow trial is still noticed when it ends
        return

    def ring(*_: object) -> None:
        raise _Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


_DEEDS: tuple[str, ...] = (
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "subprocess.Popen",
    "pickle.find_class",
)
_DEEDS += ("socket.connect", "ctypes.dlopen", "os.remove", "os.rename", "os.chmod", "os.symlink", "shutil.rmtree")
_watching: list[tuple[Path, list[str]]] = []  # an audit hook stays for ever: it looks here whether anyone asks
_hooked = False


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    place, deeds = _watching[-1]
    if event in _DEEDS:
        deeds.append(f"{event} {str(arguments)[:100]}")
    elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        path, mode, flags = arguments
        writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (
            isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        )
        if writes and not os.path.realpath(os.fsdecode(path)).startswith(os.path.realpath(place)):
            deeds.append(f"open {str(path)[:100]} to write")


@contextlib.contextmanager
def _watched(place: Path) -> Iterator[list[str]]:
    global _hooked
    if not _hooked:
        sys.addaudithook(_hear)
        _hooked = True
    deeds: list[str] = []
    _watching.append((place, deeds))
    try:
        yield deeds
    finally:
        _watching.pop()


# The readers


def _ledger() -> Reader:
    from clipwise.accounting import Ledger, StepEvent, chain

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        with Ledger.create(path, run={"delta": 1e-5, "method": "fixed"}, plan_fingerprint="plan", block=4) as ledger:
            ledger.mark(0, "state")
            for step in range(10):
                ledger.charge(step, StepEvent(0.01, 1.0 + step // 5), upcoming=10 - step)
        with Ledger.open(path, plan_fingerprint="plan", resumes=(0, "state"), block=3) as ledger:
            ledger.charge(0, StepEvent(0.01, 1.0), note={"release": "a count"})
            ledger.close({"weights": "0" * 64})
        content = path.read_bytes()

    def read(place: Path) -> object:
        return Ledger.read(place / "ledger.jsonl").epsilon(1e-5, "rdp")

    def reseal(data: bytes, chance: random.Random) -> bytes:
        """A consistent chain around a line that holds something odd."""
        records = [json.loads(line) for line in data.splitlines()]
        place = chance.randrange(len(records))
        head, result = chain.GENESIS, b""
        for number, record in enumerate(records):
            kept = {name: value for name, value in record.items() if name not in ("prev", "sum")}
            if number == place:
                kept = _other_values(kept, chance) if chance.random() < 0.9 else records[chance.randrange(len(records))]
            if not isinstance(kept, dict):
                kept = {"kind": kept}
            line = chain.seal(kept, head, None)
            head = _sha256(line)
            result += line + b"\n"
        return result

    return Reader("ledger", {"ledger.jsonl": content}, read, rebuild=reseal)


def _run_folder() -> Reader:
    """manifest.json, and every file that it and the ledger vouch for."""
    from clipwise.accounting import Ledger, StepEvent
    from clipwise.statement import shown_epsilon
    from clipwise.training.folder import RunFolder
    from clipwise.training.verify import verify

    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        with Ledger.create(folder.ledger, run={"delta": 1e-5}) as ledger:
            ledger.charge(0, StepEvent(0.01, 1.0))
            spent = ledger.epsilon(1e-5, "rdp").value
            result = {"epsilon": spent, "delta": 1e-5, "accountant": "rdp", "steps": 1, "private": True}
            folder.write_json("result.json", result)
            folder.write("statement.md", f"epsilon {shown_epsilon(spent)}, head {ledger.head[:16]}\n")
            folder.write("config.toml", 'data = "digits"\n')
            folder.write("model.safetensors", b"weights")
            ledger.close(folder.write_manifest())
        files = {path.name: path.read_bytes() for path in sorted(folder.path.iterdir()) if path.name[0] != "."}
    return Reader("run folder", files, verify, strict=True)


def _config(name: str, text: str) -> Reader:
    from clipwise.training.config import make_config, read_config

    return Reader(f"config, {name}", {name: text.encode()}, lambda place: make_config(read_config(place / name)))


def _csv() -> Reader:
    text = "a,b,kind\n" + "".join(f"{i / 7:.3f},{-i},{i % 3}\n" for i in range(20))
    return Reader("data, csv", {"own.csv": text.encode()}, lambda place: _load(place / "own.csv", "kind"))


def _npz() -> Reader:
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, x=np.arange(60, dtype=np.float32).reshape(20, 3), y=np.arange(20) % 3)

    def rezip(data: bytes, chance: random.Random) -> bytes:
        """Damage inside the archive, under good checksums."""
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
            for member in old.namelist():
                content = old.read(member)
                new.writestr(member, chance.choice(_WAYS)(content, chance) if chance.random() < 0.6 else content)
        return out.getvalue()

    return Reader("data, npz", {"own.npz": buffer.getvalue()}, lambda place: _load(place / "own.npz"), rebuild=rezip)


def _load(path: Path, label: str | None = None) -> object:
    from clipwise.data import load

    return load(str(path), label=label)


def _table() -> Reader:
    """A table with words, gaps and dates, as it is trained on and as it is described."""
    rows = "".join(
        f'{n},{"" if n % 5 else 3.5},"red, {n % 3}",2024-01-{n % 28 + 1:02d},{"no" if n % 2 else "yes"}\n'
        for n in range(30)
    )
    words: dict[str, Any] = {
        "label": "y",
        "classes": ["no", "yes"],
        "categories": {"c": "hashed:8"},
        "dates": {"d": ["month"]},
        "missing": {"*": "flag"},
        "learn_ranges": True,
    }

    def read(place: Path) -> object:
        from clipwise.data import load
        from clipwise.data.describe import config_text, describe
        from clipwise.data.table import read_table

        described = describe(read_table(place / "own.csv"), None)
        return load(str(place / "own.csv"), **words), described.label and config_text("own.csv", described)

    return Reader("data, table", {"own.csv": f"a,b,c,d,y\n{rows}".encode()}, read)


def _preprocessing() -> Reader:
    from clipwise.data.columns import Category, Date, Hashed, Number, Words
    from clipwise.data.preprocessing import Classes, Preprocessing, Row

    kinds = (
        Number("a", 0.0, 1.0, "flag"),
        Category("c", ("x", "y")),
        Hashed("h", 8, (1, 2)),
        Words("w", 4),
        Date("d", ("month",)),
    )
    text = Preprocessing(Row(kinds), Classes("y", ("no", "yes")), 0.2).to_json()
    record = {
        "a": ["0.5", ""],
        "c": ["x", "z"],
        "h": ["q", ""],
        "w": ["so it is", ""],
        "d": ["2024-01-31", "2023-02-01"],
    }

    def read(place: Path) -> object:
        made = Preprocessing.from_json((place / "p.json").read_bytes().decode(errors="replace"))
        return made.inputs.apply(record), made.target.encode(["no", "yes"])

    def rebuild(data: bytes, chance: random.Random) -> bytes:
        return json.dumps(_other_values(json.loads(data), chance)).encode()

    return Reader("preprocessing", {"p.json": text.encode()}, read, rebuild=rebuild)


def _checkpoint() -> Reader:
    import torch

    from clipwise.checkpoint import Checkpoints, read

    with tempfile.TemporaryDirectory() as name:
        state = {"weights": {"w": torch.arange(6.0)}, "step": (3, [1.5, None]), "rate": float("inf")}
        path = Checkpoints(name).save(3, state, {"run": {"method": "fixed"}, "data": "0"})
        files = {f"{path.name}/{file.name}": file.read_bytes() for file in sorted(path.iterdir())}
    folder = path.name
    return Reader("checkpoint", files, lambda place: read(place / folder), strict=True)


def _sha256(line: bytes) -> str:
    import hashlib

    return hashlib.sha256(line).hexdigest()


_OPTIONS = (
    'data = "digits"\nepsilon = 3.0\nepochs = 2\nbatch = 64\nschedule = "step"\n[method_options]\nthreshold = 1.5\n'
)
_YAML = "data: digits\nepsilon: 3.0\nepochs: 2\nafter: [a, b]\nmethod_options:\n  threshold: 1.5\n"

READERS: dict[str, Callable[[], Reader]] = {
    "ledger": _ledger,
    "run folder": _run_folder,
    "toml": lambda: _config("c.toml", _OPTIONS),
    "yaml": lambda: _config("c.yaml", _YAML),
    "csv": _csv,
    "npz": _npz,
    "table": _table,
    "preprocessing": _preprocessing,
    "checkpoint": _checkpoint,
}
