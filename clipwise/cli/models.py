"""`clipwise models`: the architectures, and their sizes on the data sets."""

from __future__ import annotations

from typing import Any

from clipwise.cli import output


def models(as_json: output.JsonOption = False) -> None:
    """The models, with their number of parameters on each data set."""
    from clipwise.data import DATASETS
    from clipwise.models import MODELS, build_model, parameter_count
    from clipwise.types import BadArgument

    rows: list[dict[str, Any]] = []
    for architecture in MODELS.values():
        sizes = {}
        for source in DATASETS.values():
            try:
                sizes[source.name] = parameter_count(build_model(architecture.name, source))
            except BadArgument:
                continue  # does not fit this data set's records
        rows.append({"name": architecture.name, "summary": architecture.summary, "parameters": sizes})
    if as_json:
        output.print_json({"models": rows})
        return
    cells = [[r["name"], r["summary"], ", ".join(f"{d} {n:,}" for d, n in r["parameters"].items())] for r in rows]
    output.print_table("models", ["name", "what it is", "parameters"], cells)
