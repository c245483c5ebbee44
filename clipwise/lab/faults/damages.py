"""Files of a run that was cut, damaged before it goes on: by accident (bits, lengths, names) or on purpose (forgeries).

None may be silent: the run refuses by name, or says what it skips and ends as it should, or ends as it should because
nothing hangs on what was damaged.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clipwise.lab.faults.rig import RESUME, Lost, Rig, write_data

Damage = Callable[[Rig, str, Path], str]


def damaged(rig: Rig, mode: str, damage: Damage) -> str:
    """Copy a run that was cut, damage it, and go on."""
    place = rig.place(copy_of=rig.cut[mode])
    what = damage(rig, mode, place)
    ended = rig.run(place, RESUME)
    if (place / "executed").exists():
        raise Lost(f"{what}: code of the file was run")
    if ended.code == 0:
        try:
            proven = rig.judge(place, mode)
        except Lost as error:
            raise Lost(f"{what}: silent ({error})") from error
        return f"said and skipped, {proven}" if "is used" in ended.err else f"no difference, {proven}"
    if ended.named_error is None:
        raise Lost(f"{what}: an error without a name ({ended})")
    return "refused by name"


# Accidents: one file, one damage


def accident(name: str) -> Damage:
    def damage(rig: Rig, mode: str, place: Path) -> str:  # noqa: ARG001
        file = rig.chance.choice(_files(place))
        changed = ACCIDENTS[name](file.read_bytes(), rig.chance)
        if changed is None:
            file.unlink()
        else:
            file.write_bytes(changed)
        return f"{file.relative_to(place)}, {name}"

    return damage


def _files(place: Path) -> list[Path]:
    """Those that a run reads when it goes on, each kind as likely as any other."""
    run = place / "run"
    checkpoints = sorted((run / "checkpoints").glob("step-*"))
    kept = [path / name for path in checkpoints for name in ("manifest.json", "state.json", "tensors.safetensors")]
    ledger = [run / "ledger.jsonl", run / "ledger.jsonl", run / ".ledger.jsonl.head"]
    return [*ledger, run / "config.toml", place / "data.npz", *kept]


def _flip(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]


def _zero(content: bytes, chance: random.Random) -> bytes:
    """A block that never got to the disk."""
    first = chance.randrange(len(content))
    length = min(chance.choice((1, 16, 512, 4096)), len(content) - first)
    return content[:first] + bytes(length) + content[first + length :]


def _cut_out(content: bytes, chance: random.Random) -> bytes:
    first, end = sorted(chance.sample(range(len(content) + 1), 2))
    return content[:first] + content[end:]


ACCIDENTS: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "a bit flipped": _flip,
    "truncated": lambda content, chance: content[: chance.randrange(len(content))],
    "a block of zeros": _zero,
    "a piece missing": _cut_out,
    "bytes added": lambda content, chance: content + chance.randbytes(chance.randint(1, 64)),
    "missing": lambda *_: None,
}


# Forgeries: of the ledger


def edited(rig: Rig, mode: str, place: Path) -> str:  # noqa: ARG001
    """Lines of the ledger deleted, repeated or moved; or one number changed."""
    ledger = place / "run" / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    place_of = rig.chance.randrange(1, len(lines))
    how = rig.chance.choice(("deleted", "repeated", "moved", "changed"))
    if how == "deleted":
        del lines[place_of]
    elif how == "repeated":
        lines.insert(place_of, lines[place_of])
    elif how == "moved":
        lines.insert(rig.chance.randrange(1, place_of + 1), lines.pop(place_of))
    else:
        lines[place_of] = lines[place_of].replace(b'"noise_multiplier":', b'"noise_multiplier":9', 1)
        lines[place_of] = lines[place_of].replace(b'"step":', b'"step":1', 1)
    ledger.write_bytes(b"".join(lines))
    return f"ledger line {place_of} {how}"


_FORGERIES: dict[str, tuple[Any, ...]] = {
    "noise_multiplier": (1e9, -1.0, 15.0, "NaN"),
    "sample_rate": (1e-9, 1.5),
    "count": (-5, 1 << 70),
}


def forged(rig: Rig, mode: str, place: Path) -> str:  # noqa: ARG001
    """The ledger written anew with other numbers and right sums: only what is kept elsewhere can tell."""
    ledger = place / "run" / "ledger.jsonl"
    field = rig.chance.choice(tuple(_FORGERIES))
    value = rig.chance.choice(_FORGERIES[field])
    head, lines = "0" * 64, []
    for text in ledger.read_text().splitlines():
        record = json.loads(text)
        if field in record:
            record[field] = value
        record |= {"prev": head}
        record.pop("sum")
        body = json.dumps(record, separators=(",", ":"))[:-1]
        line = f'{body},"sum":"{hashlib.sha256(body.encode()).hexdigest()}"}}'
        head = hashlib.sha256(line.encode()).hexdigest()
        lines.append(line + "\n")
    ledger.write_text("".join(lines))
    return f"a ledger forged with {field}={value}"


def rolled_back(rig: Rig, mode: str, place: Path) -> str:  # noqa: ARG001
    """The ledger as it was before the last checkpoint, or that of another run."""
    ledger = place / "run" / "ledger.jsonl"
    if rig.chance.random() < 0.3:
        shutil.copy(rig.whole["reproducible"] / "run" / "ledger.jsonl", ledger)
        return "the ledger of another run"
    lines = ledger.read_bytes().splitlines(keepends=True)
    newest = max((place / "run" / "checkpoints").glob("step-*"))
    head = json.loads((newest / "manifest.json").read_text())["facts"]["ledger_head"]
    last = next(i for i, line in enumerate(lines) if hashlib.sha256(line.removesuffix(b"\n")).hexdigest() == head)
    kept = rig.chance.randrange(1, last + 1)
    ledger.write_bytes(b"".join(lines[:kept]))
    return f"a ledger rolled back from {len(lines)} lines to {kept}"


def shortened(rig: Rig, mode: str, place: Path) -> str:  # noqa: ARG001
    """Lines cut off the ledger's end, all of them after the last checkpoint, with or without a torn one."""
    ledger = place / "run" / "ledger.jsonl"
    content = ledger.read_bytes()
    newest = max((place / "run" / "checkpoints").glob("step-*"))
    mark = content.index(hashlib.sha256((newest / "manifest.json").read_bytes()).hexdigest().encode())
    after = content.index(b"\n", mark) + 1
    ledger.write_bytes(content[: rig.chance.randrange(after, len(content) - 1)])
    return "a ledger without its last lines"


# Forgeries: of checkpoints


def mixed(rig: Rig, mode: str, place: Path) -> str:
    """A file of the newest checkpoint from the older one, or all of it from another run, or under another name."""
    older, newest = sorted((place / "run" / "checkpoints").glob("step-*"))
    how = rig.chance.choice(("file", "run", "name"))
    if how == "file":
        name = rig.chance.choice(("manifest.json", "state.json", "tensors.safetensors"))
        shutil.copy(older / name, newest / name)
        return f"{name} of another checkpoint"
    if how == "run":
        other = rig.cut["secure" if mode == "reproducible" else "reproducible"]
        shutil.rmtree(newest)
        shutil.copytree(other / "run" / "checkpoints" / newest.name, newest)
        return "a checkpoint of another run"
    shutil.rmtree(newest)
    shutil.copytree(older, newest)
    return "an older checkpoint under the newest one's name"


def _make_it_fit(checkpoint: Path, name: str) -> None:
    """A manifest that vouches for the file as it is now, and for itself."""
    content, file = (checkpoint / name).read_bytes(), checkpoint / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    file.write_bytes(sealed(manifest))


def sealed(manifest: dict[str, Any]) -> bytes:
    """As clipwise/checkpoint.py writes one."""
    body = {key: value for key, value in manifest.items() if key != "sum"}
    own = hashlib.sha256(json.dumps(body, indent=1).encode()).hexdigest()
    return json.dumps({**body, "sum": own}, indent=1).encode()


def rewritten(rig: Rig, mode: str, place: Path) -> str:  # noqa: ARG001
    """Another number in the newest checkpoint's state or tensors, and a manifest that fits."""
    newest = max((place / "run" / "checkpoints").glob("step-*"))
    name = rig.chance.choice(("state.json", "tensors.safetensors"))
    content = (newest / name).read_bytes()
    if name == "state.json":
        content = content.replace(b'["threshold", 0.', b'["threshold", 9.')
    else:
        content = content[:-1] + bytes([content[-1] ^ 1])
    (newest / name).write_bytes(content)
    _make_it_fit(newest, name)
    return f"a checkpoint with another {name} and a manifest that fits"


def poisoned(rig: Rig, mode: str, place: Path) -> str:  # noqa: ARG001
    """A pickle, a link out of the folder, or a promise of more bytes than there are, in place of tensors."""
    newest = max((place / "run" / "checkpoints").glob("step-*"))
    tensors = newest / "tensors.safetensors"
    how = rig.chance.choice(("pickle", "link", "length"))
    if how == "pickle":
        tensors.write_bytes(b"cos\nsystem\n(S'touch executed'\ntR.")  # what unpickling would run
    elif how == "link":
        shutil.move(tensors, place / "elsewhere")
        tensors.symlink_to(place / "elsewhere")
    else:
        tensors.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    if how != "link":
        _make_it_fit(newest, tensors.name)
    return f"a {how} in place of tensors"


def checkpoint_rolled_back(rig: Rig, mode: str, place: Path) -> str:  # noqa: ARG001
    """Only an older checkpoint is left: its steps are redone, and no charge is lost."""
    shutil.rmtree(max((place / "run" / "checkpoints").glob("step-*")))
    return "the newest checkpoint removed"


def other_data(rig: Rig, mode: str, place: Path) -> str:
    """One number of one record differs; a run without a seed knows its data by layout only, so it gets other columns."""
    import numpy as np

    with np.load(place / "data.npz") as file:
        x = file["x"].copy()
    if mode == "reproducible":
        x[rig.chance.randrange(len(x)), 0] += 0.5
        write_data(place / "data.npz", x=x)
    else:
        write_data(place / "data.npz", x=x[:, :-1], x_test=x[:100, :-1])
    return "other data"
