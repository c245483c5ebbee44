"""What can happen to a run beside a kill: signals, full disks, no memory, bad records, a second process, an odd clock."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np

from clipwise.accounting import Ledger
from clipwise.lab.faults.rig import MODES, RECORDS, RESUME, STEPS, TRAIN, Ended, Lost, Rig, read_draws, write_data
from clipwise.lab.faults.strikes import Strike

_POINTS = ("forward", "backward", "between charge and noise", "between noise and update", "checkpoint", "rename")


def stopped(rig: Rig, mode: str, number: signal.Signals) -> str:
    """SIGTERM or Ctrl-C at any point: the state is kept, the ledger closed, the exit code the signal's; and it goes on."""
    place, point = rig.place(), rig.chance.choice(_POINTS)
    action = {signal.SIGTERM: "term", signal.SIGINT: "int"}[number]
    ended = rig.run(place, (*TRAIN, *MODES[mode]), Strike(point, rig.chance.randint(1, rig.visits[point] - 3), action))
    if ended.code == 0 and len({step for step, *_ in read_draws(place)}) == STEPS:
        return f"came after the last step, {rig.judge(place, mode)}"
    if ended.code != 128 + number:
        raise Lost(f"exit code {ended.code}, not {128 + number} ({ended})")
    failed = json.loads((place / "run" / "result.json").read_text())
    if "clipwise resume" not in failed["error"] or not Ledger.read(place / "run" / "ledger.jsonl").closed:
        raise Lost("the ledger is open, or nothing says how to go on")
    if mode == "secure" and len(read_draws(place)) != _charged(place):
        raise Lost("a stop charged for steps that it did not take")
    return _goes_on(rig, place, mode)


def full_at(rig: Rig, mode: str, point: str) -> str:
    """One write fails for want of space: the run goes on, or ends with a named error and goes on later."""
    place = rig.place()
    ended = rig.run(place, (*TRAIN, *MODES[mode]), Strike(point, rig.chance.randint(2, rig.visits[point]), "full"))
    if ended.code == 0:
        return f"went on, {rig.judge(place, mode)}"
    _named(ended)
    return f"stopped by name, {_goes_on(rig, place, mode)}"


def full_disk(rig: Rig, mode: str) -> str:
    """No file can grow any more, from some step on: no step is taken that is not on record; it goes on when there is room."""
    place = rig.place()
    words = (*TRAIN, *MODES[mode], "--rescue", str(place))
    ended = rig.run(place, words, Strike("forward", rig.chance.randint(2, STEPS), "full-disk"))
    # The error itself may have found no room to be written in: `out.txt` is a file like any other.
    if ended.code == 0:
        raise Lost("a run on a full disk says that all is well")
    before = _charged(place)
    if before < len({step for step, *_ in read_draws(place)}):
        raise Lost("noise was drawn for a step that is not on record")
    return f"stopped by name, {_goes_on(rig, place, mode)}"


def read_only(rig: Rig, mode: str) -> str:
    """The folder of a run that was cut is read-only now: named, and nothing is lost."""
    place = rig.place(copy_of=rig.cut[mode])
    kept = _content(place / "run")
    _named(rig.run(place, RESUME, read_only=True))
    if _content(place / "run") != kept:
        raise Lost("a read-only folder was changed")
    return f"refused by name, {_goes_on(rig, place, mode)}"


def out_of_memory(rig: Rig, mode: str) -> str:
    """A physical batch does not fit: it is halved and redone, with one draw of noise; equal but for the order of a sum."""
    place = rig.place()
    ended = rig.run(place, (*TRAIN, *MODES[mode]), Strike("backward", rig.chance.randint(3, STEPS), "oom"))
    if ended.code:
        raise Lost(f"the run did not go on ({ended})")
    draws = read_draws(place)
    if len(draws) != STEPS or _charged(place) != STEPS:
        raise Lost(f"{len(draws)} draws and {_charged(place)} charges for {STEPS} steps")
    if mode == "reproducible":
        _close(place / "run", rig.whole[mode] / "run")
        return "went on, weights equal but for rounding"
    return f"went on, {rig.judge(place, mode)}"


def nan_data(rig: Rig, mode: str) -> str:
    """Records with NaN or infinite features, up to all of them: such a record counts as one without a gradient, and the
    weights stay finite. (To refuse them would tell that they are there.)"""
    place = rig.place()
    chance = np.random.default_rng(rig.chance.randrange(1 << 30))
    with np.load(place / "data.npz") as file:
        x = file["x"].copy()
    x[chance.random(RECORDS) < chance.choice([0.003, 0.5, 1.0]), 0] = chance.choice([np.nan, np.inf, -np.inf])
    write_data(place / "data.npz", x=x)
    ended = rig.run(place, (*TRAIN, *MODES[mode]))
    if ended.code or _charged(place) != STEPS:
        raise Lost(f"the run failed ({ended})")
    if not all(np.isfinite(each).all() for each in _weights(place / "run").values()):
        raise Lost("the weights are not finite")
    return "went on, finite weights"


def two_processes(rig: Rig, mode: str) -> str:
    """A second process on the folder of a run under way is refused, whatever it is asked for; the first one is not hurt."""
    place = rig.place()
    first = rig.run(place, (*TRAIN, *MODES[mode]), Strike("forward", rig.chance.randint(9, STEPS), "pause"))
    if first.code != -signal.SIGSTOP:
        raise Lost(f"the first run was not under way ({first})")
    try:
        for words in (RESUME, (*TRAIN, *MODES[mode]), (*TRAIN, *MODES[mode], "--resume")):
            _named(rig.run(place, words))
    finally:
        ended = rig.go_on(place, first.pid)
    if ended.code:
        raise Lost(f"the first run was disturbed ({ended})")
    return f"refused by name, {rig.judge(place, mode)}"


def jumping_clock(rig: Rig, mode: str) -> str:
    """Every look at the clock finds another day: nothing hangs on it."""
    place = rig.place()
    ended = rig.run(place, (*TRAIN, *MODES[mode]), clock=rig.chance.randrange(1 << 30))
    if ended.code:
        raise Lost(f"the run failed ({ended})")
    return f"went on, {rig.judge(place, mode)}"


def _named(ended: Ended) -> None:
    if ended.named_error is None:
        raise Lost(f"an error without a name ({ended})" if ended.code else "nothing was refused")


def _goes_on(rig: Rig, place: Path, mode: str) -> str:
    ended = rig.run(place, RESUME if (place / "run" / "checkpoints").exists() else (*TRAIN, *MODES[mode], "--resume"))
    if ended.code:
        raise Lost(f"the run does not go on ({ended})")
    return rig.judge(place, mode)


def _charged(place: Path) -> int:
    return sum(event.count for event in Ledger.read(place / "run" / "ledger.jsonl").events())


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _weights(folder: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def _close(one: Path, other: Path) -> None:
    weights, expected = _weights(one), _weights(other)
    if not all(np.allclose(weights[name], expected[name], rtol=1e-4, atol=1e-5) for name in expected):
        raise Lost("the weights differ by more than rounding")
