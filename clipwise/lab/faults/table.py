"""Every fault by name, and what became of its trials."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from clipwise.lab.faults import damages, kills, troubles
from clipwise.lab.faults.rig import MODES, Lost, Rig
from clipwise.types import BadArgument

Trial = Callable[[Rig, str], str]  # a mode in; what became of it in words out, or `Lost`

KILL, DAMAGE, TROUBLE = "kills", "damages", "troubles"
_USUAL = {KILL: 24, DAMAGE: 34, TROUBLE: 6}  # trials of a fault: 240 kills, 510 damages, 78 troubles
_TWO = ("reproducible", "secure")


@dataclass(frozen=True)
class Fault:
    name: str
    kind: str
    trial: Trial
    modes: Sequence[str] = _TWO  # one trial each, in turn

    @property
    def usual(self) -> int:
        return _USUAL[self.kind]


def _kills() -> Iterator[Fault]:
    for point in kills.POINTS:
        yield Fault(f"kill: {point}", KILL, partial(_kill, point), tuple(MODES))


def _kill(point: str, rig: Rig, mode: str) -> str:
    return kills.kill(rig, point, mode)


def _damages() -> Iterator[Fault]:
    for name, damage in {
        **{name: damages.accident(name) for name in damages.ACCIDENTS},
        "ledger shortened": damages.shortened,
        "ledger rolled back": damages.rolled_back,
        "ledger edited": damages.edited,
        "ledger forged": damages.forged,
        "checkpoint rolled back": damages.checkpoint_rolled_back,
        "checkpoints mixed": damages.mixed,
        "checkpoint rewritten": damages.rewritten,
        "checkpoint poisoned": damages.poisoned,
        "other data": damages.other_data,
    }.items():
        yield Fault(f"damage: {name}", DAMAGE, partial(_damage, damage))


def _damage(damage: damages.Damage, rig: Rig, mode: str) -> str:
    return damages.damaged(rig, mode, damage)


def _troubles() -> Iterator[Fault]:
    for number in (signal.SIGTERM, signal.SIGINT):
        yield Fault(number.name, TROUBLE, partial(_stop, number))
    for point in ("checkpoint", "ledger line", "fsync", "rename", "results"):
        yield Fault(f"no space: {point}", TROUBLE, partial(_full, point))
    for name, trial in {
        "no space: any file": troubles.full_disk,
        "read-only folder": troubles.read_only,
        "out of memory": troubles.out_of_memory,
        "NaN data": troubles.nan_data,
        "two processes": troubles.two_processes,
        "clock that jumps": troubles.jumping_clock,
    }.items():
        yield Fault(name, TROUBLE, trial)


def _stop(number: signal.Signals, rig: Rig, mode: str) -> str:
    return troubles.stopped(rig, mode, number)


def _full(point: str, rig: Rig, mode: str) -> str:
    return troubles.full_at(rig, mode, point)


FAULTS: dict[str, Fault] = {fault.name: fault for fault in (*_kills(), *_damages(), *_troubles())}


@dataclass
class Row:
    """A line of the table."""

    fault: str
    kind: str
    trials: int = 0
    survived: int = 0
    lost: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)


def choose(only: Sequence[str]) -> list[Fault]:
    """Faults whose names contain one of these, or all."""
    for part in only:
        if not any(part in name for name in FAULTS):
            raise BadArgument(f"only={part!r} is in the name of no fault; known are {', '.join(FAULTS)}")
    return [fault for fault in FAULTS.values() if not only or any(part in fault.name for part in only)]


def run(
    faults: Sequence[Fault], *, trials: int | None, seed: int, show: Callable[[str, float], None] = lambda *_: None
) -> list[Row]:
    """All trials; `show` hears the fault and the share that is done."""
    rows, done = [], 0
    total = sum(trials or fault.usual for fault in faults)
    show("runs that nothing strikes", 0.0)
    with Rig(seed) as rig:
        for fault in faults:
            row = Row(fault.name, fault.kind)
            for number in range(trials or fault.usual):
                show(fault.name, done / total)
                _one(rig, fault, fault.modes[number % len(fault.modes)], row)
                done += 1
            rows.append(row)
    return rows


def _one(rig: Rig, fault: Fault, mode: str, row: Row) -> None:
    row.trials += 1
    try:
        how = fault.trial(rig, mode)
        row.outcomes[how] = row.outcomes.get(how, 0) + 1
        row.survived += 1
    except Lost as error:
        row.lost += 1
        row.losses.append(f"{mode}: {error}")


def markdown(rows: Sequence[Row], command: str, about: str) -> str:
    lines = [
        f"Made by `{command}` ({about}).",
        "",
        "| fault | trials | survived | lost | how |",
        "|---|--:|--:|--:|---|",
    ]
    for row in [*rows, *_totals(rows)]:
        how = "; ".join(f"{words} {row.outcomes[words]}" for words in sorted(row.outcomes))
        lines.append(f"| {row.fault} | {row.trials} | {row.survived} | {row.lost} | {how} |")
    return "\n".join(lines) + "\n"


def _totals(rows: Sequence[Row]) -> Iterator[Row]:
    for kind in dict.fromkeys(row.kind for row in rows):
        own = [row for row in rows if row.kind == kind]
        yield Row(
            f"**all {kind}**",
            kind,
            *(sum(getattr(row, name) for row in own) for name in ("trials", "survived", "lost")),
        )
