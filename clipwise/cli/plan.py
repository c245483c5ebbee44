"""`clipwise plan`: what a run would be like, before anything is spent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clipwise.cli import output
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.forecast import Forecast


def plan(
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    records: Annotated[int | None, typer.Option(help="Number of records; by default that of --data.")] = None,
    data: Annotated[
        str | None, typer.Option(help="A built-in data set: its public size and shape (it is not read).")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A model from `clipwise models`, to time; by default that of --data.")
    ] = None,
    method: Annotated[str, typer.Option(help="The clipping method.")] = "auto",
    delta: Annotated[float | None, typer.Option(help="By default a power of ten below 1 / records.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data; by default the rule's.")] = None,
    batch: Annotated[float | None, typer.Option(help="Expected batch size; by default the rule's.")] = None,
    effort: Annotated[
        str, typer.Option(help="quick, normal or long: batch and epochs, where they are not given.")
    ] = "normal",
    schedule: Annotated[str, typer.Option(help="Of the noise; see `clipwise plot-schedule`.")] = "constant",
    out: Annotated[
        Path | None, typer.Option(help="Draw noise and steps against the batch here (.png, .svg, .pdf).")
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Noise, steps, batch, what each part costs, time, and what doubling would do: before anything is spent, from public facts."""
    from clipwise.forecast import plan as forecast
    from clipwise.lab.report.pictures import check_file

    if out is not None:
        check_file("out", out)
    facts = _facts(data, model, records)
    given = {"delta": delta, "epochs": epochs, "expected_batch_size": batch}
    options = {name: value for name, value in given.items() if value is not None}
    found = forecast(**facts, epsilon=epsilon, method=method, effort=effort, schedule=schedule, **options)
    if out is not None:
        _draw(out, found)
    if as_json:
        output.print_json({**found.to_dict(), "accuracy": None, "out": None if out is None else str(out)})
    else:
        _show(found, out)


def _facts(data: str | None, model: str | None, records: int | None) -> dict[str, Any]:
    """The number of records, and the model with the shape of a record, of which none is read."""
    from clipwise.data import get_source
    from clipwise.models import build_model, get_architecture

    if data is None:
        if records is None:
            raise BadArgument("Missing option --records (or --data): how many records there are")
        if model is not None:
            raise BadArgument(f"--model {model} is built for the shape of records; name --data too")
        return {"records": records}
    source = get_source(data)
    records = source.editions[0].train_count if records is None else records
    name = model or source.recipe.chosen(None).model
    if get_architecture(name).weights.needed:
        return {"records": records}  # its weights are not here to be timed; the noise does not depend on them
    shape, classes = source.shape, source.classes or None
    return {
        "records": records,
        "model": build_model(name, source),
        "shape": shape,
        "classes": classes,
        "vocabulary": source.vocabulary_size,
    }


def _draw(out: Path, found: Forecast) -> None:
    from clipwise.lab.report.pictures import plot_plan

    rows = [(c.expected_batch_size, c.noise_multiplier, c.noise_on_the_mean, c.steps) for c in found.by_batch]
    title = f"epsilon {found.epsilon:g}, {found.records:,} records, {found.epochs:g} epochs"
    plot_plan(out, rows, found.expected_batch_size, title)


def _show(found: Forecast, out: Path | None) -> None:
    typer.echo(
        f"{found.method} on {found.records:,} records at epsilon {found.epsilon:g}, delta {found.delta:g}: {found.steps} steps, expected batch size "
        f"{found.expected_batch_size:g}, {found.epochs:g} epochs, noise multiplier {output.rounded_up(found.noise_multiplier)}"
    )
    for sentence in found.said:
        typer.echo(f"- {sentence}")
    output.print_table(
        "what the budget pays for",
        ["part", "steps", "noise", "epsilon alone", "adds to noise"],
        [
            [
                p.name,
                p.steps or "once",
                f"{p.noise_multiplier:.4g}",
                f"{p.epsilon_alone:.3f}",
                _share(p.raises_noise),
            ]
            for p in found.parts
        ],
    )
    base = found.changes[0]
    output.print_table(
        "what another setting would do",
        ["setting", "batch", "steps", "delta", "noise", "noise / batch", "of now"],
        [
            [
                *(c.what, f"{c.expected_batch_size:g}", c.steps, f"{c.delta:g}", f"{c.noise_multiplier:.4g}"),
                *(f"{c.noise_on_the_mean:.3g}", f"{c.noise_on_the_mean / base.noise_on_the_mean:.2f}"),
            ]
            for c in found.changes
        ],
    )
    typer.echo(
        "noise: the noise multiplier (noise std / l2 bound); noise / batch: that on the mean gradient; once: a release on all records"
    )
    typer.echo(_time(found))
    typer.echo(
        "accuracy: not forecast; it depends on the records, which are not read, and no study here says it of data like yours"
    )
    if out is not None:
        typer.echo(f"picture:  {out}")


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def _time(found: Forecast) -> str:
    if found.timing is None:
        return "time: unknown; name a model and its data (--data, --model) to have steps timed on made records"
    minutes = found.timing.seconds / 60
    whole = f"{minutes:.1f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
    return f"time: about {whole}, {found.timing.seconds_a_step * 1000:.0f} ms a step ({found.timing.how})"
