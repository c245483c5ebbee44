"""`clipwise evaluate`: how good a trained model is on the records of a file, how well calibrated, and for whom."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clipwise.cli import output
from clipwise.cli.predict import File, Run, records_of
from clipwise.types import BadArgument


def evaluate(
    run: Run,
    file: File,
    group_by: Annotated[str | None, typer.Option(help="A column of the file: figures for each of its values.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the reliability of the probabilities into this .png file.")
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Accuracy, calibration and fairness of a model on a file (or errors of a predicted number). The figures are exact functions
    of that file's records."""
    from clipwise.training.evaluate import evaluate as figures
    from clipwise.training.evaluate import held_out_rows
    from clipwise.training.trained import load

    trained = load(run)
    x, labels = records_of(trained, file)
    if labels is None:
        raise BadArgument(
            f"{file} has no labels (column {trained.preprocessing.target.column!r}); evaluate needs the right answers"
        )
    x, labels, whose = held_out_rows(trained, file, x, labels)
    found: dict[str, Any] = {
        "run": str(run),
        "file": str(file),
        "whose": whose,
        **figures(trained, x, labels, group_by),
    }
    if picture is not None:
        from clipwise import durable
        from clipwise.lab.report.reliability import reliability_png

        if "calibration" not in found:
            raise BadArgument(f"picture={str(picture)!r}: a predicted number has no probabilities; leave it out")
        durable.write(picture, reliability_png(found["calibration"]))
    if as_json:
        output.print_json(found)
        return
    _show(found)
    if picture is not None:
        typer.echo(f"Reliability: {picture}")


def _show(found: dict[str, Any]) -> None:
    typer.echo(f"{found['file']}: {found['records']:,} records. {found['whose']}")
    if "errors" in found:
        errors = found["errors"]
        typer.echo(
            f"mean absolute error {errors['mae']:.6g}, root mean squared {errors['rmse']:.6g}, R^2 {errors['r2']}"
        )
    else:
        low, high = found["accuracy"]["interval"]
        calibration = found["calibration"]
        typer.echo(f"accuracy {found['accuracy']['value']:.2%} (95 % interval {low:.2%} to {high:.2%})")
        typer.echo(
            f"expected calibration error {calibration['ece']:.4f}, of {len(calibration['bins'])} bins of equal width"
        )
    for name, grouping in found.get("by_group", {}).items():
        rows = [
            [row["group"], row["records"], "-" if row["accuracy"] is None else f"{row['accuracy']:.2%}"]
            for row in grouping["groups"]
        ]
        output.print_table(f"by {name}", ["group", "records", "accuracy"], rows)
        for key in ("demographic_parity_difference", "equalised_odds_difference"):
            value = grouping[key]["value"]
            typer.echo(f"{key.replace('_', ' ')}: {'-' if value is None else f'{value:.4f}'}")
    for row in found.get("errors_by_group", []):
        typer.echo(f"{row['group']}: {row['records']} records, mean absolute error {row['mae']:.6g}")
