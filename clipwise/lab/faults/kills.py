"""kill -9, at every point of a run where something could be half done."""

from __future__ import annotations

from pathlib import Path

from clipwise.lab.faults.rig import MODES, RESUME, TRAIN, Lost, Rig
from clipwise.lab.faults.strikes import ANYWHERE, Strike

POINTS = (
    "forward",
    "backward",
    "before the charge",
    "between charge and noise",
    "between noise and update",
    "ledger line",  # half of it written
    "checkpoint",  # half of a file written
    "rename",
    "results",
    ANYWHERE,  # in any call of a Python or C function
)
_MOST_KILLS = 3  # of one run: each resume may be killed as well


def kill(rig: Rig, point: str, mode: str) -> str:
    """A run that is killed at a random visit of the point, also while it resumes, until it ends."""
    place = rig.place()
    visits = rig.calls if point == ANYWHERE else rig.visits[point]
    ended = rig.run(place, (*TRAIN, *MODES[mode]), Strike(point, rig.chance.randint(1, visits)))
    for _ in range(rig.chance.randrange(_MOST_KILLS)):
        if not ended.killed:
            break
        ended = rig.run(place, again(place, mode), Strike(point, rig.chance.randint(1, max(1, visits // 2))))
    if ended.killed:
        ended = rig.run(place, again(place, mode))
    if ended.named_error == "BudgetExhausted" and mode == "secure, target":
        return rig.judge_spent(place)
    if ended.code and not _ended_before(ended.out, place):
        raise Lost(f"the run does not go on ({ended})")
    return rig.judge(place, mode)


def again(place: Path, mode: str) -> tuple[str, ...]:
    """What a user types after a crash: `clipwise resume`, or where that finds nothing kept yet, the same command."""
    kept = place / "run" / "checkpoints"
    return RESUME if kept.exists() and any(kept.glob("step-*")) else (*TRAIN, *MODES[mode], "--resume")


def _ended_before(said: str, place: Path) -> bool:
    """Killed after the last file was written: there is nothing to go on with, and that is said."""
    return "has ended" in said and (place / "run" / "result.json").exists()
