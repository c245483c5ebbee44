"""`clipwise predict`: what a trained model says of the records of a file."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clipwise.cli import output
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.training.trained import TrainedModel

Run = Annotated[Path, typer.Argument(help="The folder that `clipwise train` made.")]
File = Annotated[Path, typer.Argument(help="A file or folder with records like those that were trained on.")]


def predict(
    run: Run,
    file: File,
    out: Annotated[
        Path, typer.Option(help="The .csv file to write, a line a record, in order; it must not exist yet.")
    ],
    as_json: output.JsonOption = False,
) -> None:
    """Predict the records of a file with the model of a run: the class and how probable each is, or the number."""
    from clipwise import durable
    from clipwise.training.trained import load

    if os.path.lexists(out):
        raise BadArgument(f"out={str(out)!r} exists already; name another")
    trained = load(run)
    x, _ = records_of(trained, file)
    predicted = trained.predict(x)
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    if trained.classes:
        writer.writerow(["prediction", *(f"probability of {name}" for name in trained.classes)])
        for name, row in zip(predicted, trained.predict_proba(x), strict=True):
            writer.writerow([name, *(repr(float(each)) for each in row)])
    else:
        writer.writerow(["prediction"])
        writer.writerows([repr(float(each))] for each in predicted)
    try:
        durable.write(out, rows.getvalue())
    except OSError as error:
        raise BadArgument(f"out={str(out)!r} cannot be written ({error}); name another") from error
    if as_json:
        output.print_json(
            {"run": str(run), "out": str(out), "records": len(predicted), "classes": list(trained.classes)}
        )
        return
    typer.echo(f"Wrote {len(predicted):,} predictions to {out}.")


def records_of(trained: TrainedModel, file: Path) -> tuple[Any, Any]:
    """The records of a file as they are given, and their labels where the file has them (else None)."""
    from clipwise.data import load as load_data
    from clipwise.data.own import read_npz_records
    from clipwise.data.table import read_table

    column = trained.preprocessing.target.column
    if file.suffix.lower() == ".npz":
        return read_npz_records(file)
    if not file.exists() and str(file) == trained.settings.data:  # a data set by name: its test part
        test = load_data(str(file)).test
        if test is None:
            raise BadArgument(f"{file} has no test part; give a file")
        return test.tensors[0], test.tensors[1]
    table = read_table(file)
    return table, table.columns.get(str(column))
