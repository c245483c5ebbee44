"""`clipwise plot-schedule`: how schedules let the noise change, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clipwise.cli import output
from clipwise.types import BadArgument

_MOST_POINTS = 2000  # of a line
_MOST_LINES = 40  # schedules in one picture: more cannot be told apart


def plot_schedule(
    schedules: Annotated[
        list[str], typer.Argument(help="Such as linear step:decay=0.5,every=10 dynamic levels:1,0.9; or all.")
    ],
    out: Annotated[Path, typer.Option(help="The picture: a .png, .svg or .pdf file.")],
    epochs: Annotated[float, typer.Option(help="Passes over the data.")] = 100,
    noise_multiplier: Annotated[float, typer.Option(help="At the first step.")] = 1.0,
    batch: Annotated[
        float, typer.Option(help="Expected batch size: with --samples, it says how long an epoch is.")
    ] = 64,
    samples: Annotated[int, typer.Option(help="Number of records.")] = 60000,
    as_json: output.JsonOption = False,
) -> None:
    """Draw schedules: the noise multiplier and its square over epochs."""
    from clipwise import validate
    from clipwise.accounting import planned_steps
    from clipwise.cli.run_options import rate_of
    from clipwise.lab.report.pictures import check_file, plot_schedules
    from clipwise.schedules import KINDS, make_schedule

    check_file("out", out)
    validate.positive("noise_multiplier", noise_multiplier, "give noise std / l2 bound")
    rate = rate_of(batch, samples)
    steps = planned_steps(epochs, rate)
    named = [kind for kind in KINDS if kind != "levels"]
    schedules = [text for each in schedules for text in (named if each == "all" else [each])]
    if len(schedules) > _MOST_LINES:
        raise BadArgument(f"schedules: {len(schedules)} lines cannot be told apart; give at most {_MOST_LINES}")
    made = [make_schedule(text).settled(noise_multiplier, epochs) for text in schedules]
    # The first step of each epoch and points between, up to the last step.
    count = min(steps, _MOST_POINTS)
    places = sorted({(steps - 1) * k // max(1, count - 1) for k in range(count)})
    lines = []
    for text, schedule in zip(schedules, made, strict=True):
        noises = [noise_multiplier * schedule.factor(t, sample_rate=rate, steps=steps) for t in places]
        lines.append((text, [t * rate for t in places], noises))
    plot_schedules(out, lines, noise_multiplier)
    rows = [
        {"schedule": str(schedule), "first": noises[0], "last": noises[-1], "least": min(noises), "most": max(noises)}
        for schedule, (_, _, noises) in zip(made, lines, strict=True)
    ]
    if as_json:
        output.print_json({"out": str(out), "epochs": epochs, "steps": steps, "sample_rate": rate, "schedules": rows})
    else:
        output.print_table(
            f"noise multipliers over {epochs:g} epochs, {steps} steps; drawn in {out}",
            ["schedule", "first", "last"],
            [[row["schedule"], f"{row['first']:.6g}", f"{row['last']:.6g}"] for row in rows],
        )
