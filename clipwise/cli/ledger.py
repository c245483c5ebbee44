"""`clipwise ledger`: what a run has spent, from its ledger alone."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clipwise.cli import output, run_options
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.accounting.history import History

_BAR = 30  # characters


def ledger(
    run: Annotated[Path, typer.Argument(help="A run folder, or a ledger file.")],
    delta: Annotated[
        list[float] | None, typer.Option(help="Tell epsilon at this delta; may be repeated. Default: the run's own.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget; default: the run's own target.")] = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="Refuse a ledger without this line (its SHA-256, or the beginning); default: the statement's."
        ),
    ] = None,
    points: Annotated[int, typer.Option(help="Of the curve of epsilon over steps; 0 leaves it out.")] = 12,
    plot: Annotated[Path | None, typer.Option(help="Draw that curve into this .png, .svg or .pdf file.")] = None,
    accountant: run_options.Accountant = "best",
    as_json: output.JsonOption = False,
) -> None:
    """Verify a run's ledger and tell what it has spent, and what is left of its budget."""
    from clipwise import validate
    from clipwise.accounting.bound import check_delta
    from clipwise.accounting.history import read_history

    file, stated = _ledger_file(run)
    validate.count("points", points, least=0)
    if epsilon is not None:
        validate.positive("epsilon", epsilon, "give the budget")
    if head is not None and not re.fullmatch(r"[0-9a-f]{8,64}", head):
        raise BadArgument(f"head={head!r} is not the beginning of a SHA-256; give 8 to 64 of its hexadecimal digits")
    for each in delta or ():
        check_delta(each)
    if plot is not None:
        from clipwise.lab.report.pictures import check_file

        check_file("plot", plot)
    anchor = head or stated
    history = read_history(file, head=anchor)
    own = history.run.get("delta")
    deltas = delta or ([] if own is None else [float(own)])
    if not deltas:
        raise BadArgument("delta: the ledger names none; give --delta, well below 1 / number of records")
    target = epsilon if epsilon is not None else history.run.get("target_epsilon")
    budget = [_spent(history, each, target, accountant) for each in deltas]
    curve = history.curve(deltas[0], accountant, points) if points else []
    if plot is not None:
        from clipwise.lab.report.pictures import plot_curve

        plot_curve(plot, curve or history.curve(deltas[0], accountant), deltas[0], target)
    if as_json:
        output.print_json({**_as_dict(file, history, target, budget, curve), "end_checked": anchor is not None})
    else:
        _print(file, history, target, budget, curve, deltas[0])
        if anchor is None:
            typer.echo("No statement or result names its last line: lines cut off the end would not show.")


def _ledger_file(run: Path) -> tuple[Path, str | None]:
    """The ledger, and the line that the folder's statement, or the result of a run that failed, says it contains."""
    if run.is_dir():
        from clipwise.lab.report.run_record import anchor
        from clipwise.training.verify import read_ledger

        file = run / "ledger.jsonl"
        if not file.is_file():
            raise BadArgument(f"run={str(run)!r} holds no ledger.jsonl; name a run folder or a ledger file")
        read_ledger(run)  # of a run that has ended, the last line must be there
        return file, anchor(run)
    if not run.is_file():
        raise BadArgument(f"run={str(run)!r} does not exist; name a run folder or a ledger file")
    return run, None


def _spent(history: History, delta: float, target: float | None, accountant: str) -> dict[str, Any]:
    spent = history.epsilon(delta, accountant)
    left = None if target is None or math.isinf(spent.value) else max(0.0, target - spent.value)
    return {
        "delta": delta,
        "epsilon": spent.value,
        "private": math.isfinite(spent.value),
        "accountant": spent.accountant,
        "remaining": left,
    }


def _as_dict(
    file: Path, history: History, target: float | None, budget: list[dict[str, Any]], curve: list[tuple[int, float]]
) -> dict[str, Any]:
    return {
        "ledger": str(file),
        "verified": True,
        "run_id": history.run_id,
        "head": history.head,
        "neighbours": history.run.get("neighbours", "add or remove one record"),
        "sound": history.sound,
        "steps_taken": history.taken,
        "steps_untaken": history.untaken,
        "steps_charged": history.taken + history.untaken,
        "steps_of_other_ledgers": sum(event.count for event in history.composed),
        "target_epsilon": target,
        "budget": budget,
        "segments": [
            {
                "segment": segment.number,
                "closed": segment.closed,
                "taken": segment.taken,
                "untaken": segment.untaken,
                "redone": segment.redone,
                "sound": segment.sound,
                "run": segment.run,
            }
            for segment in history.segments
        ],
        "levels": [dataclasses.asdict(level) for level in history.levels()],
        "curve": [{"steps": steps, "epsilon": value} for steps, value in curve],
    }


def _print(
    file: Path,
    history: History,
    target: float | None,
    budget: list[dict[str, Any]],
    curve: list[tuple[int, float]],
    delta: float,
) -> None:
    facts = history.run
    typer.echo(f"{file}: verified, run {history.run_id}, head {history.head[:16]}")
    typer.echo(
        f"method {facts.get('method', 'not named')}, schedule {facts.get('schedule', 'constant')}, neighbours: "
        f"{facts.get('neighbours', 'add or remove one record')}"
    )
    if not history.sound:
        typer.echo("The method has no valid guarantee: epsilon is infinite.")
    if others := sum(event.count for event in history.composed):
        typer.echo(f"{others} steps of earlier ledgers on the same data count as well, in every epsilon below.")
    output.print_table(
        "segments",
        ["segment", "ended", "steps taken", "reserved, perhaps taken", "charged", "redone, the same"],
        [
            [s.number, "cleanly" if s.closed else "NO", s.taken, s.untaken, s.taken + s.untaken, s.redone]
            for s in history.segments
        ],
    )
    output.print_table(
        "charged steps",
        ["sample rate", "noise multiplier", "steps taken", "reserved, perhaps taken"],
        [
            [f"{row.sample_rate:.6g}", _range(row.noise_from, row.noise_to), row.taken, row.untaken]
            for row in history.levels()
        ],
    )
    output.print_table(
        f"budget{'' if target is None else f', of epsilon {target:g}'}",
        ["delta", "epsilon so far", "remaining", "accountant"],
        [
            [
                f"{row['delta']:g}",
                output.rounded_up(row["epsilon"]) if row["private"] else "infinite",
                "no target"
                if target is None
                else "none"
                if row["remaining"] is None
                else f"{math.floor(row['remaining'] * 1e6) / 1e6:g}",
                row["accountant"],
            ]
            for row in budget
        ],
    )
    if curve:
        _print_curve(curve, target, delta)


def _print_curve(curve: list[tuple[int, float]], target: float | None, delta: float) -> None:
    highest = max([value for _, value in curve if math.isfinite(value)] + ([target] if target else []), default=1.0)
    top = highest or 1.0
    block = "█" if _can_print("█") else "#"
    rows = [[steps, _figure(value), block * round(_BAR * min(1.0, value / top))] for steps, value in curve]
    output.print_table(f"epsilon over charged steps, delta {delta:g}", ["steps", "epsilon", f"of {top:.4g}"], rows)


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _figure(epsilon: float) -> str:
    return output.rounded_up(epsilon) if math.isfinite(epsilon) else "infinite"


def _range(most: float, least: float) -> str:
    return f"{most:.6g}" if most == least else f"{most:.6g} to {least:.6g}"
