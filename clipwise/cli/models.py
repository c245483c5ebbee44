"""`clipwise models`: the architectures, what they take, and their sizes on the data sets."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clipwise.cli import output


def models(
    data: Annotated[
        str | None, typer.Option(help="Count parameters on this data set; by default, each model's typical one.")
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """The models, with their number of parameters on a data set. With --json, on each data set."""
    from clipwise.data import DATASETS, get_source
    from clipwise.models import MODELS, parameters_on

    named = None if data is None else get_source(data)
    rows: list[dict[str, Any]] = []
    for architecture in MODELS.values():
        sources = [named] if named else list(DATASETS.values()) if as_json else [DATASETS[architecture.typical]]
        counts = {source.name: parameters_on(architecture.name, source) for source in sources}
        rows.append(
            {
                "name": architecture.name,
                "records": architecture.records,
                "summary": architecture.summary,
                "typical": architecture.typical,
                "loss": architecture.loss,
                "freeze": ["none", *architecture.freezing],
                "parameters": {name: count for name, count in counts.items() if count is not None},
            }
        )
    if as_json:
        output.print_json({"models": rows})
        return
    cells = [
        [r["name"], r["records"], ", ".join(f"{d} {n:,}" for d, n in r["parameters"].items()) or "-", r["summary"]]
        for r in rows
    ]
    output.print_table("models", ["name", "takes", "parameters", "what it is"], cells)
    typer.echo("-: does not fit the records, or needs weights that are not here (see docs/models.md).")
